"""Matchers: the state of one output under a grammar, over llguidance.

This module knows no request, no logits and no language in which users write grammars.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from boughs.lang.errors import GrammarError

MAX_MESSAGE = 400
"""Characters of a compiler's message that are kept: it may quote the whole source."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=100_000,
    verbose_errors=False,
)
"""What a grammar may cost: counted work, not time, so that a verdict is the same on every machine.
A mask takes at most about 15 ms; a state of the lexer takes 1 to 2 kB."""


class Matcher:
    """The state of one output under a grammar.

    Args:
        raw: Fresh, and this one's own.
        kind: What errors name, as `regex`.
        weaker: Whether its grammar allows more than its source does, so that the finished value
            is to be checked.
        prefix: Bytes that an output spells before it comes to what its source allows.
        tokenizer: Of the tokens; what counts the prefix.
    """

    def __init__(
        self,
        raw: LLMatcher,
        kind: str,
        *,
        weaker: bool = False,
        prefix: int = 0,
        tokenizer: LLTokenizer | None = None,
    ) -> None:
        self.raw = raw
        self.weaker = weaker
        self._kind = kind
        self._tokenizer = tokenizer
        self._prefix = prefix

    @property
    def in_prefix(self) -> bool:
        """Whether some of the prefix is still to be spelt."""
        return self._prefix > 0

    def fork(self) -> Matcher:
        """The same state, for an output that goes on another way."""
        return Matcher(
            self.raw.deep_copy(),
            self._kind,
            weaker=self.weaker,
            prefix=self._prefix,
            tokenizer=self._tokenizer,
        )

    def mask(self, vocab_size: int) -> NDArray[np.bool_]:
        """Which tokens may come next: bool [vocab_size]. EOS is among them where it may end.

        Raises:
            GrammarError: It takes more work than a mask may; the output cannot go on.
        """
        bits = np.zeros(-(-vocab_size // 32), dtype=np.uint32)
        self.raw.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self.check()
        return np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab_size].view(bool)

    def accept(self, token: int) -> bool:
        """Go on past `token`, which the mask allowed; whether it spells the prefix alone."""
        if not self.raw.consume_token(token):
            self.check()
            raise GrammarError(f"{self._kind}: the grammar refuses token {token}", self._kind)
        if not self._prefix:
            return False
        assert self._tokenizer is not None, "there is a prefix"
        self._prefix -= len(self._tokenizer.decode_bytes([token]))
        if self._prefix >= 0:
            return True
        self._prefix = 0
        return False

    def back(self, count: int) -> None:
        """Go back before the last `count` tokens that it accepted; EOS is none of them."""
        self.raw.rollback(count)
        self.check()

    def forced(self) -> list[int]:
        """The tokens that follow in any case, as the tokenizer cuts their text.

        A token that could be longer, with what follows it, is not among them.
        """
        forced: list[int] = self.raw.compute_ff_tokens()
        return forced

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self.raw.is_stopped())

    @property
    def accepting(self) -> bool:
        """Whether the output may end here."""
        return bool(self.raw.is_accepting())

    def check(self) -> None:
        """Raise the `GrammarError` that it has met, if it has."""
        if self.raw.is_error():
            message = short(reason(self.raw.get_error()))
            raise GrammarError(f"{self._kind}: {message}", self._kind)


Fill = Callable[[Sequence[Matcher], NDArray[np.uint32]], None]
"""Fills the masks of matchers, uint32 [matchers, words], all of them in one call.

A mask that meets its budget leaves its matcher in an error and its row of any bits.
"""


def filler(threads: int) -> Fill:
    """What fills masks in so many threads, without the GIL."""
    executor = LLExecutor(threads)

    def fill(matchers: Sequence[Matcher], bits: NDArray[np.uint32]) -> None:
        rows = [(matcher.raw, row) for row, matcher in enumerate(matchers)]
        executor.unsafe_compute_mask_ptr(rows, bits.ctypes.data, bits.strides[0], len(bits))

    return fill


def load_tokenizer(folder: Path, vocab_size: int, eos: tuple[int, ...]) -> LLTokenizer:
    """The tokenizer of the model in `folder`. Takes a third of a second, and holds the GIL."""
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    return LLTokenizer(text, n_vocab=vocab_size, eos_token=list(eos))


def build(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the start of a grammar in llguidance's form. Drops the GIL meanwhile.

    Raises:
        GrammarError: The grammar is wrong, or too large; the message may be as long as it.
    """
    raw = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    if raw.is_error():
        raise GrammarError(reason(raw.get_error()))
    return raw


def reason(message: str) -> str:
    """What is wrong, in llguidance's words; it appends its own state and trace."""
    first = message.strip().split("\n\n")[0].split("\n<")[0]
    if first.startswith("NoExtensionBias"):
        return "the grammar allows no output"
    if first.startswith("panic"):
        return (
            "the compiler of grammars fails on it, by a fault of its own; write it another way, "
            "for instance without alternatives that overlap"
        )
    return first.removeprefix("ParserTooComplex: ").strip()


def short(message: str) -> str:
    """A message without what is beyond its bound."""
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ..."
