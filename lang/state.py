"""What a program is given as its first argument: its state.

A thin face of the executor. Statements are queued and return at once; reads wait for the
statements that they need. Plain programs read with `s["x"]`, which blocks their thread; `async
def` programs await `s.get("x")`. This module runs nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from boughs.lang import ir, loop
from boughs.lang.errors import BoughsError, InvalidRequest, Unsupported
from boughs.lang.executor import Executor
from boughs.lang.expression import Expression, Node, as_expression
from boughs.lang.group import ProgramStateGroup
from boughs.lang.loop import on_loop
from boughs.lang.reads import Reads, check_name, deadline
from boughs.lang.requests import PinRequest
from boughs.lang.roles import role, role_begin, role_end
from boughs.lang.usage import Usage
from boughs.lang.view import StateTrace, look


class ProgramState:
    """The state of a program, or of a branch of it.

    Args:
        executor: What runs it.
        outside: Whether the holder is not the program's body but who started it: its reads wait
            for what the body has yet to add.
    """

    def __init__(self, executor: Executor, *, outside: bool = False) -> None:
        self._executor = executor
        self._backlog = executor.backlog
        self._reads = Reads(executor, outside=outside)

    # ---- statements ----

    def submit(self, *nodes: Node) -> None:
        """Queue nodes (expressions call this)."""
        if not self._executor.run.eager:
            self._executor.submit(*nodes)
            return
        for node in nodes:
            self._backlog.wait(self._executor.submit(node))

    def __iadd__(self, other: str | Expression) -> ProgramState:
        as_expression(other, "s +=").put(self)
        return self

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable, in the order of the statements."""
        check_name(name)
        self.submit(ir.SetVariable(name, value))

    __setitem__ = set_var

    def system(self, expr: str | Expression | None = None) -> Any:
        """Add a system message; without an argument a context in which it is written."""
        return self.role("system", expr)

    def user(self, expr: str | Expression | None = None) -> Any:
        """Add a user's message; without an argument a context in which it is written."""
        return self.role("user", expr)

    def assistant(self, expr: str | Expression | None = None) -> Any:
        """Add a message of the assistant; without an argument a context to write it in."""
        return self.role("assistant", expr)

    def role(self, name: str, expr: str | Expression | None = None) -> Any:
        """Add a message of any role; without an argument a context in which it is written."""
        if expr is None:
            return self._role_scope(name)
        role(name, expr).put(self)
        return None

    @contextmanager
    def _role_scope(self, name: str) -> Iterator[None]:
        role_begin(name).put(self)
        try:
            yield
        except BaseException:
            with suppress(BoughsError):  # the first error is the one to be seen
                role_end(name).put(self)
            raise
        role_end(name).put(self)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """The text that is added inside becomes a variable."""
        check_name(name)
        scopes = self._executor.open_scopes
        if name in scopes:
            raise InvalidRequest(f"var_scope: {name!r} is open already", "name")
        self.submit(ir.ScopeBegin(name))
        scopes.add(name)
        try:
            yield
        finally:
            scopes.discard(name)
        self.submit(ir.ScopeEnd(name))

    def pin(self, seconds: float = 600.0) -> None:
        """Keep what the state holds now in the backend's cache, for other runs to come.

        The lease ends with this run, and after so many seconds at the latest. Where requests need
        the memory it is broken: a hint, which never changes an answer.

        Raises:
            InvalidRequest: `seconds` is no number above 0, or above a week.
            Unsupported: At the next read: the backend has no cache.
        """
        PinRequest(prompt="", seconds=seconds).check()
        self.submit(ir.Pin(seconds))

    def fork(self, size: int = 1, position_ids_offset: object = None) -> ProgramStateGroup:
        """Branches that go on from here at the same time, each with a copy of all this holds.

            import boughs

            @boughs.function
            def compare(s):
                s += "Two animals: "
                branches = s.fork(2)
                branches += lambda i: f"{i + 1}." + boughs.gen("animal", max_tokens=4)
                branches.join()
                return s["animal"]

            first, second = compare.run().ret_value

        Args:
            size: How many.
            position_ids_offset: Not supported.
        """
        if position_ids_offset is not None:
            raise Unsupported(
                "position_ids_offset: branches have the positions that their text has",
                "position_ids_offset",
            )
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InvalidRequest(f"size: expected a number of at least 1, got {size!r:.40}", "size")
        branches = self._executor.fork(size)
        if self._executor.run.eager:
            self._backlog.wait(self._backlog.submitted)
        return ProgramStateGroup([ProgramState(branch) for branch in branches], self)

    @contextmanager
    def copy(self, position_ids_offset: object = None) -> Iterator[ProgramState]:
        """A branch that leaves no trace in this state. Its error is raised at the end."""
        branch = self.fork(1, position_ids_offset)[0]
        yield branch
        if not on_loop():  # there, the end of the program waits for it
            branch.sync()
            self._executor.run.drop(branch._executor)

    # ---- reads ----

    def get_var(self, name: str, timeout: float | None = None) -> Any:
        """The value of a variable. Waits until all statements so far that set it have run.

        Args:
            name: The variable.
            timeout: Seconds to wait at most. The program runs on.

        Raises:
            RequestTimeout: It was not there in time.
            NotFound: No statement sets it; the message names the variables that there are.
            Incomplete: It has a type, and `max_tokens` cut its text.
            InvalidValue: It has a type, whose own rules refuse the text.
        """
        self._reads.reach(name, deadline(timeout))
        return self._reads.value(name)

    def __getitem__(self, name: str) -> Any:
        """`get_var`."""
        return self.get_var(name)

    async def get(self, name: str) -> Any:
        """`get_var` for async programs."""
        await self._reads.reach_async(name)
        return self._reads.value(name)

    def raw(self, name: str) -> Any:
        """The text that a typed variable's value was read from (a list where that is one).

        There is one too where the value cannot be read. Of another variable it is the value.
        """
        self._reads.reach(name)
        contents = self._executor.contents
        return contents.raws[name] if name in contents.raws else self._reads.known(name)

    def __contains__(self, name: object) -> bool:
        """Whether a variable is set, once all statements so far have run."""
        self.sync()
        return name in self._executor.contents.variables

    def text(self) -> str:
        """All text, with the marks of the model's template. Waits for all statements so far."""
        return self._reads.text()

    async def get_text(self) -> str:
        """`text` for async programs."""
        return await self._reads.text_async()

    def messages(self) -> list[dict[str, Any]]:
        """The messages that have ended, in OpenAI's form. Waits for all statements so far."""
        self.sync()
        return [dict(message) for message in self._executor.contents.messages]

    def sync(self, timeout: float | None = None) -> None:
        """Wait for all statements so far; raise the first error.

        Where the program runs by itself (`run(stream=True)`), this waits for its end, and so does
        every read that no single statement answers.

        Args:
            timeout: Seconds to wait at most; then `RequestTimeout` is raised. The program runs on.
        """
        self._reads.all(deadline(timeout))

    async def wait(self) -> None:
        """`sync` for async programs: after it, every read returns at once."""
        await self._reads.all_async()

    def cancel(self) -> None:
        """End the program early, all its branches too; from any thread.

        Its requests are aborted. Its body gets `RequestAborted` at its next statement or read, as
        do all readers. A program that has ended stays as it is.
        """
        self._executor.run.cancel()

    def error(self) -> BaseException | None:
        """What ended this state early, if anything did. Waits like `sync`."""
        return self._reads.failure()

    @property
    def ret_value(self) -> Any:
        """What the program's body returned; None while it runs. Waits like `sync`."""
        self.sync()
        return self._executor.run.ret_value

    def get_meta_info(self, name: str) -> Any:
        """What the backend told about the request that made a variable (a list where it is one).

        A variable that no request made has none: `{}`.
        """
        self._reads.reach(name)
        self._reads.known(name)
        return self._executor.contents.meta.get(name, {})

    def choice_probs(self, name: str) -> dict[str, float]:
        """How likely each choice of a `select` is, given that it is one of them."""
        self.get_var(name)
        try:
            return dict(self._executor.contents.probs[name])
        except KeyError:
            why = (
                "no select made this variable, or its backend chose without scoring (an API model)"
            )
            raise InvalidRequest(f"{name}: {why}", "name") from None

    @property
    def usage(self) -> Usage:
        """What all requests of this state cost so far, and those of its branches.

        The program's own state has all of its run. A request counts where it was made: what was
        asked before a fork is its parent's, so the branches' figures add up with the parent's.
        """
        return self._executor.journal.usage()

    def trace(self) -> StateTrace:
        """What happened in this state and its branches so far, to be looked at.

        The text by who wrote it, the requests with their tokens and times, errors in their place.
        It waits for nothing and asks the backend nothing: of a program that runs it shows what is
        there, and a role mark that no request has rendered yet is empty.
        """
        executor = self._executor
        return loop.call(lambda: look(executor.journal, executor.contents))

    def __repr__(self) -> str:
        failed = self._backlog.failure is not None
        condition = "failed" if failed else f"{self._backlog.submitted} statements"
        return f"<ProgramState of {self._backlog.label}: {condition}>"

    # ---- streams ----

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text of a variable, or all text, piece by piece, from its start on.

        All text ends with the program (in the program's own body: with what was added so far).
        Any number may read, at any time. An error is raised where the text breaks off.

            import boughs

            @boughs.function
            def story(s):
                s += "Once upon a time" + boughs.gen("rest")

            for piece in story.run(stream=True).text_iter("rest"):
                print(piece, end="", flush=True)
        """
        if on_loop():
            raise InvalidRequest(
                "text_iter blocks; in an async program write `async for piece in "
                "s.text_async_iter(…)`"
            )
        if var_name is None:
            yield from self._reads.pieces()
        else:
            yield from self._reads.pieces_of(var_name)

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` on any event loop.

        Args:
            var_name: The variable; None is all text.
            return_meta_data: Yield (piece, meta info so far) instead; needs a variable.
        """
        if var_name is None:
            if return_meta_data:
                raise InvalidRequest("return_meta_data: needs a variable", "return_meta_data")
            async for piece in self._reads.pieces_async():
                yield piece
            return
        async for item in self._reads.pieces_of_async(var_name, meta=return_meta_data):
            yield item
