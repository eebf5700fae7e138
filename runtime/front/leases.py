"""Leases on cached prefixes that a core holds for the front's callers.

A lease ends with its caller. One that is lost with its core is taken again on the next one, for
which the prompt is computed again. This module knows neither text nor pages.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from boughs.lang.results import LeaseState
from boughs.runtime.messages import LeaseEnded

Ended = asyncio.Future[Literal["expired", "broken", "lost"]]
"""How a lease ended by itself; it is lost when the core dies that holds it, or is to take it."""


class Leases:
    """The leases of one supervisor.

    Args:
        unpin: Tells the core that a lease (`{"lease": number}`) has ended.
    """

    def __init__(self, unpin: Callable[[dict[str, Any]], None]) -> None:
        self._unpin = unpin
        self._numbers = itertools.count(1)
        self._held: dict[int, Ended] = {}

    def __len__(self) -> int:
        return len(self._held)

    @contextmanager
    def lease(self) -> Iterator[tuple[int, Ended]]:
        """A number for a lease, and its end. It is given back with the block."""
        number = next(self._numbers)
        ended: Ended = asyncio.get_running_loop().create_future()
        self._held[number] = ended
        try:
            yield number, ended
        finally:
            held = self._held.pop(number, None) is not None
            # A lost one may have been taken since, by a core that came after the one that died.
            if held or (ended.done() and ended.result() == "lost"):
                self._unpin({"lease": number})

    def end(self, message: LeaseEnded) -> None:
        """The core says that a lease has ended by itself."""
        state: Literal["expired", "broken"] = "broken" if message.state == "broken" else "expired"
        self._set(self._held.pop(message.lease, None), state)

    def lose(self) -> None:
        """The core has died."""
        held, self._held = self._held, {}
        for ended in held.values():
            self._set(ended, "lost")

    @staticmethod
    def _set(ended: Ended | None, state: Literal["expired", "broken", "lost"]) -> None:
        if ended is not None and not ended.done():
            ended.set_result(state)


Call = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""Calls a method of the core with arguments."""


async def keep(
    leases: Leases,
    call: Call,
    compute: Callable[[], Awaitable[None]],
    *,
    ids: list[int],
    namespace: str,
    seconds: float,
) -> AsyncGenerator[LeaseState, None]:
    """The states of a lease, from the first hold to its end; closing the iterator ends it.

    Args:
        leases: Where it is entered.
        call: Calls the core.
        compute: Has the prompt in the cache when it returns.
        ids: The prompt.
        namespace: In which it is cached.
        seconds: From now on.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    while True:
        with leases.lease() as (number, ended):
            await compute()
            left = until - clock()
            if left <= 0:
                break
            args = {"lease": number, "tokens": ids, "namespace": namespace, "seconds": left}
            tokens = await call("pin", args)
            if not ended.done():
                yield LeaseState(state="held", tokens=tokens)
                await asyncio.wait([ended], timeout=until - clock())
            state = ended.result() if ended.done() else "expired"
        if state != "lost":
            yield LeaseState(state=state, tokens=0)
            return
    yield LeaseState(state="expired", tokens=0)
