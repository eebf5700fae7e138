"""A trial: a source is translated, compiled and followed for some tokens.

What a grammar costs shows in part only while it is followed: its lexer is built as it goes. A
trial runs in a process of its own, which may be killed. This module knows no processes.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np

from boughs.lang.constraints import JsonForm
from boughs.lang.errors import GrammarError

from .backend import Backend
from .json_form import PLAIN
from .matcher import Matcher, short

MAX_SOURCE = 256 << 10
"""Bytes of a source. A core that builds from more holds its other requests up."""

STEPS = 8
"""Tokens for which a grammar is followed."""


class Verdict(NamedTuple):
    """What a trial found: a grammar in the backend's form, or why there is none.

    Attributes:
        grammar: May allow more than the source does.
        error: Names the kind of the source, and the place in it.
        weaker: JSON pointers of what the grammar leaves out.
    """

    grammar: str | None
    error: str | None = None
    weaker: tuple[str, ...] = ()


def try_source(
    backend: Backend, vocab_size: int, kind: str, source: str, form: JsonForm = PLAIN
) -> Verdict:
    """Whether a source makes a grammar that can be followed."""
    size = len(source.encode("utf-8", "replace"))
    if size > MAX_SOURCE:
        return Verdict(None, f"{kind}: it has {size} bytes; at most {MAX_SOURCE} are taken")
    try:
        grammar, weaker = backend.translate(kind, source, form)
    except GrammarError as error:
        return Verdict(None, short(str(error)))
    try:
        state = backend.build(grammar)
    except GrammarError as error:
        return Verdict(None, f"{kind}: {short(backend.explain(kind, source, str(error)))}")
    try:
        _follow(Matcher(state, backend, kind), vocab_size)
    except GrammarError as error:
        return Verdict(None, str(error))
    return Verdict(grammar, weaker=weaker)


def _follow(matcher: Matcher, vocab_size: int) -> None:
    """Take some tokens that the grammar allows; which ones is the same every time."""
    draw = random.Random(0)
    for _ in range(STEPS):
        if matcher.complete:
            return
        allowed = np.flatnonzero(matcher.mask(vocab_size))
        matcher.accept(int(draw.choice(allowed)))
    matcher.check()
