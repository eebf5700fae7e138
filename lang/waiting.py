"""Waiting across threads and event loops: a level that rises, and a stream made of it.

The writer is on Boughs's loop; readers are threads and coroutines of any loop. They are woken by
what they wait for, and look up now and then for an interrupt. This module knows no programs.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Generic, TypeVar

from boughs.lang.loop import WAKE_SECONDS

T = TypeVar("T")


class Level:
    """A number that only grows. Any number of waiters, each waits until it reaches theirs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: float = 0
        self._waiters: list[tuple[float, Callable[[], object]]] = []

    @property
    def value(self) -> float:
        """How far it is."""
        return self._value

    def raise_to(self, value: float) -> None:
        """Let it grow to `value` (a smaller one changes nothing), and wake who waited for it."""
        with self._lock:
            if value <= self._value:
                return
            self._value = value
            if not self._waiters:
                return
            due = [wake for target, wake in self._waiters if target <= value]
            if due:
                self._waiters = [waiter for waiter in self._waiters if waiter[0] > value]
        for wake in due:
            wake()

    def wait(self, target: float, until: float = math.inf) -> bool:
        """Block the calling thread until the level is at least `target`; whether it is.

        Args:
            target: The level.
            until: When to give up, on `time.monotonic`'s clock.
        """
        if self._value >= target:
            return True
        reached = threading.Lock()  # cheaper than an event: it is released once, by the writer
        reached.acquire()
        if not self._register(target, reached.release):
            return True
        try:
            while not reached.acquire(
                timeout=min(WAKE_SECONDS, max(until - time.monotonic(), 0.0))
            ):  # an interrupt is raised here
                if time.monotonic() >= until:
                    return self._value >= target
        finally:
            if self._value < target:
                self._forget(reached.release)
        return True

    async def reach(self, target: float) -> None:
        """Await, on any event loop, that the level is at least `target`."""
        if self._value >= target:
            return
        loop = asyncio.get_running_loop()
        reached: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not reached.done():
                reached.set_result(None)

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # its loop has closed: nobody waits any more
                loop.call_soon_threadsafe(finish)

        if not self._register(target, wake):
            return
        try:
            await reached
        finally:
            self._forget(wake)

    def _forget(self, wake: Callable[[], object]) -> None:
        with self._lock:
            self._waiters = [waiter for waiter in self._waiters if waiter[1] != wake]

    def _register(self, target: float, wake: Callable[[], object]) -> bool:
        """Whether there is something to wait for."""
        with self._lock:
            if self._value >= target:
                return False
            self._waiters.append((target, wake))
            return True


class Stream(Generic[T]):
    """Items that come one by one. Every reader sees all of them, however late it comes."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._level = Level()
        self._error: Callable[[], BaseException] | None = None

    @property
    def closed(self) -> bool:
        """Whether nothing will come any more."""
        return self._level.value == math.inf

    def append(self, item: T) -> None:
        """Add an item. Only one thread may write."""
        self._items.append(item)
        self._level.raise_to(len(self._items))

    def close(self, error: Callable[[], BaseException] | None = None) -> None:
        """End the stream; readers that come to its end get the error that `error` makes."""
        if not self.closed:
            self._error = error
            self._level.raise_to(math.inf)

    def read(self) -> Iterator[list[T]]:
        """Batches of items, as they come; blocks the calling thread between them."""
        at = 0
        while True:
            self._level.wait(at + 1)
            items = self._take(at)
            if not items:
                return
            at += len(items)
            yield items

    async def read_async(self) -> AsyncIterator[list[T]]:
        """Batches of items, as they come, on any event loop."""
        at = 0
        while True:
            await self._level.reach(at + 1)
            items = self._take(at)
            if not items:
                return
            at += len(items)
            yield items

    def _take(self, at: int) -> list[T]:
        items = self._items[at:]
        if not items and self._error is not None:
            raise self._error()
        return items
