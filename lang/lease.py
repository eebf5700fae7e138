"""A lease on a cached prompt, kept by a task of its own until it is given back.

This module knows no backend: what it keeps is the iterator that a backend gave.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Self

from boughs.lang.results import LeaseState


class Lease:
    """A lease that is held.

    Attributes:
        state: How it does now.
    """

    def __init__(self) -> None:
        self.state = LeaseState(state="held", tokens=0)
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def take(cls, states: AsyncIterator[LeaseState]) -> Self:
        """Iterate over what `Pinning.pin` gave; returns when the lease is held.

        Raises:
            BoughsError: What the backend raises before that. A lease that is lost later costs time
                and no answer: whoever needs the backend then is told by it.
        """
        lease = cls()
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        lease._task = asyncio.create_task(lease._keep(states, begun))
        try:
            await begun
        except asyncio.CancelledError:
            lease.release()
            raise
        return lease

    def release(self) -> None:
        """Give it back; on the loop."""
        if self._task is not None:
            self._task.cancel()

    async def ended(self, seconds: float) -> bool:
        """Whether it has ended, at the latest after so many seconds."""
        assert self._task is not None, "a lease is taken"
        return bool((await asyncio.wait([self._task], timeout=seconds))[0])

    async def released(self) -> None:
        """Give it back, and wait until it is."""
        self.release()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _keep(self, states: AsyncIterator[LeaseState], begun: asyncio.Future[None]) -> None:
        try:
            async for self.state in states:
                if not begun.done():
                    begun.set_result(None)
        except Exception as error:  # noqa: BLE001 - it reaches whoever takes the lease
            if not begun.done():
                begun.set_exception(error)
        finally:
            if isinstance(states, AsyncGenerator):
                await states.aclose()
