"""Reads of a state: which statements each waits for, and what it finds then.

Statements may still be to come where the reader is not the program's body. This module runs
nothing and puts nothing into a state.
"""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from boughs.lang.errors import InvalidRequest, NotFound
from boughs.lang.executor import Executor
from boughs.lang.meta import meta_info
from boughs.lang.results import Answer, Chunk


class Reads:
    """What one holder of a state reads.

    Args:
        executor: What runs the state.
        outside: As of `ProgramState`.
    """

    def __init__(self, executor: Executor, *, outside: bool) -> None:
        self._executor = executor
        self._backlog = executor.backlog
        self._outside = outside

    # ---- waiting ----

    def all(self, until: float = math.inf) -> None:
        """Wait for all statements so far, from outside for the program's end."""
        if self._outside:
            self._backlog.announced(math.inf, until)
        self._backlog.wait(self._backlog.submitted, until)

    async def all_async(self) -> None:
        """`all` on any event loop."""
        if self._outside:
            await self._backlog.announced_async(math.inf)
        await self._backlog.reach(self._backlog.submitted)

    def failure(self) -> BaseException | None:
        """What ended the state early, once it has come as far as `all` waits."""
        if self._outside:
            self._backlog.announced(math.inf)
        self._backlog.settle()
        failure = self._backlog.failure
        return None if failure is None else failure.make()

    def reach(self, name: str, until: float = math.inf) -> None:
        """Wait for the statements so far that set a variable."""
        self._backlog.wait(self._ticket(name, until), until)

    async def reach_async(self, name: str) -> None:
        """`reach` on any event loop."""
        await self._backlog.reach(await self._ticket_async(name))

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

    def _check_readable(self, name: str) -> None:
        check_name(name)
        if name in self._executor.open_scopes:
            raise InvalidRequest(
                f"{self._backlog.label}: variable {name!r} is what var_scope is collecting; "
                "read it after the scope",
                "name",
            )

    # ---- values ----

    def value(self, name: str) -> Any:
        """The value of a variable that has been reached.

        Raises:
            NotFound: There is none.
            BoughsError: Why its text is no value of its type.
        """
        failure = self._executor.contents.unread.get(name)
        if failure is not None:
            raise failure.make()
        return self.known(name)

    def known(self, name: str) -> Any:
        """The same, whether or not its text could be read.

        Raises:
            NotFound: There is none.
        """
        variables = self._executor.contents.variables
        if name in variables:
            return variables[name]
        known = ", ".join(map(repr, variables)) or "none"
        raise NotFound(f"{self._backlog.label}: there is no variable {name!r}; known: {known}")

    # ---- text ----

    def text(self) -> str:
        """All text, once all statements so far have run."""
        self.all()
        self._backlog.wait(self._executor.render())
        return self._executor.contents.text()

    async def text_async(self) -> str:
        """`text` on any event loop."""
        await self.all_async()
        await self._backlog.reach(self._executor.render())
        return self._executor.contents.text()

    def pieces(self) -> Iterator[str]:
        """All text, piece by piece."""
        if not self._watches_text():
            yield self.text()
            return
        for pieces in self._executor.text_stream.read():
            yield from pieces

    async def pieces_async(self) -> AsyncIterator[str]:
        """`pieces` on any event loop."""
        if not self._watches_text():
            yield await self.text_async()
            return
        async for pieces in self._executor.text_stream.read_async():
            for piece in pieces:
                yield piece

    def pieces_of(self, name: str) -> Iterator[str]:
        """The text of a variable, piece by piece."""
        self._ticket(name)
        stream = self._backlog.stream_of(name)
        if stream is None:
            self.reach(name)
            yield _as_text(name, self.value(name))
            return
        for chunks in stream.read():
            yield from _texts(chunks)

    async def pieces_of_async(self, name: str, *, meta: bool) -> AsyncIterator[Any]:
        """`pieces_of` on any event loop; with `meta` each with the meta info so far."""
        await self._ticket_async(name)
        stream = self._backlog.stream_of(name)
        if stream is None:
            await self.reach_async(name)
            text = _as_text(name, self.value(name))
            yield (text, self._executor.contents.meta.get(name, {})) if meta else text
            return
        answer = Answer.empty("")
        async for chunks in stream.read_async():
            if not meta:
                for piece in _texts(chunks):
                    yield piece
                continue
            answer.rid = chunks[0].rid
            for chunk in chunks:
                answer.add(chunk)
            yield "".join(chunk.text for chunk in chunks), meta_info(answer)

    def _watches_text(self) -> bool:
        """Whether the caller can wait for the program's end, where the stream of its text ends."""
        if not (self._outside or self._backlog.ended):
            return False
        self._executor.want_text()
        return True


def check_name(name: object) -> None:
    """Refuse what is no variable's name."""
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"a variable's name is a string, got {name!r:.60}", "name")


def deadline(timeout: float | None) -> float:
    """When a read gives up that may take so many seconds, on `time.monotonic`'s clock."""
    if timeout is None:
        return math.inf
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidRequest(f"timeout: expected seconds, at least 0, got {timeout!r:.40}")
    return time.monotonic() + timeout


def _texts(chunks: list[Chunk]) -> Iterator[str]:
    return (chunk.text for chunk in chunks if chunk.text)


def _as_text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise InvalidRequest(
        f"{name}: holds {type(value).__name__}, which cannot be read piece by piece", "var_name"
    )
