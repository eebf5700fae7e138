"""A trace as HTML: one document without scripts that needs no other file, or a part for a notebook.

All text is escaped, whoever wrote it. This module knows traces, and nothing of how they came about.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from boughs.lang.view import Branches, Fault, Request, Span, StateTrace
from boughs.lang.view_text import LEGEND, NUMBERS, figures, short_label, table_of
from boughs.lang.visible import visible

_STYLE = """
.boughs-trace {
  --text: #1c2128; --back: #ffffff; --line: #d0d7de; --soft: #6e7781; --bad: #b00020;
  --model: #d7f5dd; --forced: #fdeeb8; --choice: #ecdcfb; --frame: #f6f8fa;
  color: var(--text); background: var(--back); padding: 1em;
  font: 14px/1.5 system-ui, sans-serif;
}
@media (prefers-color-scheme: dark) {
  .boughs-trace {
    --text: #e6edf3; --back: #0d1117; --line: #30363d; --soft: #8b949e; --bad: #ff7b72;
    --model: #12401f; --forced: #4a3a06; --choice: #3c1f5c; --frame: #161b22;
  }
}
.boughs-trace .head { font-weight: 600; font-size: 16px; }
.boughs-trace .soft, .boughs-trace .template { color: var(--soft); }
.boughs-trace .text { font: 13px/1.6 ui-monospace, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; margin: .6em 0; }
.boughs-trace .model { background: var(--model); border-radius: 3px; }
.boughs-trace .forced { background: var(--forced); border-radius: 3px; }
.boughs-trace .choice { background: var(--choice); border-radius: 3px; }
.boughs-trace .tok { box-shadow: inset 1px 0 0 var(--line); }
.boughs-trace .fault { color: var(--bad); font-weight: 600; white-space: pre-wrap; }
.boughs-trace details { border: 1px solid var(--line); border-radius: 6px; background: var(--frame);
  padding: .3em .8em; margin: .4em 0; }
.boughs-trace table { border-collapse: collapse; margin-top: 1em; }
.boughs-trace th, .boughs-trace td { padding: .15em .8em .15em 0; text-align: left;
  border-bottom: 1px solid var(--line); color: inherit; background: none; }
.boughs-trace .number { text-align: right; font-variant-numeric: tabular-nums; }
"""


def document(trace: StateTrace) -> str:
    """A whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_escaped(trace.label)}</title>"
        "<style>body { margin: 0; }</style></head>\n"
        f"<body>{fragment(trace)}</body></html>\n"
    )


def fragment(trace: StateTrace) -> str:
    """What a notebook shows."""
    legend = " ".join(f'<span class="{w}">{_escaped(m)}</span>' for w, m in LEGEND.items())
    return (
        f'<div class="boughs-trace"><style>{_STYLE}</style>\n'
        f'<div class="head">{_escaped(trace.label)}: {trace.status}</div>\n'
        f"<div>{_escaped(figures(trace.usage, trace.seconds))}</div>\n"
        f'<div class="soft">text by {legend}</div>\n'
        f"{''.join(_body(trace))}\n{''.join(_table(trace))}</div>"
    )


def _body(state: StateTrace) -> Iterator[str]:
    """The text of a state, its branches in frames."""
    yield '<div class="text">'
    for part in (*state.before, *state.parts):
        if isinstance(part, Span):
            yield _span(part)
        elif isinstance(part, Fault):
            yield f'<div class="fault">✗ {_escaped(part.message)}</div>'
        else:
            yield "</div>\n"
            yield from _frames(part)
            yield '<div class="text">'
    yield "</div>\n"


def _frames(branches: Branches) -> Iterator[str]:
    for state in branches.states:
        title = f"{short_label(state)} ({state.status}): {figures(state.usage, state.seconds)}"
        yield f'<details open><summary class="soft">{_escaped(title)}</summary>'
        yield from _body(state)
        yield "</details>\n"


def _span(span: Span) -> str:
    text = span.text
    if span.writer == "template" and not text:
        text = f"[{span.mark}]"
    tokens = span.tokens if "".join(span.tokens) == text else ()
    inner = "".join(f'<span class="tok">{_escaped(token)}</span>' for token in tokens)
    title = "" if span.request is None else f' title="{_escaped(_told(span.request))}"'
    return f'<span class="{span.writer}"{title}>{inner or _escaped(text)}</span>'


def _told(request: Request) -> str:
    """What a pointer on a text shows."""
    name = request.kind if request.name is None else f"{request.kind} {request.name}"
    lines = [f"{name}: {figures(request.usage, request.usage.seconds)}"]
    lines += (f"{p:.1%} {choice}" for choice, p in (request.probs or {}).items())
    return "\n".join(lines)


def _table(trace: StateTrace) -> Iterator[str]:
    columns, rows = table_of(trace)
    classes = [' class="number"' if name in NUMBERS else "" for name in columns]
    yield "<table><tr>"
    yield from (f"<th{c}>{name}</th>" for c, name in zip(classes, columns, strict=True))
    yield "</tr>\n"
    for cells in rows:
        yield "<tr>"
        yield from (f"<td{c}>{_escaped(cell)}</td>" for c, cell in zip(classes, cells, strict=True))
        yield "</tr>\n"
    yield "</table>"


def _escaped(text: str) -> str:
    return escape(visible(text))
