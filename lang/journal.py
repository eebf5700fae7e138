"""What happens in a state, noted as it happens: its requests, its forks, what ended it.

`state.trace()` and `state.usage` are made of it. It holds figures and no prompts, and lets go of a
branch's contents when the branch is joined. This module knows not how statements run, and shows
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from boughs.lang.backlog import Backlog
from boughs.lang.call import Author, Call, CallKind
from boughs.lang.contents import Contents
from boughs.lang.failure import Failure
from boughs.lang.usage import Usage


@dataclass(eq=False)
class Forked:
    """Branches that began in a state.

    Attributes:
        at: How many pieces of text the state had.
        branches: What happens in them.
        joined: How they were joined, once they were.
    """

    at: int
    branches: tuple[Journal, ...]
    joined: str | None = None


class Journal:
    """What happened in one state so far.

    Args:
        backlog: The state's.
        contents: The state's.

    Attributes:
        began: When, by `time.perf_counter`.
        ended: When nothing could be added any more; None until then.
        calls: Its requests, in order.
        forks: Where branches began, in order.
        own_failure: That of a statement of its own.
    """

    def __init__(self, backlog: Backlog, contents: Contents) -> None:
        self._backlog = backlog
        self.began = time.perf_counter()
        self.ended: float | None = None
        self.calls: list[Call] = []
        self.forks: list[Forked] = []
        self.own_failure: Failure | None = None
        self._contents: Contents | None = contents
        self._kept: tuple[list[str], list[Author]] = ([], [])
        self._start = 0

    def begin(self, contents: Contents) -> None:
        """A branch has come to its begin, with these contents."""
        self._contents = contents
        self.began = time.perf_counter()

    def call(self, kind: CallKind, name: str | None, rid: str) -> Call:
        """Note a request that is about to be made."""
        call = Call(kind, name, rid)
        self.calls.append(call)
        return call

    def fork(self, at: int, branches: Sequence[Journal]) -> None:
        """Note branches."""
        self.forks.append(Forked(at, tuple(branches)))

    def join(self, branches: Sequence[Journal], mode: str) -> None:
        """Note that these branches were joined."""
        for forked in reversed(self.forks):
            if forked.branches == tuple(branches):
                forked.joined = mode
                return

    def end(self) -> None:
        """Nothing more will be added."""
        if self.ended is None:
            self.ended = time.perf_counter()

    def seal(self) -> None:
        """Keep the branch's own text, and let go of what else its contents hold."""
        if self._contents is not None:
            self._kept, self._start = self.own(), self.start
            self._contents = None

    def own(self) -> tuple[list[str], list[Author]]:
        """The pieces of text since the state began, and who wrote each."""
        if self._contents is None:
            return self._kept
        contents = self._contents
        shown = contents.shown[self.start :]
        return shown, contents.authors[self.start :]

    @property
    def start(self) -> int:
        """How many pieces of text it began with."""
        if self._contents is None:
            return self._start
        return 0 if self._contents.origin is None else self._contents.origin.shown

    @property
    def label(self) -> str:
        """What errors call the state."""
        return self._backlog.label

    @property
    def failure(self) -> Failure | None:
        """What ended it early."""
        return self._backlog.failure

    @property
    def owns_failure(self) -> bool:
        """Whether that was a statement of its own."""
        return self.own_failure is not None and self.own_failure is self.failure

    @property
    def seconds(self) -> float:
        """From its begin to its end, or to now."""
        return (time.perf_counter() if self.ended is None else self.ended) - self.began

    @property
    def blames_branch(self) -> bool:
        """Whether a statement of one of its branches, or of theirs, is what ended it."""
        if self.failure is None or self.owns_failure:
            return False
        error = self.failure.error  # the body's own may be the one that a read of the branch raised
        return any(
            branch.failure is not None
            and branch.failure.error in (error, error.__cause__)
            and (branch.owns_failure or branch.blames_branch)
            for forked in self.forks
            for branch in forked.branches
        )

    def usage(self) -> Usage:
        """What its requests cost so far, and those of its branches."""
        own = [call.so_far() for call in tuple(self.calls)]
        inner = [branch.usage() for forked in tuple(self.forks) for branch in forked.branches]
        return Usage.total((*own, *inner))
