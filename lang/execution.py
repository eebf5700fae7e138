"""One execution of a program's body: in the caller's thread, in one of its own, or on the loop.

This module knows neither how arguments are told from parameters nor how statements run.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from boughs.lang import loop
from boughs.lang.current import body_of
from boughs.lang.errors import RequestAborted
from boughs.lang.executor import Executor
from boughs.lang.state import ProgramState
from boughs.lang.usage import Usage


class Execution:
    """A program that is about to run.

    Args:
        executor: The new state that it runs on.
        body: The function that the program decorates.
        args: Its positional arguments after the state.
        kwargs: Its other arguments.
    """

    def __init__(
        self,
        executor: Executor,
        body: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._body = body
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
            with body_of(self._run.backend):
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
            with body_of(self._run.backend):
                self._run.ret_value = await self._body(self._inner, *self._args, **self._kwargs)
            await self._run.finished()
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._settle()
        return self.state

    def start(self) -> ProgramState:
        """Let the program run by itself; its errors reach those who read its state.

        It ends early where nobody holds this state any more, nor reads it.
        """
        state, self.state = self.state, self._inner  # what runs does not hold what is given away
        self._dropped = weakref.finalize(state, self._unread)
        self._dropped.atexit = False
        if self.is_async:
            loop.submit(self.execute_async())
            return state
        context = contextvars.copy_context()
        name = f"boughs-{self._run.program}"
        threading.Thread(target=context.run, args=(self._quietly,), name=name, daemon=True).start()
        return state

    def usage(self) -> Usage:
        """What it has cost so far."""
        return self.state.usage

    def cancel(self) -> None:
        """End the program early, from any thread."""
        self._run.fail(RequestAborted("it was cancelled"), f"program {self._run.program}")

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
