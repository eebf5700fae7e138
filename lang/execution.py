"""One execution of a program's body: in the caller's thread, in one of its own, or on the loop.

This module knows neither how arguments are told from parameters nor how statements run.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from boughs.lang import loop
from boughs.lang.current import body_of, inside_program
from boughs.lang.errors import RequestAborted, RequestTimeout
from boughs.lang.executor import Executor
from boughs.lang.pool import shared_pool
from boughs.lang.state import ProgramState
from boughs.lang.usage import Usage


class Execution:
    """A program that is about to run.

    Args:
        executor: The new state that it runs on.
        body: The function that the program decorates.
        args: Its positional arguments after the state.
        kwargs: Its other arguments.
        max_seconds: How long it may run; None is without a limit.
    """

    def __init__(
        self,
        executor: Executor,
        body: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        max_seconds: float | None = None,
    ) -> None:
        self._body = body
        self._max_seconds = max_seconds
        self._args = args
        self._kwargs = kwargs
        self._run = executor.run
        self._run.add(executor)
        self.state = ProgramState(executor, outside=True)
        self._inner = ProgramState(executor)
        self.is_async = inspect.iscoroutinefunction(body)
        self._dropped: weakref.finalize[..., ProgramState] | None = None

    def execute(self) -> ProgramState:
        """Run the program to its end; a plain body runs in the calling thread.

        Raises:
            BaseException: What the body raised, or the first failure that it has not seen.
        """
        if self.is_async:
            return loop.run(self.execute_async())
        try:
            self._require_wanted()
            with body_of(self._run.backend), self._limited():
                result = self._body(self._inner, *self._args, **self._kwargs)
                self._run.ret_value = loop.run(result) if inspect.iscoroutine(result) else result
                self._run.finish()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._settle()
        return self.state

    async def execute_async(self) -> ProgramState:
        """Run a program whose body is a coroutine; on the loop."""
        try:
            self._require_wanted()
            with body_of(self._run.backend), self._limited():
                self._run.ret_value = await self._within(
                    self._body(self._inner, *self._args, **self._kwargs)
                )
                await self._run.finished()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._settle()
        return self.state

    def start(self, *, pooled: bool = False) -> ProgramState:
        """Let the program run by itself; its errors reach those who read its state.

        It ends early where nobody holds this state any more, nor reads it.

        Args:
            pooled: Whether a plain body waits for a thread of the bounded pool. One that another
                body starts never does: that body may hold the thread for which it would wait.
        """
        state, self.state = self.state, self._inner  # what runs does not hold what is given away
        self._dropped = weakref.finalize(state, self._unread)
        self._dropped.atexit = False
        if self.is_async:
            loop.submit(self.execute_async())
            return state
        context = contextvars.copy_context()
        if pooled and not inside_program():
            shared_pool().submit(lambda: context.run(self._quietly))
            return state
        name = f"boughs-{self._run.program}"
        threading.Thread(target=context.run, args=(self._quietly,), name=name, daemon=True).start()
        return state

    def usage(self) -> Usage:
        """What it has cost so far."""
        return self.state.usage

    def cancel(self) -> None:
        """End the program early, from any thread."""
        self._run.cancel()

    async def _within(self, body: Awaitable[Any]) -> Any:
        """What a coroutine returns; it is cancelled when the time is over."""
        limit = asyncio.timeout(self._max_seconds)
        try:
            async with limit:
                return await body
        except TimeoutError:
            if limit.expired():
                self._expire()
                self._require_wanted()
            raise

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        """The block in which a body runs, and all that it asked for; it ends when the time is over.

        A plain body gets the error at its next statement or read.
        """
        seconds = self._max_seconds
        if seconds is None:
            yield
            return
        timers: list[asyncio.TimerHandle] = []
        ours = loop.background_loop()
        ours.call_soon_threadsafe(lambda: timers.append(ours.call_later(seconds, self._expire)))

        def end() -> None:
            timers[0].cancel()  # it was begun before

        try:
            yield
        finally:
            ours.call_soon_threadsafe(end)

    def _expire(self) -> None:
        error = RequestTimeout(f"max_seconds: it had not ended after {self._max_seconds:g} s")
        self._run.fail(error, f"program {self._run.program}")

    def _require_wanted(self) -> None:
        """Do not begin what was cancelled before."""
        failure = self._run.failure()
        if failure is not None:
            raise failure.make()

    def _unread(self) -> None:
        """Called wherever a state is collected, so it takes no locks."""
        loop.background_loop().call_soon_threadsafe(self.cancel)

    def _settle(self) -> None:
        if self._dropped is not None:
            self._dropped.detach()

    def _quietly(self) -> None:
        with contextlib.suppress(BaseException):  # its state has it, and gives it to its readers
            self.execute()

    def _fail(self, error: BaseException) -> None:
        """Give an error of the body to the readers of its states."""
        if isinstance(error, Exception):
            self._run.fail(error)
        else:  # an interrupt or a cancellation is the caller's; readers get an error of ours
            kind = type(error).__name__
            self._run.fail(
                RequestAborted(f"it was ended by {kind}"), f"program {self._run.program}"
            )
