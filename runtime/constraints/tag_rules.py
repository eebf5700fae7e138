"""The rules of a structural tag's grammar, in llguidance's dialect of Lark, and their small parts.

The lexer takes the longest lexeme that any rule allows, so what must be exact beside others is
spelled letter by letter, and free text ends where the first string ends that leads out of it. This
module knows no formats and no tokenizer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from boughs.lang.constraints import JsonForm, between_slashes
from boughs.lang.errors import GrammarError

from .tag_formats import KIND, AnyText, Mark, Token

Piece = str | int
"""A special token by its id, or text without any."""


class Vocabulary(Protocol):
    """What must be known of the tokens, and of the one language that another translates."""

    @property
    def size(self) -> int:
        """How many there are."""

    @property
    def eos(self) -> Collection[int]:
        """Those that end an output."""

    def pieces(self, text: str) -> list[Piece]:
        """The special tokens of a text, and what is between them."""

    def token(self, text: str) -> int | None:
        """The one token that spells a text, if there is one."""

    def is_special(self, token: int) -> bool:
        """Whether it is none of those that text is made of."""

    def lark(self, gbnf: str) -> str:
        """A GBNF grammar in Lark; raises `GrammarError`."""


@dataclass
class Rules:
    """Rules, terminals and grammars, collected as they are needed.

    Attributes:
        vocabulary: The tokens.
        form: How JSON is written.
        lines: Rules and terminals.
        grammars: That `@name` refers to.
    """

    vocabulary: Vocabulary
    form: JsonForm
    lines: list[str] = field(default_factory=list)
    grammars: list[dict[str, str]] = field(default_factory=list)
    _texts: dict[str, str] = field(default_factory=dict)

    def rule(self, body: str, *, lazy: bool = False) -> str:
        """The name of a rule."""
        name = f"rule{len(self.lines)}"
        self.lines.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    def grammar(self, lark: str) -> str:
        """What refers to a grammar of its own."""
        self.grammars.append({"name": f"grammar{len(self.grammars)}", "lark_grammar": lark})
        return f"@{self.grammars[-1]['name']}"

    def terminal(self, body: str) -> str:
        """The name of a terminal."""
        if body not in self._texts:
            self._texts[body] = f"TEXT{len(self._texts)}"
            self.lines.append(f"{self._texts[body]}: {body}")
        return self._texts[body]

    def text(self, free: AnyText) -> str:
        """The terminal of free text."""
        if "" in free.excludes:
            raise GrammarError(f"{KIND}: excludes: a string is empty")
        bound = "*" if free.max_chars is None else f"{{0,{free.max_chars}}}"
        return self.terminal(f"/(?s:.{bound})/" + without(free.excludes))

    def lead(self, text: str, pieces: Sequence[Piece]) -> str:
        """Text of a terminal, up to and with the first place where these pieces are."""
        first, *rest = pieces
        if isinstance(first, int):
            if not self.vocabulary.is_special(first):
                raise GrammarError(
                    f"{KIND}: free text cannot tell where token {first} ends it, which is part of "
                    "text, too; any_tokens can, and so can a string"
                )
            return f"{text} {self.spelled(pieces)}"
        body = f"{text} {json.dumps(first, ensure_ascii=False)}"
        if rest:  # a special token, of which text has none: it tells which place is meant
            return f"{self.terminal(body)} {self.spelled(rest)}"
        return self.rule(body, lazy=True)

    def tokens(self, without: Iterable[int]) -> str:
        """Any token but these, and those that end the output."""
        ids = sorted({*without, *self.vocabulary.eos})
        return f"<[^{','.join(map(str, ids))}]>" if ids else "<[*]>"

    def id(self, token: int | str) -> int:
        """The id of a token.

        Raises:
            GrammarError: There is no such token.
        """
        if isinstance(token, str):
            found = self.vocabulary.token(token)
            if found is None:
                raise GrammarError(
                    f"{KIND}: token: {token!r:.60} is not one token of this model; "
                    "a const_string takes any text"
                )
            return found
        if not 0 <= token < self.vocabulary.size:
            raise GrammarError(
                f"{KIND}: token: {token} is out of range; this model has {self.vocabulary.size}"
            )
        return token

    def pieces(self, mark: Mark) -> list[Piece]:
        """The pieces of a string, or of one token."""
        return [self.id(mark.token)] if isinstance(mark, Token) else self.vocabulary.pieces(mark)

    def literal(self, mark: Mark, *, beside_text: bool = False) -> str:
        """A string, or a token.

        Args:
            mark: What it is.
            beside_text: Whether free text may stand in its place; the string goes before it.
        """
        pieces = self.pieces(mark)
        if beside_text and pieces and isinstance(pieces[0], str):
            first = self.rule(json.dumps(pieces[0], ensure_ascii=False), lazy=True)
            return f"{first} {self.spelled(pieces[1:])}"
        return self.spelled(pieces)

    def spelled(self, pieces: Sequence[Piece]) -> str:
        """Letter by letter: a longer lexeme would compete with others that begin alike."""
        made: list[str] = []
        for piece in pieces:
            made += map(json.dumps, piece) if isinstance(piece, str) else (f"<[{piece}]>",)
        return " ".join(made)

    def one(self, marks: Iterable[Mark]) -> str:
        """One of some strings and tokens, or nothing where there are none."""
        made = [*map(self.literal, marks)]
        return either(made) if made else ""


@dataclass(frozen=True)
class FreeRun:
    """What is free: an expression of all of it, and of it up to what leads out of it."""

    rules: Rules
    all: str
    of_tokens: bool = False

    def up_to(self, pieces: list[Piece]) -> str:
        """Up to and with the first of some pieces."""
        if self.of_tokens:
            return f"{self.all} {self.rules.spelled(pieces)}"
        return self.rules.lead(self.all, pieces)


def either(expressions: Iterable[str]) -> str:
    """One of some expressions; one that is empty stands for the empty text."""
    return "(" + " | ".join(text if text.strip() else '""' for text in expressions) + ")"


def times(expression: str, least: int, most: int | None) -> str:
    """An expression so many times."""
    if most == 0:
        return '""'
    return f"({expression}){{{least},{'' if most is None else most}}}"


def without(strings: Collection[str]) -> str:
    """What makes of a terminal one whose texts have none of these strings in them."""
    if not strings:
        return ""
    some = "|".join(map(re.escape, strings))
    return f" & ~{between_slashes(f'(?s:.*)(?:{some})(?s:.*)')}"
