"""What can be added to a program's state: texts, statements, and sums of them.

The statements are in `boughs.lang.ir`, and how they are written in a program in
`boughs.lang.primitives`. This module knows no backend and no state.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from boughs.lang.errors import InvalidRequest

if TYPE_CHECKING:
    from boughs.lang.ir import Runner


class Target(Protocol):
    """Where expressions are put: a program's state."""

    def submit(self, *nodes: Node) -> None:
        """Queue nodes, in order."""
        ...


class Expression:
    """What can be added to a state, and to other expressions and text from both sides."""

    __slots__ = ()

    def put(self, target: Target) -> None:
        """Queue what this stands for, in order."""
        raise NotImplementedError

    def __add__(self, other: Expression | str) -> Expression:
        if not isinstance(other, Expression | str):
            return NotImplemented
        return Sum((*terms(self), *terms(other)))

    def __radd__(self, other: Expression | str) -> Expression:
        if not isinstance(other, str):
            return NotImplemented
        return Sum((Text(other), *terms(self)))


@dataclass(frozen=True, slots=True)
class Sum(Expression):
    """Expressions one after the other."""

    terms: tuple[Expression, ...]

    def put(self, target: Target) -> None:
        """Queue all terms; nodes in a row at once, so that who runs them is woken once."""
        nodes: list[Node] = []
        for term in self.terms:
            if isinstance(term, Node):
                nodes.append(term)
                continue
            target.submit(*nodes)
            nodes = []
            term.put(target)
        target.submit(*nodes)


class Node(Expression):
    """One statement."""

    __slots__ = ()

    def put(self, target: Target) -> None:
        """Queue this node."""
        target.submit(self)

    def run(self, runner: Runner) -> Awaitable[None]:
        """Call the method of `runner` that runs this node."""
        raise NotImplementedError

    @property
    def variable(self) -> str | None:
        """The variable that this node sets, if it is known before it runs."""
        return None

    @property
    def streams(self) -> bool:
        """Whether the variable's text comes piece by piece."""
        return False

    @property
    def sets_any(self) -> bool:
        """Whether it sets variables that are known only when it has run."""
        return False


@dataclass(frozen=True, slots=True)
class Text(Node):
    """A string that a program added; the role that it stands in decides what it is.

    In a `user`, `system` or other turn it is content: special tokens in it stay text, so that
    nothing a user sent can end the turn. In an assistant's turn and outside of roles it is the
    author's text, and special tokens in it are parsed.
    """

    text: str

    def run(self, runner: Runner) -> Awaitable[None]:
        """Add the text."""
        return runner.run_text(self)

    def __str__(self) -> str:
        return repr(self.text)


def as_expression(value: object, where: str) -> Expression:
    """The expression that `value`, text or an expression, stands for.

    Raises:
        InvalidRequest: It is neither.
    """
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return Text(value)
    raise InvalidRequest(
        f"{where}: expected text or an expression such as gen(...), got "
        f"{type(value).__name__} {value!r:.60}; use str() to add a value"
    )


def terms(value: Expression | str) -> tuple[Expression, ...]:
    """The expressions that one, or a text, is the sum of."""
    if isinstance(value, str):
        return (Text(value),)
    return value.terms if isinstance(value, Sum) else (value,)
