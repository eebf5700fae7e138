"""Many executions of one program at a time.

A bounded number of threads take the next item when they are done with one; a plain body runs in
such a thread, for a coroutine it only waits. Each body runs exactly once. Results are handed to the
caller's thread. This module knows nothing of arguments and statements.
"""

from __future__ import annotations

import contextvars
import itertools
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from boughs.lang import loop
from boughs.lang.errors import BoughsError, InvalidRequest, located
from boughs.lang.execution import Execution
from boughs.lang.pool import most_threads
from boughs.lang.progress import Progress
from boughs.lang.state import ProgramState
from boughs.lang.usage import Usage

Outcome = ProgramState | BaseException
OnResult = Callable[[int, Outcome], object]

AHEAD = 200
"""How many results may wait for the reader of a generator, at least."""


def run_batch(
    items: Sequence[Any],
    prepare: Callable[[Any], Execution],
    *,
    name: str,
    num_threads: int | str = "auto",
    progress_bar: bool = False,
    generator_style: bool = False,
    return_exceptions: bool = False,
    on_result: OnResult | None = None,
) -> Results | ResultStream:
    """Run `prepare(item)` for each item. `Program.run_batch` says what the arguments mean."""
    if loop.on_loop():
        raise InvalidRequest("run_batch blocks; in an async program gather `run_async` calls")
    batch = _Batch(items, prepare, name, _width(num_threads, len(items)))
    results = _ordered(batch, on_result, progress_bar, return_exceptions, generator_style)
    if generator_style:
        return ResultStream(results, batch.usage)
    outcomes = Results(results)
    outcomes.usage = batch.usage()
    failed = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
    if failed is not None and not return_exceptions:
        failed.results = outcomes  # type: ignore[attr-defined]  # of the user's own classes
        raise failed
    return outcomes


class Results(list[Any]):
    """The states of a batch, in the order of its items, or errors in their places.

    Attributes:
        usage: What all items cost, those that failed among them.
    """

    usage: Usage


class ResultStream(Iterator[Any]):
    """The states of a batch as they come, in the order of its items.

    Nothing runs before the first is asked for. Leaving it early (`close`, or the end of a loop that
    was broken off) cancels what runs.
    """

    def __init__(self, results: Generator[Outcome, None, None], usage: Callable[[], Usage]) -> None:
        self._results = results
        self._usage = usage

    def __next__(self) -> Any:
        return next(self._results)

    @property
    def usage(self) -> Usage:
        """What the items have cost so far, those that run or failed among them."""
        return self._usage()

    def close(self) -> None:
        """Cancel what runs, and end."""
        self._results.close()


def _ordered(
    batch: _Batch,
    on_result: OnResult | None,
    progress_bar: bool,
    return_exceptions: bool,
    generator_style: bool,
) -> Generator[Outcome, None, None]:
    """The outcomes in the order of the items, as they come."""
    waiting: dict[int, Outcome] = {}
    count = len(batch.items)
    ahead = max(AHEAD, 2 * batch.width) if generator_style else count
    shown = Progress(batch.name, count, batch.usage) if progress_bar else nullcontext()
    with batch, shown as bar:
        batch.allow(ahead)
        for at in range(count):
            while at not in waiting:
                i, outcome = batch.next()
                waiting[i] = outcome
                if bar is not None:
                    bar.add(failed=isinstance(outcome, BaseException))
                if on_result is not None:
                    on_result(i, outcome)
            outcome = waiting.pop(at)
            if generator_style and not return_exceptions and isinstance(outcome, BaseException):
                raise outcome
            yield outcome
            batch.allow(1)


class _Batch:
    """Items that are worked off, each once, `width` at a time."""

    def __init__(
        self,
        items: Sequence[Any],
        prepare: Callable[[Any], Execution],
        name: str,
        width: int,
    ) -> None:
        self.items = items
        self.name = name
        self.width = width
        self._prepare = prepare
        self._numbers = itertools.count()
        self._allowed = threading.Semaphore(0)
        self._results: queue.SimpleQueue[tuple[int, Outcome]] = queue.SimpleQueue()
        self._running: set[Execution] = set()
        self._spent = Usage()  # of those that have ended
        self._lock = threading.Lock()
        self._stopped = False
        self._context = contextvars.copy_context()

    def __enter__(self) -> _Batch:
        for number in range(self.width):
            work = self._context.copy().run
            thread = threading.Thread(
                target=work, args=(self._work,), name=f"boughs-batch-{number}", daemon=True
            )
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        self.allow(self.width)
        for execution in self._begun():
            execution.cancel()

    def allow(self, count: int) -> None:
        """Let so many more items be begun."""
        if count:
            self._allowed.release(count)

    def next(self) -> tuple[int, Outcome]:
        """The next item that has ended, and what became of it."""
        while True:
            try:
                return self._results.get(timeout=loop.WAKE_SECONDS)
            except queue.Empty:
                pass  # an interrupt is raised here

    def usage(self) -> Usage:
        """What the items have cost so far; from any thread."""
        with self._lock:
            spent, running = self._spent, tuple(self._running)
        return Usage.total((spent, *(execution.usage() for execution in running)))

    def _begun(self) -> tuple[Execution, ...]:
        with self._lock:
            return tuple(self._running)

    def _work(self) -> None:
        while True:
            self._allowed.acquire()
            i = next(self._numbers)
            if self._stopped or i >= len(self.items):
                self.allow(1)
                return
            self._results.put((i, self._run(i)))

    def _run(self, i: int) -> Outcome:
        try:
            execution = self._prepare(self.items[i])
            with self._lock:
                self._running.add(execution)
            try:
                if self._stopped:
                    execution.cancel()
                return execution.execute()
            finally:
                with self._lock:
                    self._running.discard(execution)
                    self._spent += execution.usage()
        except BaseException as error:  # noqa: BLE001 - it is the item's outcome
            return _placed(error, i)


def _placed(error: BaseException, i: int) -> BaseException:
    """The error with its item: in the message of ours, as a note of others."""
    if isinstance(error, BoughsError):
        return located(error, f"item {i}")
    error.add_note(f"in item {i} of run_batch")
    return error


def _width(num_threads: int | str, count: int) -> int:
    if num_threads == "auto":
        most = most_threads()
    elif isinstance(num_threads, int) and not isinstance(num_threads, bool) and num_threads > 0:
        most = num_threads
    else:
        raise InvalidRequest(
            f"num_threads: expected a number of at least 1 or 'auto', got {num_threads!r:.40}",
            "num_threads",
        )
    return min(most, count)
