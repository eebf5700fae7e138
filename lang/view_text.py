"""A trace on a terminal, with rich; without colours where there are none.

This module knows traces, and nothing of how they came about.
"""

from __future__ import annotations

import io
from collections.abc import Iterable

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from boughs.lang.usage import Usage
from boughs.lang.view import Branches, Fault, Request, Span, StateTrace, Writer
from boughs.lang.visible import visible

STYLES: dict[Writer, str] = {
    "program": "",
    "template": "dim",
    "model": "green",
    "forced": "yellow",
    "choice": "magenta",
}
"""Of text, by who wrote it."""

MARKS: dict[Writer, tuple[str, str]] = {
    "model": ("«", "»"),
    "forced": ("«=", "=»"),
    "choice": ("«?", "?»"),
}
"""Around text, by who wrote it, where there are no colours."""

LEGEND: dict[Writer, str] = {
    "program": "the program",
    "template": "the template",
    "model": "the model",
    "forced": "forced by a grammar",
    "choice": "chosen",
}


def figures(usage: Usage, seconds: float) -> str:
    """What something cost, in a line."""
    parts = [f"{seconds:.2f} s", _many(usage.requests, "request")]
    if usage.prompt_tokens:
        parts.append(f"{usage.prompt_tokens} prompt tokens, {usage.hit_rate:.0%} cached")
    generated = f"{usage.completion_tokens} generated"
    parts.append(generated + (f", {usage.forced_tokens} forced" if usage.forced_tokens else ""))
    if usage.forward_steps:
        parts.append(_many(usage.forward_steps, "step"))
    return " · ".join(parts)


def short_label(state: StateTrace) -> str:
    """`branch 0.1`, or of a program's own state all of its label."""
    return state.label.rpartition(", ")[2]


COLUMNS = ("request", "where", "prompt", "cached", "made", "forced", "steps", "seconds", "end")
NUMBERS = frozenset(COLUMNS[2:8])


def table_of(trace: StateTrace) -> tuple[list[str], list[list[str]]]:
    """The columns, and the requests of a state and its branches in rows; at last their sum."""
    rows = []
    for state in trace.walk():
        where = "" if state is trace else short_label(state)
        rows += [[_what(r), where, *_numbers(r.usage), _end(r)] for r in state.requests]
    rows.append(["total", "", *_numbers(trace.usage), ""])
    shown = [at for at, name in enumerate(COLUMNS) if name != "where" or trace.branches]
    return [COLUMNS[at] for at in shown], [[row[at] for at in shown] for row in rows]


def drawn(trace: StateTrace, *, marked: bool) -> RenderableType:
    """A trace for a console.

    Args:
        trace: The trace.
        marked: Whether marks tell who wrote what, and not colours alone.
    """
    head = Text(f"{visible(trace.label)}: {trace.status}", style="bold")
    legend = Text()
    for writer, meaning in LEGEND.items():
        before, after = MARKS.get(writer, ("", "")) if marked else ("", "")
        legend.append(f"{before}{meaning}{after}", STYLES[writer]).append("  ")
    legend.rstrip()
    line = Text(figures(trace.usage, trace.seconds))
    table = Table(box=None, padding=(0, 2, 0, 0))
    columns, rows = table_of(trace)
    for name in columns:
        if name in NUMBERS:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    for cells in rows:
        table.add_row(*(Text(visible(cell)) for cell in cells))
    return Group(head, line, legend, Text(), *_body(trace, marked=marked), Text(), table)


def plain(trace: StateTrace) -> str:
    """A trace without colours."""
    console = Console(file=io.StringIO(), width=120, color_system=None, force_jupyter=False)
    return _captured(console, trace)


def shown(trace: StateTrace) -> str:
    """A trace as standard output can show it."""
    console = Console(force_jupyter=False)
    return _captured(console, trace) if console.is_terminal else plain(trace)


def _captured(console: Console, trace: StateTrace) -> str:
    with console.capture() as captured:
        console.print(trace)
    return "\n".join(line.rstrip(" ") for line in captured.get().rstrip("\n").split("\n"))


def _body(state: StateTrace, *, marked: bool) -> Iterable[RenderableType]:
    """The text of a state, its branches in frames."""
    text = Text()
    for span in state.before:
        _append(text, span, marked=marked)
    for part in state.parts:
        if isinstance(part, Span):
            _append(text, part, marked=marked)
        elif isinstance(part, Fault):
            begins = "" if not text or text.plain.endswith("\n") else "\n"
            text.append(f"{begins}✗ {visible(part.message)}\n", "bold red")
        else:
            yield from _whole(text)
            yield from _frames(part, marked=marked)
            text = Text()
    yield from _whole(text)


def _whole(text: Text) -> Iterable[Text]:
    """A text whose last line needs no line break; an empty one is none."""
    if text.plain.endswith("\n"):
        text.right_crop()
    if text:
        yield text


def _frames(branches: Branches, *, marked: bool) -> Iterable[RenderableType]:
    for state in branches.states:
        status = "" if state.status == "finished" else f" ({state.status})"
        usage = state.usage
        cost = f"{state.seconds:.2f} s, {usage.completion_tokens} generated"
        yield Panel(
            Group(*_body(state, marked=marked)),
            title=Text(short_label(state) + status),
            subtitle=Text(cost),
            title_align="left",
            subtitle_align="left",
            border_style="dim",
        )


def _append(text: Text, span: Span, *, marked: bool) -> None:
    before, after = MARKS.get(span.writer, ("", "")) if marked else ("", "")
    shown = visible(span.text)
    if span.writer == "template" and not shown:
        shown = f"[{visible(span.mark)}]"
    text.append(before).append(shown, STYLES[span.writer]).append(after)


def _numbers(usage: Usage) -> tuple[str, ...]:
    return (
        str(usage.prompt_tokens),
        str(usage.cached_tokens),
        str(usage.completion_tokens),
        str(usage.forced_tokens),
        str(usage.forward_steps),
        f"{usage.seconds:.3f}",
    )


def _what(request: Request) -> str:
    what = request.kind if request.name is None else f"{request.kind} {request.name}"
    return what if request.choices == 1 else f"{what} (n={request.choices})"


def _end(request: Request) -> str:
    if request.probs is not None:
        return f"{max(request.probs.values()):.0%} sure"
    return "failed" if request.failed else request.finish or ""


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
