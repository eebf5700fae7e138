"""One run of a program: what its states share, and how it ends.

This module knows neither how statements run nor what a program is.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from boughs.lang.abilities import Speculating
from boughs.lang.backend import Backend, Pinning
from boughs.lang.cached import Cached
from boughs.lang.errors import RequestAborted, Unsupported
from boughs.lang.failure import Failure
from boughs.lang.lease import Lease
from boughs.lang.loop import background_loop
from boughs.lang.parameters import Defaults
from boughs.lang.reasoning import Watch
from boughs.lang.requests import PinRequest

if TYPE_CHECKING:
    from boughs.lang.executor import Executor


class Run:
    """One run of a program.

    Args:
        program: Its name.
        backend: Who runs its requests.
        defaults: The parameters of `run`.
        spec_tokens: How far an API model's call goes on past a stop; None: not at all.
        eager: Whether each statement is to end before the program goes on.
    """

    def __init__(
        self,
        program: str,
        backend: Backend,
        defaults: Defaults,
        spec_tokens: int | None = None,
        *,
        eager: bool = False,
    ) -> None:
        self.program = program
        self.backend = backend
        self.defaults = defaults
        self.eager = eager
        self.reasoning = Watch(program, backend)
        self._spec_tokens = spec_tokens
        self.ret_value: Any = None
        self._leases: list[Lease] = []
        self._states: dict[Executor, None] = {}  # the program's own first, then open branches
        self._lock = threading.Lock()

    def for_state(self) -> Backend:
        """Who runs the requests of a new state."""
        if self._spec_tokens is not None and isinstance(self.backend, Speculating):
            return self.backend.ahead(self._spec_tokens)
        return self.backend

    def add(self, state: Executor) -> None:
        """Take care of a state."""
        with self._lock:
            self._states[state] = None

    def drop(self, state: Executor) -> None:
        """A branch was joined, and its failure, if any, raised there."""
        with self._lock:
            self._states.pop(state, None)
        state.end()
        state.journal.seal()

    async def pin(self, request: PinRequest) -> None:
        """Take a lease on a prompt, which ends with the run. Returns when it is held.

        Raises:
            Unsupported: The backend has no cache to pin in.
            BoughsError: What the backend raises before the lease is held.
        """
        if not isinstance(self.backend, Pinning):
            asked = self.backend.inner if isinstance(self.backend, Cached) else self.backend
            raise Unsupported(
                f"pin: a {type(asked).__name__} has no cache in which prompts can be kept"
            )
        self._leases.append(await Lease.take(self.backend.pin(request)))

    def finish(self) -> None:
        """Wait for all states and end them, or raise the first failure not seen so far."""
        for state in self._all():
            state.backlog.settle()
        self._end()

    async def finished(self) -> None:
        """Await the same."""
        for state in self._all():
            await state.backlog.settled()
        self._end()

    def fail(self, error: BaseException, where: str | None = None) -> None:
        """End all states early; their requests are aborted, their readers get the error."""
        beside = self.failure()
        if beside is not None and error.__cause__ is not beside.error:
            error.add_note(f"Before that, a request had failed: {beside.make()}")
        for state in self._all():
            state.fail(Failure(error, where))
            state.end()
        self._release()

    def cancel(self) -> None:
        """End all states early, from any thread: the body at its next statement or read."""
        self.fail(RequestAborted("it was cancelled"), f"program {self.program}")

    def failure(self) -> Failure | None:
        """The first failure that the program has not seen; its own state's in any case."""
        root, *branches = self._all()
        failures = [state.backlog.failure for state in branches if not state.backlog.observed]
        failures.append(root.backlog.failure)
        found = [failure for failure in failures if failure is not None]
        return min(found, key=lambda failure: failure.order, default=None)

    def _end(self) -> None:
        failure = self.failure()
        if failure is not None:
            raise failure.make()
        for state in self._all():
            state.end()
        self._release()

    def _release(self) -> None:
        """Give back all leases."""
        for lease in self._leases:
            background_loop().call_soon_threadsafe(lease.release)

    def _all(self) -> list[Executor]:
        with self._lock:
            return list(self._states)
