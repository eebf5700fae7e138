"""A trial: a source is translated, compiled and followed for some tokens.

What a grammar costs shows in part only while it is followed: its lexer is built as it goes. A
trial runs in a process of its own, which may be killed. This module knows no processes.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from llguidance import LLTokenizer

from boughs.lang.constraints import JsonForm
from boughs.lang.errors import GrammarError

from .json_form import PLAIN
from .matcher import Matcher, build, short
from .source import explain, locate, translate

STEPS = 8
"""Tokens for which a grammar is followed."""


class Verdict(NamedTuple):
    """What a trial found: a grammar in llguidance's form, or why there is none.

    Attributes:
        grammar: May allow more than the source does.
        error: Names the kind of the source, and the place in it.
        weaker: JSON pointers of what the grammar leaves out.
    """

    grammar: str | None
    error: str | None = None
    weaker: tuple[str, ...] = ()


def try_source(
    tokenizer: LLTokenizer,
    vocab_size: int,
    kind: str,
    source: str,
    form: JsonForm = PLAIN,
    *,
    eos: Collection[int] = (),
) -> Verdict:
    """Whether a source makes a grammar that can be followed; `eos` are what ends an output."""
    try:
        grammar, weaker = translate(kind, source, form, _Vocabulary(tokenizer, vocab_size, eos))
    except GrammarError as error:
        return Verdict(None, short(str(error)))
    try:
        raw = build(tokenizer, grammar)
    except GrammarError as error:
        place = ""
        if kind == "json_schema":
            place = f"{locate(source, lambda grammar: _failure(tokenizer, grammar))}: "
        return Verdict(None, f"{kind}: {place}{short(explain(kind, source, str(error)))}")
    try:
        _follow(Matcher(raw, kind), vocab_size)
    except GrammarError as error:
        return Verdict(None, str(error))
    return Verdict(grammar, weaker=weaker)


@dataclass(frozen=True)
class _Vocabulary:
    tokenizer: LLTokenizer
    size: int
    eos: Collection[int]

    def pieces(self, text: str) -> list[str | int]:
        tokenizer = self.tokenizer
        made: list[str | int] = []
        plain: list[int] = []
        for token in tokenizer.tokenize_str(text, parse_special=True):
            if not tokenizer.is_special_token(token):
                plain.append(token)
                continue
            made += [tokenizer.decode_str(plain), token] if plain else [token]
            plain = []
        return [*made, tokenizer.decode_str(plain)] if plain else made

    def token(self, text: str) -> int | None:
        ids = self.tokenizer.tokenize_str(text, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    def is_special(self, token: int) -> bool:
        return bool(self.tokenizer.is_special_token(token))


def _failure(tokenizer: LLTokenizer, grammar: str) -> str | None:
    try:
        build(tokenizer, grammar)
    except GrammarError as error:
        return str(error)
    return None


def _follow(matcher: Matcher, vocab_size: int) -> None:
    """Take some tokens that the grammar allows; which ones is the same every time."""
    draw = random.Random(0)
    for _ in range(STEPS):
        if matcher.complete:
            return
        allowed = np.flatnonzero(matcher.mask(vocab_size))
        matcher.accept(int(draw.choice(allowed)))
    matcher.check()
