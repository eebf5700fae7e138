"""A request while it runs: its submissions in the core, and what comes of them.

This module knows neither text nor sampling.
"""

from __future__ import annotations

import asyncio
from typing import Any

from boughs.lang.errors import BoughsError, RequestTimeout
from boughs.runtime.messages import Output, Submit
from boughs.runtime.metrics import Histogram

from .submission import Submission
from .supervisor import Supervisor

ABORTED = "the request was aborted"


class Latencies:
    """How long requests take, in seconds.

    Attributes:
        first_token: From arrival to the first token of any choice.
        inter_token: From one token of a choice to its next.
        whole: From arrival to the end, however it came.
    """

    def __init__(self) -> None:
        self.first_token = Histogram()
        self.inter_token = Histogram()
        self.whole = Histogram()

    def as_json(self) -> dict[str, Any]:
        """All of them."""
        return {
            "time_to_first_token": self.first_token.as_json(),
            "inter_token": self.inter_token.as_json(),
            "request": self.whole.as_json(),
        }


class Running:
    """The submissions of one request.

    Args:
        core: Runs them.
        latencies: Of all requests; this one's are added.
        timeout: Seconds from now after which waiting for more fails.
    """

    def __init__(
        self, core: Supervisor, latencies: Latencies, timeout: float | None = None
    ) -> None:
        self._core = core
        self._latencies = latencies
        self._timeout = timeout
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self._last: dict[int, float] = {}  # by choice, when its last token came
        self._deadline = None if timeout is None else self._began + timeout
        self.stopped = False
        """Whether `stop` was called."""
        self._events: asyncio.Queue[tuple[int, Output | BoughsError] | None] = asyncio.Queue()
        self._submissions: list[Submission] = []
        self._ended: set[int] = set()

    def submit(self, message: Submit) -> None:
        """Have the core run one more choice; its index is how many there were before."""
        index = len(self._submissions)

        def deliver(item: Output | BoughsError) -> None:
            self._events.put_nowait((index, item))

        if self._submissions:
            message.family = self._submissions[0].message.key
        self._submissions.append(self._core.submit(message, deliver))

    async def next(self) -> tuple[int, Output, int] | None:
        """What the core made next: choice, output, and the choice's cached tokens.

        Returns:
            None once the request was aborted.

        Raises:
            RequestTimeout: The time is over.
            BoughsError: What a choice failed with.
        """
        if self._deadline is None:
            event = await self._events.get()
        else:
            try:
                async with asyncio.timeout_at(self._deadline):
                    event = await self._events.get()
            except TimeoutError:
                raise RequestTimeout(
                    f"the request was not complete after timeout={self._timeout:g} seconds"
                ) from None
        if event is None:
            return None
        index, item = event
        if isinstance(item, BoughsError):
            if index in self._ended:  # it failed beyond its end, before the core heard of that
                return await self.next()
            raise item
        if item.ids:
            self._note(index, len(item.ids))
        return index, item, self._submissions[index].cached_tokens

    def _note(self, index: int, tokens: int) -> None:
        """Tokens of a choice have come."""
        now = self._clock()
        last = self._last.get(index)
        if last is not None:
            self._latencies.inter_token.add((now - last) / tokens, tokens)
        elif not self._last:
            self._latencies.first_token.add(now - self._began)
        self._last[index] = now

    def finish(self, index: int, length: int) -> None:
        """The output of a choice ends after `length` tokens."""
        self._ended.add(index)
        self._core.finish(self._submissions[index], length)

    def stop(self) -> None:
        """Have `next` tell that the request was aborted."""
        self.stopped = True
        self._events.put_nowait(None)

    def close(self) -> None:
        """End whatever still runs."""
        self._latencies.whole.add(self._clock() - self._began)
        for submission in self._submissions:
            self._core.abort(submission)
