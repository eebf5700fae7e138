"""Tokens that end an output, in the strings of structural tags: nothing may have to follow them.

This module knows no grammar and no tokenizer: which tokens a string has, it is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from boughs.lang.errors import GrammarError

from .tag_formats import (
    KIND,
    AnyText,
    ConstString,
    Elements,
    Format,
    Maybe,
    Or,
    Plus,
    Separated,
    Star,
    Tag,
    Triggered,
)


@dataclass(frozen=True)
class Ends:
    """The tokens that end an output.

    Attributes:
        eos: Their ids.
        pieces: The special tokens of a text by their ids, and what is between them.
    """

    eos: Collection[int]
    pieces: Callable[[str], list[str | int]]

    def check(self, fmt: Format, *, more: bool = False) -> None:
        """Raise `GrammarError` where no output could come to the end of a format.

        Args:
            fmt: The format.
            more: Whether something has to follow it.
        """
        match fmt:
            case ConstString():
                self._check_text(fmt.value, more=more)
            case Elements():
                for at, element in enumerate(fmt.elements):
                    rest = fmt.elements[at + 1 :]
                    self.check(element, more=more or not all(map(_may_lack, rest)))
            case Or():
                for element in fmt.elements:
                    self.check(element, more=more)
            case Maybe() | Star() | Plus():
                self.check(fmt.content, more=more)
            case Tag():
                self._check_text(fmt.begin, more=True)
                ends = [fmt.end] if isinstance(fmt.end, str) else fmt.end
                self.check(fmt.content, more=more or any(ends))
                for end in ends:
                    self._check_text(end, more=more)
            case Triggered() | Separated():
                if isinstance(fmt, Separated):
                    self._check_text(fmt.separator, more=True)
                for tag in fmt.tags:
                    self.check(tag, more=more)

    def _check_text(self, text: str, *, more: bool) -> None:
        pieces = self.pieces(text)
        for piece in pieces if more else pieces[:-1]:
            if piece in self.eos:
                raise GrammarError(
                    f"{KIND}: {text!r:.60} has a token that ends the output (EOS), and more would "
                    "have to follow it; it can only be the last of all"
                )


def _may_lack(fmt: Format) -> bool:
    if isinstance(fmt, Triggered | Separated):
        return not fmt.at_least_one
    return isinstance(fmt, AnyText | Maybe | Star) or fmt == ConstString("")
