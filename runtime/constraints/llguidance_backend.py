"""Constraints over llguidance, which nothing else of the runtime imports.

This module knows no request, no logits and no language in which users write grammars.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, get_version
from llguidance.gbnf_to_lark import gbnf_to_lark
from numpy.typing import NDArray

from boughs.lang.constraints import JsonForm
from boughs.lang.errors import GrammarError

from .backend import Translated
from .json_form import PLAIN
from .source import explain, locate, translate, with_prefix

LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)
"""What a grammar may cost: counted work, not time, so that a verdict is the same on every machine.
A mask takes at most about 15 ms; a state of the lexer takes 1 to 2 kB."""


def load(folder: Path, vocab_size: int, eos: tuple[int, ...], threads: int = 1) -> LLGuidance:
    """The backend for the model in a folder; holds the GIL meanwhile."""
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer = LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos))
    return LLGuidance(tokenizer, vocab_size, eos, threads)


class LLGuidance:
    """A `Backend`, and the `Vocabulary` of its translations.

    Args:
        tokenizer: The model's.
        size: Width of the logits.
        eos: The tokens that may end an output.
        threads: How many may fill masks at the same time.
    """

    def __init__(
        self, tokenizer: LLTokenizer, size: int, eos: tuple[int, ...], threads: int
    ) -> None:
        self.tokenizer = tokenizer
        self.size = size
        self.eos = eos
        self.version = str(get_version())
        self._threads = threads

    def translate(self, kind: str, source: str, form: JsonForm = PLAIN) -> Translated:
        """See `Backend`."""
        return translate(kind, source, form, self)

    def with_prefix(self, grammar: str | None, prefix: str) -> str:
        """See `Backend`."""
        return with_prefix(grammar, prefix)

    def build(self, grammar: str) -> LLMatcher:
        """See `Backend`."""
        raw = LLMatcher(self.tokenizer, grammar, log_level=0, limits=LIMITS)
        if raw.is_error():
            raise GrammarError(self.reason(raw))
        return raw

    def explain(self, kind: str, source: str, message: str) -> str:
        """See `Backend`."""
        place = f"{locate(source, self._failure)}: " if kind == "json_schema" else ""
        return place + explain(kind, source, message)

    def reason(self, state: LLMatcher) -> str:
        """See `Backend`; llguidance appends its own state and trace."""
        first = str(state.get_error()).strip().split("\n\n")[0].split("\n<")[0]
        if first.startswith("NoExtensionBias"):
            return "the grammar allows no output"
        if first.startswith("panic"):
            return (
                "the compiler of grammars fails on it, by a fault of its own; write it another "
                "way, for instance without alternatives that overlap"
            )
        return first.removeprefix("ParserTooComplex: ").strip()

    def fill(self, states: Sequence[LLMatcher], bits: NDArray[np.uint32]) -> None:
        """See `Backend`."""
        if len(states) == 1:  # needs no threads, which the process of trials must not have
            states[0].unsafe_compute_mask_ptr(bits.ctypes.data, bits.strides[0])
            return
        rows = [(state, row) for row, state in enumerate(states)]
        self._executor.unsafe_compute_mask_ptr(rows, bits.ctypes.data, bits.strides[0], len(bits))

    def token_bytes(self, token: int) -> bytes:
        """See `Backend`."""
        return bytes(self.tokenizer.decode_bytes([token]))

    def lark(self, gbnf: str) -> str:
        """See `Vocabulary`."""
        try:
            return str(gbnf_to_lark(gbnf))
        except RecursionError:
            raise
        except Exception as error:  # noqa: BLE001 -- what the converter raises, in part
            raise GrammarError(str(error)) from None

    def pieces(self, text: str) -> list[str | int]:
        """See `Vocabulary`."""
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
        """See `Vocabulary`."""
        ids = self.tokenizer.tokenize_str(text, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    def is_special(self, token: int) -> bool:
        """See `Vocabulary`."""
        return bool(self.tokenizer.is_special_token(token))

    @functools.cached_property
    def _executor(self) -> LLExecutor:
        return LLExecutor(self._threads)

    def _failure(self, grammar: str) -> str | None:
        try:
            self.build(grammar)
        except GrammarError as error:
            return str(error)
        return None
