"""Threads that compute tasks together with the thread that asks for it.

Whoever is free takes the next task, so that a thread that was late or lost its core does less.
This module knows nothing of what the tasks are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

T = TypeVar("T")


class Workers:
    """A pool for work that holds no GIL. It waits without turning, and starts threads when needed.

    Args:
        threads: How many compute, the calling one included.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="kernels")

    def run(self, work: Callable[[T], None], tasks: Iterable[T]) -> None:
        """Call `work` once with each task; return when all have ended.

        Raises:
            Exception: What a call raised, after all threads have stopped.
        """
        tasks = list(tasks)
        pending = iter(tasks)  # of a list: taking the next one is atomic
        helpers = min(self.threads, len(tasks)) - 1
        futures = [self._pool.submit(_drain, work, pending) for _ in range(helpers)]
        try:
            _drain(work, pending)
        finally:
            wait(futures)  # all of them, before the first error is raised
            for future in futures:
                future.result()


def _drain(work: Callable[[T], None], pending: Iterator[T]) -> None:
    for task in pending:
        work(task)
