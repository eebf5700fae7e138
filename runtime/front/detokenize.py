"""Token ids to text, one token at a time.

Each token adds its bytes to an incremental UTF-8 decoder, so a token costs the same wherever it
stands, and a character that is still incomplete is held back. This module knows no stops and no
requests.
"""

from __future__ import annotations

import codecs
from copy import copy

from .tokenizer import Tokenizer


class Detokenizer:
    """The text of one output.

    Args:
        tokenizer: The model's.
        skip_special: Whether special tokens add nothing to the text.
        at_start: Whether no text stands before the output, so that the dummy space which
            SentencePiece puts before a text is dropped.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool, at_start: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._drop_space = at_start and tokenizer.dummy_space
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def fork(self) -> Detokenizer:
        """The same, for an output that goes on another way."""
        made = copy(self)
        made._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        made._decoder.setstate(self._decoder.getstate())
        return made

    @property
    def incomplete(self) -> bool:
        """Whether the tokens so far end inside a character."""
        return bool(self._decoder.getstate()[0])

    def add(self, token: int) -> str:
        """The characters that `token` completes."""
        if token in self._skipped:
            return ""
        raw = self._tokenizer.token_bytes(token)
        if self._drop_space and raw:
            self._drop_space = False
            raw = raw.removeprefix(b" ")
        return self._decoder.decode(raw)

    def end(self) -> str:
        """What is left at the end: U+FFFD for a character that was never completed."""
        return self._decoder.decode(b"", final=True)
