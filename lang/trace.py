"""Tracing: the statements of a program, without a backend.

The program's body runs once, on placeholders: a variable's text is its name in braces (or what its
`dtype` or choices allow). What is learnt so is one path through the program: the one that these
placeholders take. Where the body looks at one, so that another value may lead elsewhere, the trace
says so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NoReturn

from boughs.lang import ir
from boughs.lang.backend import Backend
from boughs.lang.contents import Contents
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.execution import Execution
from boughs.lang.executor import Executor
from boughs.lang.expression import Node, Text
from boughs.lang.parameters import Defaults, Given
from boughs.lang.placeholder import Placeholder
from boughs.lang.reasoning import SUFFIX
from boughs.lang.requests import GenerateRequest, ScoreRequest
from boughs.lang.results import Chunk, Scores
from boughs.lang.running import Run
from boughs.lang.segments import Role

MAX_STATEMENTS = 10_000

_DTYPE_TEXTS = {int: "0", float: "0.0", bool: "True", str: '""'}


@dataclass(frozen=True)
class Step:
    """A statement, and what its branches did if it is a fork."""

    node: Node
    branches: tuple[tuple[Step, ...], ...] = ()

    def lines(self) -> Iterator[str]:
        """The step and its branches, a line a statement."""
        yield str(self.node)
        for i, steps in enumerate(self.branches):
            yield f"  branch {i}"
            for step in steps:
                yield from (f"    {line}" for line in step.lines())


@dataclass(frozen=True)
class Trace:
    """What a program did on placeholders. `print` shows it.

    Attributes:
        program: Its name.
        steps: Its statements, in order.
        variables: Name to placeholder (or to the value that the program set).
        ret_value: What its body returned.
        looked_at: Variables that a model makes and that the body looked at (compared, searched,
            converted; read at all, where the value is no text): others may lead elsewhere.
    """

    program: str
    steps: tuple[Step, ...]
    variables: dict[str, Any]
    ret_value: Any
    looked_at: tuple[str, ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """The statements of the program's own state."""
        return [step.node for step in self.steps]

    def __str__(self) -> str:
        lines = [f"program {self.program}"]
        for step in self.steps:
            lines += (f"  {line}" for line in step.lines())
        return "\n".join(lines)


