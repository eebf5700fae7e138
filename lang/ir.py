"""The nodes of a program: what a statement such as `s += "Q: " + gen("answer")` puts into a state.

Nodes are frozen, and each names the one method of a `Runner` that runs it (that of `tool_turns` is
made of several). They know no backend and no state; how they are written in a program (with all
checks) is in `boughs.lang.primitives`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from boughs.lang.choices import ChoicesSamplingMethod
from boughs.lang.expression import Node, Text
from boughs.lang.typed import Typed

JoinMode = Literal["gather_variable", "concate_and_append"]


class Runner(Protocol):
    """Runs nodes, one method a kind."""

    def run_text(self, node: Text) -> Awaitable[None]: ...  # noqa: D102 - the node says it
    def run_content(self, node: Content) -> Awaitable[None]: ...  # noqa: D102
    def run_image(self, node: Image) -> Awaitable[None]: ...  # noqa: D102
    def run_role_begin(self, node: RoleBegin) -> Awaitable[None]: ...  # noqa: D102
    def run_role_end(self, node: RoleEnd) -> Awaitable[None]: ...  # noqa: D102
    def run_tool_message(self, node: ToolMessage) -> Awaitable[None]: ...  # noqa: D102
    def run_gen(self, node: Gen) -> Awaitable[None]: ...  # noqa: D102
    def run_select(self, node: Select) -> Awaitable[None]: ...  # noqa: D102
    def run_set(self, node: SetVariable) -> Awaitable[None]: ...  # noqa: D102
    def run_scope_begin(self, node: ScopeBegin) -> Awaitable[None]: ...  # noqa: D102
    def run_scope_end(self, node: ScopeEnd) -> Awaitable[None]: ...  # noqa: D102
    def run_fork(self, node: Fork) -> Awaitable[None]: ...  # noqa: D102
    def run_join(self, node: Join) -> Awaitable[None]: ...  # noqa: D102
    def run_pin(self, node: Pin) -> Awaitable[None]: ...  # noqa: D102
    def run_render(self, node: Render) -> Awaitable[None]: ...  # noqa: D102

    # What a node that is made of others is made of, beside their methods.

    def holds(self, text: str) -> bool: ...  # noqa: D102
    def add_message(self, role: str, text: str) -> Awaitable[None]: ...  # noqa: D102
    def take_turn(self, node: Gen) -> Awaitable[Any]: ...  # noqa: D102


class Splitter(Protocol):
    """Tells a model's reasoning from its answer."""

    def split(self, text: str) -> tuple[str, str]:
        """The one and the other."""
        ...


class PartReader(Protocol):
    """Tells the named parts of a text."""

    @property
    def names(self) -> tuple[str, ...]:
        """The variables that they become."""
        ...

    def read(self, text: str, *, cut: bool) -> dict[str, Any]:
        """Each part's text, a list of texts, None, or the error that there is none to be told."""
        ...


@dataclass(frozen=True, slots=True)
class Content(Node):
    """A string in which special tokens stay text, wherever it stands."""

    text: str

    def run(self, runner: Runner) -> Awaitable[None]:
        """Add the content."""
        return runner.run_content(self)

    def __str__(self) -> str:
        return f"content {self.text!r}"


@dataclass(frozen=True, slots=True)
class Image(Node):
    """An image: its media type, and the bytes of its file."""

    kind: str
    data: bytes

    def run(self, runner: Runner) -> Awaitable[None]:
        """Show it."""
        return runner.run_image(self)

    def __str__(self) -> str:
        return f"{self.kind} of {len(self.data)} bytes"


@dataclass(frozen=True, slots=True)
class ToolMessage(Node):
    """What a tool answered: a message of its own in a conversation, and text anywhere else."""

    text: str

    def run(self, runner: Runner) -> Awaitable[None]:
        """Add it."""
        return runner.run_tool_message(self)

    def __str__(self) -> str:
        return f"tool says {self.text!r:.60}"


@dataclass(frozen=True, slots=True)
class RoleBegin(Node):
    """The begin of a message."""

    role: str

    def run(self, runner: Runner) -> Awaitable[None]:
        """Open the message."""
        return runner.run_role_begin(self)

    def __str__(self) -> str:
        return f"{self.role} begins"


@dataclass(frozen=True, slots=True)
class RoleEnd(Node):
    """The end of a message."""

    role: str

    def run(self, runner: Runner) -> Awaitable[None]:
        """Close the message."""
        return runner.run_role_end(self)

    def __str__(self) -> str:
        return f"{self.role} ends"


