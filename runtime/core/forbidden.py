"""Tokens that a request's own lists forbid: all but `allowed_token_ids`, and `bad_words`.

This module knows no logits and no grammar.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from copy import copy

import torch
from torch import Tensor


class Forbidden:
    """What one output may not hold, and its last tokens.

    Args:
        vocab_size: Width of the logits.
        allowed: The only tokens that may be produced; None is all.
        bad: Sequences of which the last token may not follow the others.

    Attributes:
        always: bool [vocab_size], tokens that never are produced; None if there are none.
        has_words: Whether there are bad sequences.
    """

    def __init__(
        self, vocab_size: int, allowed: Iterable[int] | None, bad: Sequence[Sequence[int]]
    ) -> None:
        self.has_words = bool(bad)
        single = [ids[0] for ids in bad if len(ids) == 1]
        self.always: Tensor | None = None
        if allowed is not None or single:
            self.always = torch.full((vocab_size,), allowed is not None)
            self.always[list(allowed or ())] = False
            self.always[single] = True
        self._endings: dict[int, list[tuple[list[int], int]]] = {}
        for *before, last in bad:
            if before:
                self._endings.setdefault(before[-1], []).append((before, last))
        longest = max((len(ids) for ids in bad), default=0)
        self._tail: deque[int] = deque(maxlen=max(longest - 1, 0))

    def fork(self) -> Forbidden:
        """The same, for an output that goes on another way."""
        made = copy(self)
        made._tail = self._tail.copy()
        return made

    def note(self, token: int) -> None:
        """Take one output token into account."""
        self._tail.append(token)

    def next(self) -> list[int]:
        """The tokens that would complete a bad sequence now."""
        if not self._tail or not self._endings:
            return []
        tail = list(self._tail)
        return [
            last
            for before, last in self._endings.get(tail[-1], ())
            if tail[-len(before) :] == before
        ]