def trace(
    name: str, body: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Trace:
    """Run a program's body on placeholders."""
    run = _TracedRun(name, _NoBackend(), Defaults(Given({}, {})))
    tracer = _Tracer(run)
    Execution(tracer, body, args, kwargs).execute()
    looked_at = tuple(run.looked_at)
    return Trace(name, tracer.steps(), dict(tracer.contents.variables), run.ret_value, looked_at)


class _TracedRun(Run):
    """A run that counts its statements, and notes which variables its body looks at."""

    def __init__(self, program: str, backend: Backend, defaults: Defaults) -> None:
        super().__init__(program, backend, defaults)
        self.statements = 0
        self.looked_at: dict[str, None] = {}
        self.no_texts: set[str] = set()  # variables that a model makes and that are no texts

    def look(self, name: str) -> None:
        """The body looks at a variable."""
        self.looked_at[name] = None

    def count(self) -> None:
        """One more.

        Raises:
            InvalidRequest: There are too many for a program that ends.
        """
        self.statements += 1
        if self.statements > MAX_STATEMENTS:
            raise InvalidRequest(
                f"program {self.program}: tracing stopped after {MAX_STATEMENTS} statements; a "
                "loop seems to wait for a value that only a model would give"
            )


class _Tracer(Executor):
    """An executor that writes down its statements and answers them with placeholders."""

    def __init__(self, run: Run, branch: tuple[int, ...] = (), *, held: bool = False) -> None:
        super().__init__(run, branch, held=held)
        assert isinstance(run, _TracedRun)
        self._traced = run
        self._nodes: list[Node] = []
        self._watch(self.contents)

    def begin(self, contents: Contents) -> None:
        """Give a branch what it begins with."""
        self._watch(contents)
        super().begin(contents)

    def _watch(self, contents: Contents) -> None:
        contents.variables = _Watched(contents.variables, self._traced)
        contents.probs = _Watched(contents.probs, self._traced, always=True)

    def submit(self, *nodes: Node) -> int:
        """Write nodes down and queue them."""
        for node in nodes:
            self._traced.count()
            self._nodes.append(node)
        return super().submit(*nodes)

    def steps(self) -> tuple[Step, ...]:
        """What was written down."""
        return tuple(Step(node, _branches(node)) for node in self._nodes)

    async def run_text(self, node: Text) -> None:
        """Add text; to add a placeholder is not to look at it."""
        await super().run_text(Text(str(node.text)))

    async def run_content(self, node: ir.Content) -> None:
        """Add a user's text."""
        await super().run_content(ir.Content(str(node.text)))

    async def run_gen(self, node: ir.Gen) -> None:
        """Add a placeholder."""
        text = "{" + (node.name or "gen") + "}"
        if node.dtype is not None:
            text = _DTYPE_TEXTS[node.dtype]
        value: Any = text
        if node.kind is not None:
            text, value = node.kind.placeholder()
        choices = node.sampling.get("n", 1)
        self._answer(node.name, text, value, choices)
        if node.parts is not None:
            for name in node.parts.names:
                self.contents.set(name, self._placeholder(name, "{" + name + "}"))
        if node.name is not None and node.reasoning is not None:
            thought = f"{node.name}{SUFFIX}"
            self.contents.set(thought, self._placeholder(thought, "{" + thought + "}"))
        if node.name is not None and node.kind is not None:
            self.contents.raws[node.name] = text if choices == 1 else [text] * choices

    async def run_select(self, node: ir.Select) -> None:
        """Add the first choice."""
        text = node.choices[0]
        self._answer(node.name, text, node.values[text] if node.values else text)
        if node.name is not None:
            even = 1 / len(node.choices)
            self.contents.probs[node.name] = dict.fromkeys(node.choices, even)

    async def run_image(self, node: ir.Image) -> None:
        """Show it to nobody."""
        self.contents.add_image(node.kind, node.data)

    async def run_scope_end(self, node: ir.ScopeEnd) -> None:
        """Set a variable to a text, of which a model would write a part."""
        authors = self.contents.authors[self.contents.scopes[node.name] :]
        await super().run_scope_end(node)
        if any(author.writer == "choice" for author in authors):
            text = self.contents.variables[node.name]
            self.contents.set(node.name, self._placeholder(node.name, text))

    async def run_pin(self, _node: ir.Pin) -> None:
        """Do nothing: there is no cache."""

    def _answer(self, name: str | None, text: str, value: Any, choices: int = 1) -> None:
        self.contents.add_choice(text)
        if name is not None:
            value = self._placeholder(name, value)
            self.contents.set(name, value if choices == 1 else [value] * choices, {})

    def _placeholder(self, name: str, value: Any) -> Any:
        """A value that tells when the body looks at it; one that cannot, tells when it is read."""
        if isinstance(value, str) and not isinstance(value, Enum):
            self._traced.no_texts.discard(name)
            return Placeholder(value, lambda: self._traced.look(name))
        self._traced.no_texts.add(name)
        return value

    async def _prefill(self) -> None:
        roles = [segment for segment in self.contents.segments if isinstance(segment, Role)]
        self.contents.render([f"<{'/' * (role.at == 'end')}{role.role}>" for role in roles])


class _Watched(dict[str, Any]):
    """Variables that are noted when they are read: always, or where they are no texts."""

    def __init__(self, held: dict[str, Any], run: _TracedRun, *, always: bool = False) -> None:
        super().__init__(held)
        self._run = run
        self._always = always

    def __getitem__(self, name: str) -> Any:
        if self._always or name in self._run.no_texts:
            self._run.look(name)
        return super().__getitem__(name)


def _branches(node: Node) -> tuple[tuple[Step, ...], ...]:
    if not isinstance(node, ir.Fork):
        return ()
    return tuple(branch.steps() for branch in node.branches)


class _NoBackend:
    """What stands in a traced program's backend's place; its own statements never ask it."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Refuse."""
        self._refuse(request)

    async def score(self, request: ScoreRequest) -> Scores:
        """Refuse."""
        self._refuse(request)

    async def flush_cache(self, seconds: float = 0.0) -> None:  # noqa: ARG002 - the protocol's
        """Refuse."""
        self._refuse(None)

    async def get_server_info(self) -> dict[str, Any]:
        """Refuse."""
        self._refuse(None)

    @staticmethod
    def _refuse(_request: object) -> NoReturn:
        raise Unsupported("a program is being traced, and tracing has no backend")