@dataclass(frozen=True, slots=True)
class Gen(Node):
    """Text from the model.

    Attributes:
        name: The variable that holds it, if any.
        sampling: Validated fields of `SamplingParams`, only those that the program gave.
        options: Validated fields of `RequestOptions`, only those that the program gave.
        dtype: The Python type whose text is generated, if one was given.
        kind: How the variable's value is read from the text, if a type was given.
        keeps_errors: Whether the error that there is no value is the value.
        reasoning: Tells reasoning from answer, if they are to be told apart.
        parts: Tells the parts of the text that have names of their own, if there are any.
    """

    name: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    dtype: type | None = None
    kind: Typed | None = None
    keeps_errors: bool = False
    reasoning: Splitter | None = None
    parts: PartReader | None = None

    def run(self, runner: Runner) -> Awaitable[None]:
        """Generate."""
        return runner.run_gen(self)

    @property
    def variable(self) -> str | None:
        """The variable that holds the text."""
        return self.name

    @property
    def streams(self) -> bool:
        """It does, if all of it is the variable's."""
        return self.reasoning is None

    @property
    def sets_any(self) -> bool:
        """It does, if parts of it are variables too."""
        return self.parts is not None

    def arguments(self) -> dict[str, Any]:
        """What the program gave beside the name."""
        given = {**self.sampling, **self.options}
        if self.dtype is not None:  # in place of the regex and stop that it stands for
            given = {**given, "dtype": self.dtype.__name__}
            del given["regex"]
            given.pop("stop_regex", None)
        if self.kind is not None:
            given = {key: value for key, value in given.items() if key not in self.kind.sampling}
            given["type"] = self.kind.name
        return given

    def __str__(self) -> str:
        return _call("gen", self.name, self.arguments())


@dataclass(frozen=True, slots=True)
class Select(Node):
    """The one of some choices that the model likes best."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesSamplingMethod
    cache_salt: str | None = None
    values: Mapping[str, Any] | None = None

    def run(self, runner: Runner) -> Awaitable[None]:
        """Score the choices and decide."""
        return runner.run_select(self)

    @property
    def variable(self) -> str | None:
        """The variable that holds the choice."""
        return self.name

    def __str__(self) -> str:
        return _call("select", self.name, {"choices": list(self.choices)})


@dataclass(frozen=True, slots=True)
class SetVariable(Node):
    """A value that the program gives to a variable."""

    name: str
    value: Any

    def run(self, runner: Runner) -> Awaitable[None]:
        """Set it."""
        return runner.run_set(self)

    @property
    def variable(self) -> str | None:
        """The variable."""
        return self.name

    def __str__(self) -> str:
        return f"{self.name} = {self.value!r:.80}"


@dataclass(frozen=True, slots=True)
class ScopeBegin(Node):
    """From here on, text belongs to a variable too."""

    name: str

    def run(self, runner: Runner) -> Awaitable[None]:
        """Note where the variable begins."""
        return runner.run_scope_begin(self)

    def __str__(self) -> str:
        return f"scope {self.name} begins"


@dataclass(frozen=True, slots=True)
class ScopeEnd(Node):
    """The end of a variable's text."""

    name: str

    def run(self, runner: Runner) -> Awaitable[None]:
        """Set the variable."""
        return runner.run_scope_end(self)

    @property
    def variable(self) -> str | None:
        """The variable."""
        return self.name

    def __str__(self) -> str:
        return f"scope {self.name} ends"


@dataclass(frozen=True, slots=True)
class Fork(Node):
    """Here branches begin, each with all that the state holds."""

    branches: tuple[Any, ...]

    def run(self, runner: Runner) -> Awaitable[None]:
        """Give the branches what the state holds, and let them run."""
        return runner.run_fork(self)

    def __str__(self) -> str:
        return f"fork into {len(self.branches)}"


@dataclass(frozen=True, slots=True)
class Join(Node):
    """Here the branches of a fork end."""

    branches: tuple[Any, ...]
    mode: JoinMode

    def run(self, runner: Runner) -> Awaitable[None]:
        """Wait for the branches and take over what they made."""
        return runner.run_join(self)

    @property
    def sets_any(self) -> bool:
        """It does."""
        return True

    def __str__(self) -> str:
        return f"join {len(self.branches)} ({self.mode})"


@dataclass(frozen=True, slots=True)
class Pin(Node):
    """From here on, what the state holds is kept in the backend's cache."""

    seconds: float

    def run(self, runner: Runner) -> Awaitable[None]:
        """Take a lease."""
        return runner.run_pin(self)

    def __str__(self) -> str:
        return f"pin for {self.seconds:g} s"


@dataclass(frozen=True, slots=True)
class Render(Node):
    """Ask the backend for the text of the role marks that are not known yet."""

    def run(self, runner: Runner) -> Awaitable[None]:
        """Ask."""
        return runner.run_render(self)

    def __str__(self) -> str:
        return "render"


def _call(function: str, name: str | None, arguments: Mapping[str, Any]) -> str:
    parts = [repr(name)] if name is not None else []
    parts += [f"{key}={value!r}" for key, value in arguments.items()]
    return f"{function}({', '.join(parts)})"
