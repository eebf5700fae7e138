"""A bounded pool of threads for plain bodies that are awaited.

Threads are daemons, begin when there is work, and end when there is none. This module knows no
programs.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable


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
_pools: dict[int, Pool] = {}
"""By process id: a forked child has none of its parent's threads."""


def shared_pool() -> Pool:
    """The process's pool."""
    with _lock:
        pool = _pools.get(os.getpid())
        if pool is None:
            _pools.clear()
            pool = _pools[os.getpid()] = Pool(most_threads())
        return pool
