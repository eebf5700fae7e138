"""A request while it runs: its submissions in the core, and what comes of them.

This module knows neither text nor sampling.
"""

from __future__ import annotations

import asyncio

from boughs.lang.errors import BoughsError, RequestTimeout
from boughs.runtime.messages import Output, Submit

from .submission import Submission
from .supervisor import Supervisor


class Running:
    """The submissions of one request.

    Args:
        core: Runs them.
        timeout: Seconds from now after which waiting for more fails.
    """

    def __init__(self, core: Supervisor, timeout: float | None = None) -> None:
        self._core = core
        self._timeout = timeout
        self._deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        self._events: asyncio.Queue[tuple[int, Output | BoughsError] | None] = asyncio.Queue()
        self._submissions: list[Submission] = []

    def submit(self, message: Submit) -> None:
        """Have the core run one more choice; its index is how many there were before."""
        index = len(self._submissions)

        def deliver(item: Output | BoughsError) -> None:
            self._events.put_nowait((index, item))

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
            raise item
        return index, item, self._submissions[index].cached_tokens

    def finish(self, index: int, length: int) -> None:
        """The output of a choice ends after `length` tokens."""
        self._core.finish(self._submissions[index], length)

    def stop(self) -> None:
        """Have `next` tell that the request was aborted."""
        self._events.put_nowait(None)

    def close(self) -> None:
        """End whatever still runs."""
        for submission in self._submissions:
            self._core.abort(submission)
