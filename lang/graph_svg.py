"""A program's graph as SVG, with a layout of its own.

A state is a column, as far as there is room beside the states that run at the same time; a node is
in the row below the lowest of those that it comes from. This module knows graphs, and nothing of
how they came about.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import accumulate
from textwrap import wrap

from boughs.lang.graph import Edge, Graph, Kind, Node
from boughs.lang.graph_text import label
from boughs.lang.visible import visible

_LETTER, _LINE = 7.3, 17.0  # of the font, in pixels
_PAD, _GAP_X, _GAP_Y, _MARGIN = 10.0, 30.0, 30.0, 16.0
_WIDTH = 44  # letters in a line, at most

_COLOURS: dict[Kind, str] = {
    "begin": "#d0d7de",
    "text": "#ffffff",
    "role": "#cfe8fc",
    "gen": "#d7f5dd",
    "select": "#ecdcfb",
    "tool": "#fdeeb8",
    "fork": "#e7eaee",
    "join": "#e7eaee",
    "set": "#f6f8fa",
    "other": "#f6f8fa",
}


@dataclass(frozen=True)
class Box:
    """Where a node is drawn: its middle and its size, in pixels."""

    node: Node
    lines: tuple[str, ...]
    x: float
    y: float
    width: float
    height: float


def svg(graph: Graph) -> str:
    """A graph as an SVG document."""
    boxes = layout(graph)
    right = max(box.x + box.width / 2 for box in boxes) + _MARGIN
    bottom = max(box.y + box.height / 2 for box in boxes) + _MARGIN
    notes = [line for note in graph.notes for line in wrap(visible(note), 90)]
    width = max(right, *(len(line) * _LETTER + 2 * _MARGIN for line in notes), 0.0)
    height = bottom + len(notes) * _LINE + (_MARGIN if notes else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="ui-monospace, monospace" '
        'font-size="12" fill="#1c2128">',
        f"<title>{escape(visible(f'program {graph.program}'))}</title>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
        '<defs><marker id="boughs-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="#6e7781"/>',
        "</marker></defs>",
        *(_edge(edge, boxes) for edge in graph.edges),
        *(_box(box) for box in boxes),
        *(
            _text(_MARGIN, bottom + (at + 1) * _LINE, line, 'fill="#9a6700"')
            for at, line in enumerate(notes)
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def layout(graph: Graph) -> list[Box]:
    """Where each node is drawn; no two boxes touch."""
    rows = _rows(graph)
    columns = _columns(graph, rows)
    lines = [tuple(label(node, _WIDTH)) for node in graph.nodes]
    widths = [max(map(len, said)) * _LETTER + 2 * _PAD for said in lines]
    heights = [len(said) * _LINE + _PAD for said in lines]
    column_of = [columns[node.lane] for node in graph.nodes]
    wide = _largest(column_of, widths)
    high = _largest(rows, heights)
    lefts = list(accumulate((w + _GAP_X for w in wide), initial=_MARGIN))
    tops = list(accumulate((h + _GAP_Y for h in high), initial=_MARGIN))
    return [
        Box(
            node,
            lines[node.id],
            x=lefts[column_of[node.id]] + wide[column_of[node.id]] / 2,
            y=tops[rows[node.id]] + high[rows[node.id]] / 2,
            width=widths[node.id],
            height=heights[node.id],
        )
        for node in graph.nodes
    ]


def _rows(graph: Graph) -> list[int]:
    """The row of each node."""
    rows = [0] * len(graph.nodes)
    for edge in sorted(graph.edges, key=lambda edge: edge.target):
        rows[edge.target] = max(rows[edge.target], rows[edge.source] + 1)
    return rows


def _columns(graph: Graph, rows: list[int]) -> dict[int, int]:
    """The column of each lane: the first that is free in all its rows, at or right of its fork's.

    A lane takes the rows from each of its nodes to the next one that it is joined to by an edge: a
    fork and its join leave the rows between them to a branch.
    """
    taken: dict[int, set[int]] = {node.lane: set() for node in graph.nodes}
    forked_in: dict[int, int] = {}
    for node in graph.nodes:
        taken[node.lane].add(rows[node.id])
    for edge in graph.edges:
        source, target = graph.nodes[edge.source], graph.nodes[edge.target]
        if source.lane == target.lane:
            taken[source.lane].update(range(rows[source.id], rows[target.id]))
        elif target.branch is not None:
            forked_in[target.lane] = source.lane
        else:  # a branch keeps its column until it is joined
            taken[source.lane].update(range(rows[source.id], rows[target.id]))
    columns: dict[int, int] = {}
    full: dict[int, set[int]] = {}
    for lane in sorted(taken):
        column = columns[forked_in[lane]] if lane in forked_in else 0
        while not full.setdefault(column, set()).isdisjoint(taken[lane]):
            column += 1
        columns[lane] = column
        full[column] |= taken[lane]
    return columns


def _largest(places: list[int], sizes: list[float]) -> list[float]:
    """The largest size at each place."""
    most = [0.0] * (max(places) + 1)
    for place, size in zip(places, sizes, strict=True):
        most[place] = max(most[place], size)
    return most


def _edge(edge: Edge, boxes: list[Box]) -> str:
    source, target = boxes[edge.source], boxes[edge.target]
    x1, y1 = source.x, source.y + source.height / 2
    x2, y2 = target.x, target.y - target.height / 2
    path = f"M{x1:.1f} {y1:.1f} "
    if x1 == x2:
        path += f"L{x2:.1f} {y2:.1f}"
    else:  # down to the gap above the target's row, or right below a fork, and over
        over = y1 + _GAP_Y if target.node.branch is not None else y2 - _GAP_Y
        if target.node.branch is not None:
            path += f"C{x1:.1f} {over:.1f} {x2:.1f} {y1:.1f} {x2:.1f} {over:.1f} L{x2:.1f} {y2:.1f}"
        else:
            path += f"L{x1:.1f} {over:.1f} C{x1:.1f} {y2:.1f} {x2:.1f} {over:.1f} {x2:.1f} {y2:.1f}"
    return f'<path d="{path}" fill="none" stroke="#6e7781" marker-end="url(#boughs-arrow)"/>'


def _box(box: Box) -> str:
    kind = box.node.kind
    left, top = box.x - box.width / 2, box.y - box.height / 2
    round_ = box.height / 2 if kind in ("begin", "fork", "join") else 8 if kind == "gen" else 2
    dashed = ' stroke-dasharray="4 3"' if box.node.looked_at else ""
    parts = [
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'rx="{round_:.0f}" fill="{_COLOURS[kind]}" stroke="#57606a"{dashed}/>'
    ]
    parts += _box_lines(box, left + _PAD, top)
    return "".join(parts)


def _box_lines(box: Box, x: float, top: float) -> Iterator[str]:
    for at, line in enumerate(box.lines):
        bold = 'font-weight="600"' if at == 0 and box.node.kind != "text" else ""
        yield _text(x, top + _PAD / 2 + (at + 0.72) * _LINE, line, bold)


def _text(x: float, y: float, line: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" xml:space="preserve" {more}>{escape(line)}</text>'
