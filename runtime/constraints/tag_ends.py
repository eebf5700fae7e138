"""How formats of structural tags begin and end.

Some need not be, some begin with free text, and where a token ends the output, nothing may have to
follow it. This module writes no grammar and knows no tokenizer: which tokens a string has, it is
told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from boughs.lang.errors import GrammarError

from .tag_formats import (
    KIND,
    AnyText,
    AnyTokens,
    ConstString,
    Dispatch,
    Elements,
    Format,
    Mark,
    Maybe,
    Or,
    Plus,
    Repeat,
    Separated,
    Star,
    Tag,
    Token,
    TokenDispatch,
    TokenTriggered,
    Triggered,
)
from .tag_rules import Rules


@dataclass(frozen=True)
class Ends:
    """The tokens that end an output: `rules` knows them, and which tokens a string has."""

    rules: Rules

    def check(self, fmt: Format, *, more: bool = False) -> None:
        """Raise `GrammarError` where no output could come to the end of a format.

        Args:
            fmt: The format.
            more: Whether something has to follow it.
        """
        match fmt:
            case ConstString():
                self._check_mark(fmt.value, more=more)
            case Token():
                self._check_mark(fmt, more=more)
            case Elements():
                for at, element in enumerate(fmt.elements):
                    rest = fmt.elements[at + 1 :]
                    self.check(element, more=more or not all(map(may_lack, rest)))
            case Or():
                for element in fmt.elements:
                    self.check(element, more=more)
            case Maybe() | Star() | Plus():
                self.check(fmt.content, more=more)
            case Repeat():
                self.check(fmt.content, more=more or fmt.min > 1)
            case Tag():
                self._check_mark(fmt.begin, more=True)
                self.check(fmt.content, more=more or any(fmt.ends))
                for end in fmt.ends:
                    self._check_mark(end, more=more)
            case Triggered() | TokenTriggered() | Dispatch() | TokenDispatch():
                for tag in fmt.islands().tags:
                    self.check(tag, more=more)
            case Separated():
                self._check_mark(fmt.separator, more=True)
                for tag in fmt.tags:
                    self.check(tag, more=more)

    def _check_mark(self, mark: Mark, *, more: bool) -> None:
        pieces = self.rules.pieces(mark)
        for piece in pieces if more else pieces[:-1]:
            if piece in self.rules.vocabulary.eos:
                shown = mark.token if isinstance(mark, Token) else mark
                raise GrammarError(
                    f"{KIND}: {shown!r:.60} has a token that ends the output (EOS), and more would "
                    "have to follow it; it can only be the last of all"
                )


def may_lack(fmt: Format) -> bool:
    """Whether nothing need be where a format is, as far as that is easy to see."""
    match fmt:
        case Triggered() | TokenTriggered() | Dispatch() | TokenDispatch():
            return not fmt.islands().at_least_one
        case Separated():
            return not fmt.at_least_one
        case Repeat():
            return fmt.min == 0
        case Elements():
            return all(map(may_lack, fmt.elements))
        case _:
            return isinstance(fmt, AnyText | AnyTokens | Maybe | Star) or fmt == ConstString("")


def may_begin_free(fmt: Format) -> bool:
    """Whether a format may begin with free text."""
    match fmt:
        case AnyText():
            return True
        case Elements():
            return begin_free(fmt.elements)
        case Or():
            return any(map(may_begin_free, fmt.elements))
        case Maybe() | Star() | Plus() | Repeat():
            return may_begin_free(fmt.content)
        case Triggered() | Dispatch():
            return not fmt.islands().at_least_one
        case _:
            return False


def begin_free(elements: Sequence[Format]) -> bool:
    """Whether formats, one after the other, may begin with free text."""
    for element in elements:
        if may_begin_free(element):
            return True
        if not may_lack(element):
            return False
    return False
