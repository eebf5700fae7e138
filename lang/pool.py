"""Bounded pools of threads for plain functions that are awaited: bodies and tools.

Threads are daemons, begin when there is work, and end when there is none. This module knows no
programs.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


def most_threads() -> int:
    """How many plain bodies run at the same time, if nobody says otherwise: as in SGLang."""
    return max(96, 16 * (os.cpu_count() or 1))


class Pool:
    """Runs work in at most so many threads, in the order in which it came.

    Args:
        most: Threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque()
        self._threads = 0

    def submit(self, work: Callable[[], object]) -> None:
        """Run `work`, which raises nothing, when a thread is free."""
        with self._lock:
            self._waiting.append(work)
            if self._threads == self._most:
                return
            self._threads += 1
        threading.Thread(target=self._work, name="boughs-pool", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._threads -= 1
                    return
                work = self._waiting.popleft()
            work()


_lock = threading.Lock()
_pools: dict[tuple[int, str], Pool] = {}
"""By process id, for a forked child has none of its parent's threads; and by what they run."""

_in_tool: ContextVar[bool] = ContextVar("boughs_in_tool", default=False)


def shared_pool(what: str = "bodies") -> Pool:
    """The process's pool for bodies, or for tools: a body may wait for a tool."""
    with _lock:
        pool = _pools.get((os.getpid(), what))
        if pool is None:
            pool = _pools[os.getpid(), what] = Pool(most_threads())
        return pool


async def in_thread(function: Callable[[], T]) -> T:
    """What a tool's function returns, in a thread of a bounded pool.

    One that is called inside another has a thread of its own: the other may hold the thread for
    which it would wait.
    """
    future: Future[T] = Future()
    context = contextvars.copy_context()

    def work() -> None:
        if not future.set_running_or_notify_cancel():
            return
        _in_tool.set(True)
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - it is raised where this is awaited
            future.set_exception(error)

    if _in_tool.get():
        threading.Thread(target=context.run, args=(work,), name="boughs-tool", daemon=True).start()
    else:
        shared_pool("tools").submit(lambda: context.run(work))
    return await asyncio.wrap_future(future)
