"""Where a text ends, found on this side: stops that an API does not take.

This module knows no API and no tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import regex

from boughs.lang.errors import GrammarError
from boughs.lang.sampling import SamplingParams

MATCH_SECONDS = 2.0
"""How long one match may take: patterns are the user's, the text is a stranger's."""


class Pattern:
    """A pattern of the user's, each match of which takes a bounded time.

    Args:
        source: In the syntax of the `regex` package.
        name: The parameter, for errors.

    Raises:
        GrammarError: It is no pattern; or, from its methods, a match takes too long.
    """

    def __init__(self, source: str, name: str) -> None:
        self._source, self._name = source, name
        try:
            self._compiled = regex.compile(source)
        except regex.error as error:
            raise GrammarError(f"{name}: {source!r:.60} is no pattern: {error}", name) from None

    def search(self, text: str, begin: int, *, partial: bool) -> regex.Match[str] | None:
        """The first match from `begin` on, else with `partial` one that more text may complete."""
        try:
            return self._compiled.search(text, begin, partial=partial, timeout=MATCH_SECONDS)
        except TimeoutError:
            raise self._slow() from None

    def matches(self, text: str, *, partial: bool = False) -> bool:
        """Whether it matches the whole text; with `partial` also if it could with more text."""
        try:
            found = self._compiled.fullmatch(text, partial=partial, timeout=MATCH_SECONDS)
        except TimeoutError:
            raise self._slow() from None
        return found is not None

    def _slow(self) -> GrammarError:
        return GrammarError(
            f"{self._name}: {self._source!r:.60} takes more than {MATCH_SECONDS:g} s to match",
            self._name,
        )


class Stopper:
    """Ends a text that comes in pieces at the earliest of its stops.

    Args:
        stop: Strings.
        stop_regex: Patterns.
        keep: Whether the stop stays in the text.

    Attributes:
        matched: The text of the stop, once it was found.
        raw: All text so far, up to the end of the stop.
    """

    def __init__(self, stop: Iterable[str], stop_regex: Iterable[str], *, keep: bool) -> None:
        self._patterns = [Pattern(regex.escape(text), "stop") for text in stop]
        self._patterns += [Pattern(source, "stop_regex") for source in stop_regex]
        self._keep = keep
        self._given = 0
        self.matched: str | None = None
        self.raw = ""

    def feed(self, text: str) -> str:
        """Take a piece; what of the text is certain now and was not given before."""
        if self.matched is not None:
            return ""
        self.raw += text
        return self._give(self._end(partial=True))

    def rest(self) -> str:
        """What is left when no more comes."""
        if self.matched is not None:
            return ""
        return self._give(self._end(partial=False))

    def _give(self, end: int) -> str:
        new, self._given = self.raw[self._given : end], max(self._given, end)
        return new

    def _end(self, *, partial: bool) -> int:
        """Up to where the text is certain. Of stops that begin together the longer one counts."""
        best: tuple[int, int, bool] | None = None
        for pattern in self._patterns:
            found = pattern.search(self.raw, self._given, partial=partial)
            if found is None or (found.partial and found.start() == len(self.raw)):
                continue
            place = (found.start(), -found.end(), found.partial)
            best = place if best is None else min(best, place)
        if best is None:
            return len(self.raw)
        start, end, unsure = best[0], -best[1], best[2]
        if unsure:
            return start
        self.matched = self.raw[start:end]
        self.raw = self.raw[:end]
        return end if self._keep else start


def stopper(params: SamplingParams) -> Stopper:
    """What ends a text as these parameters say."""
    return Stopper(params.stop, params.stop_regex, keep=params.no_stop_trim)
