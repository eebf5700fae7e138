"""Threads that compute tasks together with the thread that asks for it.

Whoever is free takes the next task, so that a thread that was late or lost its core does less.
Waking a thread through a queue costs some 20 microseconds; futures cost three times as much. This
module knows nothing of what the tasks are.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

Errand = tuple[Callable[[Any], None], Iterator[Any], "SimpleQueue[BaseException | None]"]
"""What to call, with which tasks, and where to say that no task is left, or what was raised."""


class Workers:
    """Threads for work that holds no GIL. They wait asleep, and end when the object does.

    Several threads may ask at the same time.

    Args:
        threads: How many compute, the asking one included.

    Raises:
        ValueError: Less than one.
    """

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise ValueError(f"at least one thread must compute, got {threads}")
        self.threads = threads
        self._errands: SimpleQueue[Errand | None] = SimpleQueue()
        for number in range(1, threads):
            threading.Thread(
                target=_serve, args=(self._errands,), name=f"kernels-{number}", daemon=True
            ).start()
        weakref.finalize(self, _end, self._errands, threads - 1)

    def run(self, work: Callable[[Any], None], tasks: Iterable[Any]) -> None:
        """Call `work` once with each task; return when all have ended.

        Raises:
            BaseException: The first that a call raised. Tasks that nobody had begun are left out.
        """
        tasks = list(tasks)
        pending = iter(tasks)  # of a list: taking the next one is atomic
        done: SimpleQueue[BaseException | None] = SimpleQueue()
        helpers = min(self.threads, len(tasks)) - 1
        for _ in range(helpers):
            self._errands.put((work, pending, done))
        _drain(work, pending, done)
        errors = [error for _ in range(helpers + 1) if (error := done.get()) is not None]
        if errors:
            raise errors[0]

    def invite(self, work: Callable[[Any], None]) -> None:
        """Have each other thread call `work` once, with None, when it comes to it; return at once.

        `work` must neither raise nor rely on being called in time.
        """
        for _ in range(1, self.threads):
            self._errands.put((work, iter((None,)), SimpleQueue()))


def _drain(
    work: Callable[[Any], None],
    pending: Iterator[Any],
    done: SimpleQueue[BaseException | None],
) -> None:
    error = None
    try:
        for task in pending:
            work(task)
    except BaseException as raised:  # noqa: BLE001 -- is raised again where the work was asked for
        error = raised
        for _ in pending:
            pass  # nobody begins another
    done.put(error)


def _serve(errands: SimpleQueue[Errand | None]) -> None:
    while (errand := errands.get()) is not None:
        _drain(*errand)
        del errand  # holds tensors until the next one otherwise


def _end(errands: SimpleQueue[Errand | None], threads: int) -> None:
    for _ in range(threads):
        errands.put(None)
