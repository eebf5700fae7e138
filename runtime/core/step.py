"""What one step of the core computes.

Made by the scheduler, carried out by the runner. This module knows neither of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from boughs.radix import CopyOrder
from boughs.runtime.core.request import Request


@dataclass(slots=True)
class Work:
    """Compute the tokens [start, start + count) of a request."""

    request: Request
    start: int
    count: int


@dataclass(slots=True)
class Step:
    """One batch: its work, and the copies to carry out before it."""

    works: list[Work] = field(default_factory=list)
    copies: list[CopyOrder] = field(default_factory=list)
    tokens: int = 0

    def add(self, request: Request, count: int) -> None:
        """Compute the next `count` tokens of `request`."""
        self.works.append(Work(request, request.computed, count))
        self.tokens += count

    def last_rows(self) -> tuple[list[tuple[Request, int]], list[Request]]:
        """Whose last token is computed: those that sample, with its row; and the others."""
        sampling: list[tuple[Request, int]] = []
        prefilled: list[Request] = []
        at = 0
        for work in self.works:
            at += work.count
            request = work.request
            if work.start + work.count == len(request.tokens):
                if request.submit.params.max_new_tokens == 0:
                    prefilled.append(request)
                else:
                    sampling.append((request, at - 1))
        return sampling, prefilled

    def guessed_rows(self) -> list[tuple[Request, int]]:
        """The requests whose guess turns out right or wrong, with the row that predicts it."""
        rows, at = [], 0
        for work in self.works:
            if work.request.guessed:
                place = len(work.request.tokens) - 2 - work.start
                if 0 <= place < work.count:
                    rows.append((work.request, at + place))
            at += work.count
        return rows


@dataclass(slots=True)
class Counters:
    """What has happened so far, in tokens or times."""

    hit_tokens: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    retractions: int = 0
    finished: int = 0
    aborted: int = 0
    steps: int = 0
