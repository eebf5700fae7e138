"""The branches of a fork, as a group.

This module runs nothing and knows no backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from boughs.lang import ir
from boughs.lang.errors import InvalidRequest
from boughs.lang.expression import Expression, as_expression
from boughs.lang.loop import on_loop

if TYPE_CHECKING:
    from boughs.lang.state import ProgramState

Addition = str | Expression


class ProgramStateGroup:
    """The branches of a fork. Index it, iterate over it, add to all of them, join it."""

    def __init__(self, states: list[ProgramState], parent: ProgramState) -> None:
        self._states = states
        self._parent = parent

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, i: int) -> ProgramState:
        return self._states[i]

    def __setitem__(self, i: int, value: ProgramState) -> None:
        if value is not self._states[i]:  # `group[i] += x` ends here with the branch itself
            raise InvalidRequest("a branch of a group cannot be replaced")

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    def __iadd__(
        self, other: Addition | Sequence[Addition] | Callable[[int], Addition]
    ) -> ProgramStateGroup:
        """Add the same to every branch, an item of a list to each, or a function of its index."""
        for i, (state, addition) in enumerate(zip(self._states, self._spread(other), strict=True)):
            as_expression(addition, f"branch {i}").put(state)
        return self

    def _spread(
        self, other: Addition | Sequence[Addition] | Callable[[int], Addition]
    ) -> Sequence[Addition]:
        if isinstance(other, str | Expression):
            return [other] * len(self)
        if isinstance(other, Sequence):
            if len(other) != len(self):
                raise InvalidRequest(f"{len(other)} additions for {len(self)} branches")
            return other
        if callable(other):
            return [other(i) for i in range(len(self))]
        raise InvalidRequest(
            "group +=: expected text, an expression, a list of them or a function of the index, "
            f"got {type(other).__name__} {other!r:.60}"
        )

    def join(self, mode: ir.JoinMode = "gather_variable") -> None:
        """Wait for the branches, and take their variables over into the parent.

        Each variable that any branch has set since the fork becomes a list with one entry a
        branch, in order: the branch's value, which is None where it has none. The meta info is
        joined likewise. With `concate_and_append` the branches' texts are appended to the parent
        too.

        In a plain program a branch's error is raised here; in an async program, where nothing
        may block, joining is queued and the error is that of the parent.
        """
        if mode not in get_args(ir.JoinMode):
            raise InvalidRequest(
                f"mode: expected one of {get_args(ir.JoinMode)}, got {mode!r:.40}", "mode"
            )
        parent = self._parent._executor
        branches = [state._executor for state in self._states]
        tickets = tuple((branch, branch.backlog.submitted) for branch in branches)
        if on_loop():
            parent.submit(ir.Join(tickets, mode))
            return
        for branch, ticket in tickets:
            branch.backlog.settle(ticket)
            branch.backlog.observed = True
        for branch in branches:
            branch.backlog.raise_failure()
        parent.backlog.wait(parent.submit(ir.Join(tickets, mode)))
