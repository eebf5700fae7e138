"""What a program is given as its first argument: its state.

A thin face of the executor. Statements are queued and return at once; reads wait for the
statements that they need. Plain programs read with `s["x"]`, which blocks their thread; `async
def` programs await `s.get("x")`. This module runs nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from boughs.lang import ir, loop
from boughs.lang.errors import BoughsError, InvalidRequest, NotFound, Unsupported
from boughs.lang.executor import Executor
from boughs.lang.group import ProgramStateGroup
from boughs.lang.loop import on_loop
from boughs.lang.meta import meta_info
from boughs.lang.requests import PinRequest
from boughs.lang.results import Answer, Chunk
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
        self._outside = outside

    # ---- statements ----

    def submit(self, *nodes: ir.Node) -> None:
        """Queue nodes (expressions call this)."""
        if not self._executor.run.eager:
            self._executor.submit(*nodes)
            return
        for node in nodes:
            self._backlog.wait(self._executor.submit(node))

    def __iadd__(self, other: str | ir.Expression) -> ProgramState:
        ir.as_expression(other, "s +=").put(self)
        return self

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable, in the order of the statements."""
        self._check_name(name)
        self.submit(ir.SetVariable(name, value))

    __setitem__ = set_var

    def system(self, expr: str | ir.Expression | None = None) -> Any:
        """Add a system message; without an argument a context in which it is written."""
        return self.role("system", expr)

    def user(self, expr: str | ir.Expression | None = None) -> Any:
        """Add a user's message; without an argument a context in which it is written."""
        return self.role("user", expr)

    def assistant(self, expr: str | ir.Expression | None = None) -> Any:
        """Add a message of the assistant; without an argument a context to write it in."""
        return self.role("assistant", expr)

    def role(self, name: str, expr: str | ir.Expression | None = None) -> Any:
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
        self._check_name(name)
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
        until = _until(timeout)
        self._backlog.wait(self._ticket(name, until), until)
        return self._value(name)

    def __getitem__(self, name: str) -> Any:
        """`get_var`."""
        return self.get_var(name)

    async def get(self, name: str) -> Any:
        """`get_var` for async programs."""
        await self._backlog.reach(await self._ticket_async(name))
        return self._value(name)

    def raw(self, name: str) -> Any:
        """The text that a typed variable's value was read from (a list where that is one).

        There is one too where the value cannot be read. Of another variable it is the value.
        """
        self._backlog.wait(self._ticket(name))
        contents = self._executor.contents
        return contents.raws[name] if name in contents.raws else self._known(name)

    def __contains__(self, name: object) -> bool:
        """Whether a variable is set, once all statements so far have run."""
        self.sync()
        return name in self._executor.contents.variables

    def text(self) -> str:
        """All text, with the marks of the model's template. Waits for all statements so far."""
        self.sync()
        self._backlog.wait(self._executor.render())
        return self._executor.contents.text()

    async def get_text(self) -> str:
        """`text` for async programs."""
        await self.wait()
        await self._backlog.reach(self._executor.render())
        return self._executor.contents.text()

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
        until = _until(timeout)
        if self._outside:
            self._backlog.announced(math.inf, until)
        self._backlog.wait(self._backlog.submitted, until)

    async def wait(self) -> None:
        """`sync` for async programs: after it, every read returns at once."""
        if self._outside:
            await self._backlog.announced_async(math.inf)
        await self._backlog.reach(self._backlog.submitted)

    def cancel(self) -> None:
        """End the program early, all its branches too; from any thread.

        Its requests are aborted. Its body gets `RequestAborted` at its next statement or read, as
        do all readers. A program that has ended stays as it is.
        """
        self._executor.run.cancel()

    def error(self) -> BaseException | None:
        """What ended this state early, if anything did. Waits like `sync`."""
        if self._outside:
            self._backlog.announced(math.inf)
        self._backlog.settle()
        failure = self._backlog.failure
        return None if failure is None else failure.make()

    @property
    def ret_value(self) -> Any:
        """What the program's body returned; None while it runs. Waits like `sync`."""
        self.sync()
        return self._executor.run.ret_value

    def get_meta_info(self, name: str) -> Any:
        """What the backend told about the request that made a variable (a list where it is one).

        A variable that no request made has none: `{}`.
        """
        self._backlog.wait(self._ticket(name))
        self._known(name)
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
            yield from self._all_text()
            return
        self._ticket(var_name)
        stream = self._backlog.stream_of(var_name)
        if stream is None:
            yield _as_text(var_name, self.get_var(var_name))
            return
        for chunks in stream.read():
            yield from _pieces(chunks)

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
            async for piece in self._all_text_async():
                yield piece
            return
        await self._ticket_async(var_name)
        stream = self._backlog.stream_of(var_name)
        if stream is None:
            text = _as_text(var_name, await self.get(var_name))
            meta = self._executor.contents.meta.get(var_name, {})
            yield (text, meta) if return_meta_data else text
            return
        answer = Answer.empty("")
        async for chunks in stream.read_async():
            if not return_meta_data:
                for piece in _pieces(chunks):
                    yield piece
                continue
            answer.rid = chunks[0].rid
            for chunk in chunks:
                answer.add(chunk)
            yield "".join(chunk.text for chunk in chunks), meta_info(answer)

    def _all_text(self) -> Iterator[str]:
        if not self._watches_text():
            yield self.text()
            return
        for pieces in self._executor.text_stream.read():
            yield from pieces

    async def _all_text_async(self) -> AsyncIterator[str]:
        if not self._watches_text():
            yield await self.get_text()
            return
        async for pieces in self._executor.text_stream.read_async():
            for piece in pieces:
                yield piece

    def _watches_text(self) -> bool:
        """Whether the caller can wait for the program's end, where the stream of its text ends."""
        if not (self._outside or self._backlog.ended):
            return False
        self._executor.want_text()
        return True

    # ---- waiting for a variable's statement ----

    def _ticket(self, name: str, until: float = math.inf) -> int:
        """The statement that makes a variable; the last one if none does."""
        while True:
            ticket, count = self._look_for(name)
            if ticket is None:
                self._backlog.announced(count, until)
            elif count == 0:
                return ticket
            else:
                self._backlog.wait(ticket, until)

    async def _ticket_async(self, name: str) -> int:
        while True:
            ticket, count = self._look_for(name)
            if ticket is None:
                await self._backlog.announced_async(count)
            elif count == 0:
                return ticket
            else:
                await self._backlog.reach(ticket)

    def _look_for(self, name: str) -> tuple[int | None, int]:
        """The ticket for a variable, and 0; or how many statements must be put before it can be.

        Both where the statement of the ticket, a join, may set it, or one that is still to come.
        """
        self._check_readable(name)
        ended = self._backlog.ended or self._backlog.failure is not None or not self._outside
        submitted = self._backlog.submitted
        ticket = self._backlog.ticket(name)
        if ticket is None and name in self._executor.contents.variables:
            ticket = 0  # joined, or there when the branch began
        elif ticket is not None and not (ended or self._backlog.sets(name)):
            return ticket, submitted + 1
        if ticket is None and ended:
            ticket = submitted
        return ticket, 0 if ticket is not None else submitted + 1

    # ---- checks ----

    def _value(self, name: str) -> Any:
        failure = self._executor.contents.unread.get(name)
        if failure is not None:
            raise failure.make()
        return self._known(name)

    def _known(self, name: str) -> Any:
        variables = self._executor.contents.variables
        if name in variables:
            return variables[name]
        known = ", ".join(map(repr, variables)) or "none"
        raise NotFound(f"{self._backlog.label}: there is no variable {name!r}; known: {known}")

    def _check_readable(self, name: str) -> None:
        self._check_name(name)
        if name in self._executor.open_scopes:
            raise InvalidRequest(
                f"{self._backlog.label}: variable {name!r} is what var_scope is collecting; "
                "read it after the scope",
                "name",
            )

    @staticmethod
    def _check_name(name: object) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"a variable's name is a string, got {name!r:.60}", "name")


def _until(timeout: float | None) -> float:
    """When a read gives up, on `time.monotonic`'s clock."""
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidRequest(f"timeout: expected seconds, at least 0, got {timeout!r:.40}")
    return time.monotonic() + timeout


def _pieces(chunks: list[Chunk]) -> Iterator[str]:
    return (chunk.text for chunk in chunks if chunk.text)


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise InvalidRequest(
        f"{name}: holds {type(value).__name__}, which cannot be read piece by piece", "var_name"
    )
