"""The parts of a generated text that its grammar names: `grammar=seq("a", gen("x", …))`.

They are told by matching the finished text. This module knows no gen and no state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from boughs.lang.errors import BoughsError, GrammarError, Incomplete, InvalidRequest, InvalidValue
from boughs.lang.grammar import Grammar

MATCH_SECONDS = 5.0
"""How long a match may take: there are patterns that would try for years."""


@dataclass(frozen=True)
class Parts:
    """The named parts of one grammar.

    Attributes:
        names: The variables that they become.
        pattern: The whole text, in which each part is a group.
        many: Those that may occur more than once, whose variables are lists.
    """

    names: tuple[str, ...]
    pattern: str
    many: frozenset[str]

    @classmethod
    def of(cls, grammar: Grammar) -> Self | None:
        """Those of a grammar; None where there are none.

        Raises:
            GrammarError: The grammar has recursion or JSON, of which no part can be told, or the
                `regex` package does not know a pattern in it.
            InvalidRequest: Two parts have one name.
        """
        named = list(grammar.named())
        if not named:
            return None
        if not grammar.regular:
            raise GrammarError(
                "grammar: gen(…) stands in a grammar with recursion or JSON, of which no part can "
                "be told; leave it out, or give the part a gen of its own in the program",
                "grammar",
            )
        names = [name for name, _ in named]
        for name in names:
            if names.count(name) > 1:
                raise InvalidRequest(f"grammar: two parts are called {name!r}", "grammar")
        groups: list[str] = []
        pattern = grammar.pattern(groups)
        import regex

        try:
            regex.compile(pattern)
        except regex.error as error:
            raise GrammarError(f"grammar: its parts cannot be told: {error}", "grammar") from None
        return cls(tuple(groups), pattern, frozenset(name for name, many in named if many))

    def read(self, text: str, *, cut: bool) -> dict[str, Any]:
        """Each part's text, a list of texts, None, or the error that there is none to be told.

        Args:
            text: What was generated.
            cut: Whether the limit of tokens cut it.
        """
        import regex

        try:
            found = regex.fullmatch(self.pattern, text, timeout=MATCH_SECONDS)
        except TimeoutError:
            found = None
        if found is None:
            error: BoughsError = (Incomplete if cut else InvalidValue)(
                f"the parts of {text[-80:]!r} cannot be told"
                + (": max_tokens cut it; give more" if cut else "")
            )
            return dict.fromkeys(self.names, error)
        return {
            name: found.captures(f"g{at}") if name in self.many else found[f"g{at}"]
            for at, name in enumerate(self.names)
        }
