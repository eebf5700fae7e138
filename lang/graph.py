"""A program drawn as a graph, without a model: `program.graph()`.

    graph = guide.graph()
    print(graph)               # as text
    graph.save("guide.svg")    # or .mmd (Mermaid), or .txt

It is made of a trace on placeholders, so it shows one path; where the program looks at what a model
would write, the graph says that there may be others. How it is drawn is in `graph_text` and
`graph_svg`. This module runs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from boughs.lang import expression, ir
from boughs.lang.errors import InvalidRequest
from boughs.lang.expression import Text
from boughs.lang.tool_turns import ToolTurns
from boughs.lang.trace import Step, Trace

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Kind = Literal["begin", "text", "role", "gen", "select", "tool", "set", "fork", "join", "other"]


@dataclass(frozen=True)
class Node:
    """A node.

    Attributes:
        id: Its place among the nodes; every edge goes to a later one.
        kind: What it is.
        title: A line.
        details: More lines: text, constraints, choices.
        lane: The state that it belongs to: 0 is the program's own, each branch has the next.
        depth: In how many forks it is.
        role: The message that it stands in, if any.
        branch: Of the first node of a branch: the branch's index in its fork.
        looked_at: Whether the program looks at the variable that it makes.
    """

    id: int
    kind: Kind
    title: str
    details: tuple[str, ...] = ()
    lane: int = 0
    depth: int = 0
    role: str | None = None
    branch: int | None = None
    looked_at: bool = False


@dataclass(frozen=True)
class Edge:
    """From a node to one that comes after it."""

    source: int
    target: int


@dataclass(frozen=True)
class Graph:
    """A program as a graph.

    Attributes:
        program: Its name.
        nodes: In the order in which a reader meets them; branches before what comes after them.
        edges: Between them.
        notes: What the graph does not show.
    """

    program: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, trace: Trace) -> Graph:
        """The graph of a traced program."""
        drawing = _Drawing(frozenset(trace.looked_at))
        begin = drawing.add(Node(0, "begin", f"program {trace.program}"), ())
        drawing.lane(trace.steps, begin, Node(0, "other", ""))
        return cls(trace.program, tuple(drawing.nodes), tuple(drawing.edges), _notes(trace))

    def mermaid(self) -> str:
        """As a Mermaid flowchart."""
        from boughs.lang import graph_text

        return graph_text.mermaid(self)

    def svg(self) -> str:
        """As an SVG document that needs no other file."""
        from boughs.lang import graph_svg

        return graph_svg.svg(self)

    def save(self, path: str | Path) -> None:
        """Write it to a file: `.svg`, `.mmd` (Mermaid) or `.txt`.

        Raises:
            InvalidRequest: The name ends otherwise.
            OSError: The file cannot be written.
        """
        kinds = {".svg": self.svg, ".mmd": self.mermaid, ".txt": self.__str__}
        make = kinds.get(Path(path).suffix.lower())
        if make is None:
            raise InvalidRequest(
                f"path: expected a name that ends with .svg, .mmd or .txt, got {str(path)!r:.80}",
                "path",
            )
        Path(path).write_text(make(), encoding="utf-8", errors="replace")

    def __str__(self) -> str:
        from boughs.lang import graph_text

        return graph_text.plain(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from boughs.lang import graph_text

        yield graph_text.drawn(self)

    def _repr_svg_(self) -> str:
        return self.svg()


_MADE = ir.Gen | ir.Select | ir.ScopeEnd | ToolTurns  # what makes a variable of what a model writes


class _Drawing:
    """A graph while it is made."""

    def __init__(self, looked_at: frozenset[str]) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self._looked_at = looked_at
        self._lanes = 0
        self._begins: dict[int, int] = {}  # by the identity of a branch, the fork
        self._ends: dict[int, int] = {}  # and its last node

    def add(self, node: Node, sources: Iterable[int]) -> int:
        """Add a node behind others; its id."""
        made = replace(node, id=len(self.nodes))
        self.nodes.append(made)
        self.edges += [Edge(source, made.id) for source in dict.fromkeys(sources)]
        return made.id

    def lane(self, steps: tuple[Step, ...], last: int, like: Node) -> int:
        """Add the steps of a state behind a node; the last one's id.

        Args:
            steps: The steps.
            last: What comes before them.
            like: Has the lane, depth, role and branch of the first.
        """
        for step in steps:
            node = step.node
            if isinstance(node, ir.RoleBegin):
                like = replace(like, role=None)
            if isinstance(node, ir.RoleEnd):
                like = replace(like, role=None)
                continue
            if isinstance(node, Text | ir.Content) and self._continues(last, like):
                before = self.nodes[last]
                text = before.details[0] + node.text
                self.nodes[last] = replace(before, details=(text,))
                continue
            sources = [last]
            if isinstance(node, ir.Join):
                ends = [self._ends[id(branch)] for branch, _ in node.branches]
                # From a fork straight to its join the branches are the only way.
                forked = {self._begins[id(branch)] for branch, _ in node.branches}
                sources = ends if last in forked else [last, *ends]
            last = self.add(self._node(node, like), sources)
            like = replace(like, branch=None)
            if isinstance(node, ir.RoleBegin):
                like = replace(like, role=node.role)
            if isinstance(node, ir.Fork):
                for i, (branch, inner) in enumerate(zip(node.branches, step.branches, strict=True)):
                    self._lanes += 1
                    self._begins[id(branch)] = last
                    begin = replace(like, lane=self._lanes, depth=like.depth + 1, branch=i)
                    self._ends[id(branch)] = self.lane(inner, last, begin)
        return last

    def _continues(self, last: int, like: Node) -> bool:
        """Whether a text would only make the last node's longer."""
        before = self.nodes[last]
        return before.kind == "text" and (before.lane, before.role) == (like.lane, like.role)

    def _node(self, node: expression.Node, like: Node) -> Node:
        kind, title, details = _described(node)
        looked_at = node.variable in self._looked_at and isinstance(node, _MADE)
        return replace(like, kind=kind, title=title, details=details, looked_at=looked_at)


def _described(node: expression.Node) -> tuple[Kind, str, tuple[str, ...]]:
    """A statement as a node's kind, title and details."""
    match node:
        case Text(text) | ir.Content(text):
            return "text", "text", (text,)
        case ir.ToolMessage(text):
            return "tool", "a tool's answer", (text,)
        case ToolTurns():
            return "gen", _named("tools", node.variable), (f"rounds={node.rounds}",)
        case ir.RoleBegin(role):
            return "role", role, ()
        case ir.Gen():
            given = (f"{key}={value!r}" for key, value in node.arguments().items())
            return "gen", _named("gen", node.name), tuple(given)
        case ir.Select():
            return "select", _named("select", node.name), tuple(map(repr, node.choices))
        case ir.SetVariable(name, value):
            return "set", f"{name} = {value!r}", ()
        case ir.Fork():
            return "fork", f"fork into {len(node.branches)}", ()
        case ir.Join():
            how = "" if node.mode == "gather_variable" else ", texts appended"
            return "join", f"join {len(node.branches)}{how}", ()
        case _:
            return "other", str(node), ()


def _named(what: str, name: str | None) -> str:
    return what if name is None else f"{what} {name}"


def _notes(trace: Trace) -> tuple[str, ...]:
    """What a graph of one path cannot show."""
    if not trace.looked_at:
        return ()
    names = ", ".join(trace.looked_at)
    return (
        f"The program looks at what a model writes ({names}) and may go on otherwise for other "
        "values: this is the one path that placeholders take.",
    )
