r"""Stop strings and stop patterns, found in a text that grows.

The match that starts earliest in the text wins; of two that start at the same place the one that
is complete first, then the one that was given first. What is found does not depend on how the
text was cut into pieces: a string is complete at its last character, a pattern at the first
character with which it matches the text so far (so `$` matches at any place, and `\d+` after one
digit). A match that is complete waits while another, which started earlier, may still come.
This module knows characters only: no tokens, no requests.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import NamedTuple

import regex

from boughs.lang.errors import InvalidRequest

CALL_SECONDS = 0.1
"""A single try of a pattern may take this long."""

MAX_REPEATS = 10_000
"""The product of a pattern's counted repeats: `regex` writes them out when it compiles."""

BUDGET_SECONDS, BUDGET_PER_PIECE = 1.0, 0.001
"""All tries of a request may take this much CPU time, and so much more per piece of text."""


class Match(NamedTuple):
    """A stop in the text; the order of two matches is that of the tuples.

    Attributes:
        start: Characters before it.
        seen: Characters that had to be there to know.
        order: Place among the stops given.
        end: Characters up to its end.
        stop: The string or the pattern's source.
    """

    start: int
    seen: int
    order: int
    end: int
    stop: str


@dataclass
class _Literal:
    """A stop string. `start` is the first place where it may still be."""

    text: str
    order: int
    start: int = 0

    def scan(self, text: str, base: int, floor: int) -> Match | None:
        """Its first match that ends beyond `floor`; advances `start` past what is ruled out.

        Args:
            text: The text from character `base` on.
            base: At most `start`.
            floor: Matches that end here or before do not count.
        """
        stop, at = self.text, self.start - base
        try:
            while at < len(text):
                if text.startswith(stop, at):
                    end = base + at + len(stop)
                    if end > floor:
                        return Match(base + at, end, self.order, end, stop)
                elif len(text) - at < len(stop) and stop.startswith(text[at:]):
                    return None
                found = text.find(stop[0], at + 1)
                at = len(text) if found < 0 else found
            return None
        finally:
            self.start = base + at


@dataclass
class _Pattern:
    """A stop pattern. `start` is the first place where it may still match."""

    compiled: regex.Pattern[str]
    order: int
    start: int = 0
    read: int = 0

    def scan(self, text: str, base: int, floor: int) -> Match | None:
        """Its first match that is complete beyond `floor`. `base` is 0: `^` is the true start."""
        assert base == 0, "a pattern sees the whole text"
        at = self.start
        try:
            for seen in range(self.read + 1, len(text) + 1):
                while at < seen:
                    match = self.compiled.match(text, at, seen, partial=True, timeout=CALL_SECONDS)
                    if match is not None and match.partial:
                        break
                    if match is not None and seen > floor:
                        return Match(at, seen, self.order, match.end(), self.compiled.pattern)
                    at += 1
                self.read = seen
            return None
        except TimeoutError:
            raise _too_slow(self.compiled.pattern) from None
        finally:
            self.start = at


@dataclass
class _Budget:
    """CPU time that is left."""

    seconds: float


def _too_slow(pattern: str) -> InvalidRequest:
    return InvalidRequest(
        f"stop_regex: {pattern!r} takes too long to match; nested repeats do that", "stop_regex"
    )


def compile_patterns(sources: Iterable[str]) -> list[regex.Pattern[str]]:
    """The patterns of `stop_regex`.

    Raises:
        InvalidRequest: One cannot be compiled, is too large, or matches the empty text, which is
            everywhere.
    """
    compiled = []
    for at, source in enumerate(sources):
        where = f"stop_regex[{at}]"
        counts = re.findall(r"\{\s*([0-9]+)", source)
        if math.prod(max(1, int(count)) for count in counts) > MAX_REPEATS:
            raise InvalidRequest(
                f"{where}: the counts in {source!r} multiply to more than {MAX_REPEATS}",
                where,
            )
        try:
            pattern = regex.compile(source)
            empty = pattern.match("", timeout=CALL_SECONDS) is not None
        except (regex.error, RecursionError, OverflowError, MemoryError) as error:
            raise InvalidRequest(f"{where}: {source!r}: {error}", where) from None
        except TimeoutError:
            raise _too_slow(source) from None
        if empty:
            raise InvalidRequest(
                f"{where}: {source!r} matches the empty text and would stop at once",
                where,
            )
        compiled.append(pattern)
    return compiled


class StopFinder:
    """Looks for stops while a text grows.

    Args:
        stops: Strings.
        patterns: Patterns, as `compile_patterns` makes them.

    Attributes:
        best: The match that wins so far.
    """

    def __init__(self, stops: Iterable[str], patterns: Iterable[regex.Pattern[str]] = ()) -> None:
        literals = [_Literal(stop, order) for order, stop in enumerate(stops)]
        self._stops: list[_Literal | _Pattern] = [
            *literals,
            *(_Pattern(p, len(literals) + order) for order, p in enumerate(patterns)),
        ]
        self._keeps_all = len(self._stops) > len(literals)
        self._text = ""
        self._base = 0
        self._floor = 0
        self._budget = _Budget(BUDGET_SECONDS)
        self.best: Match | None = None

    def fork(self) -> StopFinder:
        """The same, for a text that goes on another way. Both have one budget of time."""
        made = copy(self)
        made._stops = [replace(stop) for stop in self._stops]
        return made

    @property
    def final(self) -> bool:
        """Whether `best` is the match, whatever text follows."""
        return self.best is not None and self.safe >= self.best.start

    @property
    def safe(self) -> int:
        """Characters that are before every stop, present or to come."""
        end = self._base + len(self._text)
        if self.best is not None:
            end = self.best.start
        return min((stop.start for stop in self._stops if stop.start < end), default=end)

    def feed(self, piece: str, *, counts: bool = True) -> None:
        """Append `piece` to the text.

        Args:
            piece: Text.
            counts: Whether a stop that is complete in this piece is one (not before
                `min_new_tokens`).

        Raises:
            InvalidRequest: A pattern takes too long.
        """
        if not piece:
            return
        self._text += piece
        if not counts:
            self._floor = self._base + len(self._text)
        began = time.thread_time() if self._keeps_all else 0.0
        limit = self._base + len(self._text) if self.best is None else self.best.start
        active = [stop for stop in self._stops if stop.start < limit]
        found = [stop.scan(self._text, self._base, self._floor) for stop in active]
        self.best = min((m for m in (*found, self.best) if m is not None), default=None)
        if self._keeps_all:
            self._spend(time.thread_time() - began)
        else:
            keep = self.safe
            self._text = self._text[keep - self._base :]
            self._base = keep

    def _spend(self, seconds: float) -> None:
        self._budget.seconds += BUDGET_PER_PIECE - seconds
        if self._budget.seconds < 0:
            raise _too_slow(
                next(s.compiled.pattern for s in self._stops if isinstance(s, _Pattern))
            )
