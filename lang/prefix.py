"""What all runs of a program begin with: found by tracing, and computed ahead.

This module runs no program by itself and knows no cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from boughs.lang import ir
from boughs.lang.backend import Backend
from boughs.lang.contents import Contents
from boughs.lang.errors import BoughsError
from boughs.lang.expression import Node, Text
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Segment


def forgiving(body: Callable[..., Any]) -> Callable[..., Any]:
    """`body`, which ends where a placeholder is not what it expects; what it added stays."""

    def plain(*args: Any, **kwargs: Any) -> None:
        with suppress(Exception):
            body(*args, **kwargs)

    async def awaited(*args: Any, **kwargs: Any) -> None:
        with suppress(Exception):
            await body(*args, **kwargs)

    return awaited if inspect.iscoroutinefunction(body) else plain


def constant_prefix(one: Sequence[Node], other: Sequence[Node]) -> list[Segment]:
    """What two traces of a program, on different placeholders, both begin with."""
    contents = Contents()
    with suppress(BoughsError):  # roles that do not pair: a run will say so
        for a, b in zip(one, other, strict=False):
            if a != b:
                _add_common(contents, a, b)
                break
            if not _add(contents, a):
                break
    return contents.segments


async def prefill(backend: Backend, segments: list[Segment]) -> int:
    """Have a backend compute a prompt; how many tokens it has."""
    if not segments:
        return 0
    params = SamplingParams(max_new_tokens=0)
    (answer,) = await collect(backend.generate(GenerateRequest(prompt=segments, params=params)))
    return answer.prompt_tokens


def _add(contents: Contents, node: Node) -> bool:
    """Add what a node adds; False where that is the model's to say."""
    if isinstance(node, Text):
        contents.add_text(node.text)
    elif isinstance(node, ir.Content):
        contents.add_content(node.text)
    elif isinstance(node, ir.RoleBegin):
        contents.begin_role(node.role)
    elif isinstance(node, ir.RoleEnd):
        contents.end_role(node.role)
    else:
        return isinstance(node, ir.ScopeBegin | ir.ScopeEnd | ir.SetVariable)
    return True


def _add_common(contents: Contents, a: Node, b: Node) -> None:
    """Add what two texts begin with."""
    if isinstance(a, Text) and isinstance(b, Text):
        contents.add_text(_common(a.text, b.text))
    elif isinstance(a, ir.Content) and isinstance(b, ir.Content):
        contents.add_content(_common(a.text, b.text))


def _common(a: str, b: str) -> str:
    count = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)
    return min(a, b, key=len) if count is None else a[:count]
