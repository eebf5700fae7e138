"""A program's graph as text, on a terminal, and as Mermaid.

This module knows graphs, and nothing of how they came about.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from boughs.lang.graph import Graph, Kind, Node
from boughs.lang.visible import visible

STYLES: dict[Kind, str] = {
    "begin": "bold",
    "role": "cyan",
    "gen": "green",
    "select": "magenta",
    "tool": "yellow",
    "fork": "bold",
    "join": "bold",
    "set": "dim",
    "other": "dim",
}
"""Of nodes on a terminal; text has none."""

_SHAPES: dict[Kind, tuple[str, str]] = {
    "begin": ("([", "])"),
    "role": ("[/", "/]"),
    "gen": ("(", ")"),
    "select": ("{{", "}}"),
    "fork": ("((", "))"),
    "join": ("((", "))"),
}
"""Mermaid's; all others are boxes."""

_LOOKED_AT = "looked at by the program"


def one_line(node: Node, width: int) -> str:
    """A node in a line of at most so many characters."""
    if node.kind in ("text", "tool"):
        said = "" if node.kind == "text" else "tool: "
        return _cut(said + repr(visible(node.details[0])), width)
    parts = [node.title]
    if node.details:
        parts.append(f"({', '.join(node.details)})")
    if node.looked_at:
        parts.append(f"<- {_LOOKED_AT}")
    return _cut(visible(" ".join(parts)), width)


def label(node: Node, width: int) -> list[str]:
    """A node in lines of at most so many characters, its title first."""
    if node.kind in ("text", "tool"):
        said = [] if node.kind == "text" else [node.title]
        return [*said, _cut(repr(visible(node.details[0])), 2 * width)]
    lines = [node.title, *node.details]
    if node.looked_at:
        lines.append(_LOOKED_AT)
    return [_cut(visible(line), width) for line in lines]


def plain(graph: Graph) -> str:
    """A graph as text, a line a node; what is in a branch or a message is indented."""
    return "\n".join(line for _, line in _lines(graph))


def drawn(graph: Graph) -> Text:
    """The same in colours."""
    text = Text()
    for style, line in _lines(graph):
        text.append(f"{line}\n", style)
    text.right_crop()
    return text


def mermaid(graph: Graph) -> str:
    """A graph as a Mermaid flowchart."""
    lines = ["flowchart TD"]
    for node in graph.nodes:
        before, after = _SHAPES.get(node.kind, ("[", "]"))
        text = "<br/>".join(map(_quoted, label(node, 60)))
        lines.append(f'  n{node.id}{before}"{text}"{after}')
    for edge in graph.edges:
        branch = graph.nodes[edge.target].branch
        arrow = "-->" if branch is None else f"-->|branch {branch}|"
        lines.append(f"  n{edge.source} {arrow} n{edge.target}")
    for at, note in enumerate(graph.notes):
        lines.append(f'  note{at}["{_quoted(note)}"]')
        lines.append(f"  style note{at} stroke-dasharray: 4")
    return "\n".join(lines) + "\n"


def _lines(graph: Graph) -> Iterator[tuple[str, str]]:
    """The style and the text of each line."""
    for node in graph.nodes:
        indent = "    " * node.depth
        if node.branch is not None:
            yield "dim", f"{indent}branch {node.branch}"
        inner = 0 if node.kind == "begin" else 1 + (node.role is not None)
        line = f"{indent}{'  ' * inner}{one_line(node, 100)}"
        yield STYLES.get(node.kind, ""), line
    for note in graph.notes:
        yield "yellow", f"note: {note}"


def _quoted(text: str) -> str:
    """Text in a quoted label of Mermaid, which knows entities and no escapes."""
    for character in '#&"<>`\\':
        text = text.replace(character, f"\0{ord(character)};")
    return text.replace("\0", "#")


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
