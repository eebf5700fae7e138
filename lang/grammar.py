"""Grammars from parts, as small functions: for `gen("x", grammar=…)`.

    from boughs.grammar import alt, recursive, regex, seq

    number = regex("[0-9]{1,4}")
    term = recursive(lambda term: alt(number, seq("(", term, alt(" + ", " - "), term, ")")))

Wherever a part stands, a string is that string. A grammar becomes a source in Lark's dialect of
llguidance. Without recursion and JSON that is one token, and so a regular expression, and means
exactly what it says. With them, each `regex` is a token by itself, and a longer one goes first:
where `regex("a*")` can stand, it takes every "a". What is made of strings and of patterns of one
character (`plus(regex("[0-9]"))`) is exact there, too. This module knows no gen.
"""

from __future__ import annotations

import json as json_text
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from boughs.lang.constraints import between_slashes, json_schema_text
from boughs.lang.errors import GrammarError, InvalidRequest


@dataclass(frozen=True, eq=False)
class Grammar(ABC):
    """A set of texts. Made by the functions of this module."""

    @property
    def parts(self) -> tuple[Grammar, ...]:
        """What it is made of."""
        return ()

    @property
    def regular(self) -> bool:
        """Whether a regular expression can say it."""
        return all(part.regular for part in self.parts)

    @abstractmethod
    def form(self, write: Callable[[Grammar], str]) -> str:
        """It in Lark's words, with its parts as `write` writes them."""

    def in_rule(self, rules: _Rules) -> str:
        """It as a part of a rule."""
        return self.form(rules.part)

    def ends(self) -> bool:
        """Whether it has a finite text."""
        return all(part.ends() for part in self.parts)

    def pattern(self, groups: list[str]) -> str:  # noqa: ARG002 - those that have one take it
        """It as a pattern of the `regex` package, in which each named part is a group.

        Args:
            groups: The names of the groups so far; those of its own are appended.
        """
        raise GrammarError("grammar: gen(…) stands in no grammar with recursion or JSON")

    def named(self, *, many: bool = False) -> Iterator[tuple[str, bool]]:
        """The names of its parts, and whether each may occur more than once.

        Args:
            many: Whether it stands in a part that may.
        """
        for part in self.parts:
            yield from part.named(many=many)

    def lark(self) -> str:
        """The source.

        Raises:
            GrammarError: No text of it ends, or it refers to a rule that it is no part of.
        """
        if self.regular:
            return f"start: TEXT\nTEXT: {_in_token(self)}\n"
        rules = _Rules()
        lines = [f"start: {rules.part(self)}", *rules.lines]
        if not self.ends():
            raise GrammarError("grammar: none of its texts ends; recursion needs a way out")
        return "\n".join([*lines, ""])


Part: TypeAlias = Grammar | str


def lit(text: str) -> Grammar:
    """This text."""
    if not isinstance(text, str):
        raise InvalidRequest(f"lit: expected a text, got {text!r:.60}", "text")
    return _Literal(text)


def regex(pattern: str) -> Grammar:
    """Texts that match a regular expression (of Rust's dialect), wholly."""
    if not isinstance(pattern, str) or not pattern:
        raise InvalidRequest(f"regex: expected a pattern, got {pattern!r:.60}", "pattern")
    return _Regex(pattern)


def seq(*parts: Part) -> Grammar:
    """A text of each part, in order."""
    return _Sequence(tuple(_grammar(part, "seq") for part in parts)) if parts else lit("")


def alt(*parts: Part) -> Grammar:
    """A text of one of the parts."""
    if not parts:
        raise InvalidRequest("alt: there must be at least one part", "parts")
    return _Choice(tuple(_grammar(part, "alt") for part in parts))


def opt(part: Part) -> Grammar:
    """A text of the part, or nothing."""
    return _Repeat(_grammar(part, "opt"), 0, 1)


def gen(name: str, part: Part) -> Grammar:
    """A text of the part, which becomes the variable `name` beside the whole text.

    Where the part may occur many times (in `star`, `plus`, `repeat`), the variable is the list of
    its texts; where it does not occur (in `opt`, `alt`), it is None. Of several ways to read a text
    the one is taken in which earlier alternatives and longer repeats go first.
    """
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"gen: expected a variable's name, got {name!r:.60}", "name")
    return _Named(_grammar(part, "gen"), name)


def star(part: Part) -> Grammar:
    """Any number of texts of the part, also none."""
    return _Repeat(_grammar(part, "star"), 0, None)


def plus(part: Part) -> Grammar:
    """One or more texts of the part."""
    return _Repeat(_grammar(part, "plus"), 1, None)


def repeat(part: Part, least: int, most: int | None = None) -> Grammar:
    """At least `least` and at most `most` texts of the part; None is no limit."""
    if least < 0 or (most is not None and most < max(least, 1)):
        raise InvalidRequest(f"repeat: no text has {least} to {most} parts", "most")
    return _Repeat(_grammar(part, "repeat"), least, most)


def json(schema: str | Mapping[str, Any] | type) -> Grammar:
    """JSON that is valid under a schema (JSON text, a dict, or a Pydantic model class)."""
    text = json_schema_text(schema)
    if text is None:
        raise InvalidRequest("json: expected a schema, got none", "schema")
    return _Json(text)


def recursive(make: Callable[[Grammar], Part]) -> Grammar:
    """The grammar that `make` makes of itself."""
    reference = _Reference()
    return _Rule(reference, _grammar(make(reference), "recursive"))


@dataclass(frozen=True, eq=False)
class _Literal(Grammar):
    text: str

    def form(self, write: Callable[[Grammar], str]) -> str:  # noqa: ARG002
        return json_text.dumps(self.text)

    def pattern(self, groups: list[str]) -> str:  # noqa: ARG002
        return f"(?:{re.escape(self.text)})"

    def in_rule(self, rules: _Rules) -> str:  # noqa: ARG002
        # Letter by letter: a longer token would compete with others that begin alike.
        return " ".join(map(json_text.dumps, self.text)) or '""'


@dataclass(frozen=True, eq=False)
class _Regex(Grammar):
    source: str

    def form(self, write: Callable[[Grammar], str]) -> str:  # noqa: ARG002
        return between_slashes(self.source)

    def pattern(self, groups: list[str]) -> str:  # noqa: ARG002
        return f"(?:{self.source})"


@dataclass(frozen=True, eq=False)
class _Many(Grammar):
    inner: tuple[Grammar, ...]

    @property
    def parts(self) -> tuple[Grammar, ...]:
        return self.inner


@dataclass(frozen=True, eq=False)
class _Sequence(_Many):
    def form(self, write: Callable[[Grammar], str]) -> str:
        return f"({' '.join(map(write, self.inner))})"

    def pattern(self, groups: list[str]) -> str:
        return "".join(part.pattern(groups) for part in self.inner)


@dataclass(frozen=True, eq=False)
class _Choice(_Many):
    def form(self, write: Callable[[Grammar], str]) -> str:
        return f"({' | '.join(map(write, self.inner))})"

    def pattern(self, groups: list[str]) -> str:
        return f"(?:{'|'.join(part.pattern(groups) for part in self.inner)})"

    def ends(self) -> bool:
        return any(part.ends() for part in self.inner)


@dataclass(frozen=True, eq=False)
class _Repeat(Grammar):
    part: Grammar
    least: int
    most: int | None

    @property
    def parts(self) -> tuple[Grammar, ...]:
        return (self.part,)

    def form(self, write: Callable[[Grammar], str]) -> str:
        most = "" if self.most is None else self.most
        return f"({write(self.part)}){{{self.least},{most}}}"

    def ends(self) -> bool:
        return self.least == 0 or self.part.ends()

    def pattern(self, groups: list[str]) -> str:
        most = "" if self.most is None else self.most
        return f"(?:{self.part.pattern(groups)}){{{self.least},{most}}}"

    def named(self, *, many: bool = False) -> Iterator[tuple[str, bool]]:
        return self.part.named(many=many or self.most != 1)


@dataclass(frozen=True, eq=False)
class _Named(Grammar):
    part: Grammar
    name: str

    @property
    def parts(self) -> tuple[Grammar, ...]:
        return (self.part,)

    def form(self, write: Callable[[Grammar], str]) -> str:
        return write(self.part)

    def pattern(self, groups: list[str]) -> str:
        groups.append(self.name)
        return f"(?P<g{len(groups) - 1}>{self.part.pattern(groups)})"

    def named(self, *, many: bool = False) -> Iterator[tuple[str, bool]]:
        yield self.name, many
        yield from self.part.named(many=many)


@dataclass(frozen=True, eq=False)
class _Irregular(Grammar):
    @property
    def regular(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class _Json(_Irregular):
    schema: str

    def form(self, write: Callable[[Grammar], str]) -> str:  # noqa: ARG002
        return f"%json {self.schema}"

    def in_rule(self, rules: _Rules) -> str:
        return rules.name(self, "json", lambda: self.form(rules.part))


@dataclass(frozen=True, eq=False)
class _Reference(_Irregular):
    def form(self, write: Callable[[Grammar], str]) -> str:  # noqa: ARG002
        raise GrammarError("grammar: what recursive(…) gives its function is used outside of it")

    def in_rule(self, rules: _Rules) -> str:
        return rules.names.get(self) or self.form(rules.part)

    def ends(self) -> bool:
        return False  # a shortest text of a rule is made without the rule itself


@dataclass(frozen=True, eq=False)
class _Rule(_Irregular):
    reference: _Reference
    body: Grammar

    @property
    def parts(self) -> tuple[Grammar, ...]:
        return (self.body,)

    def form(self, write: Callable[[Grammar], str]) -> str:
        return write(self.body)

    def in_rule(self, rules: _Rules) -> str:
        return rules.name(self.reference, "rule", lambda: self.form(rules.part))

    def ends(self) -> bool:
        return self.body.ends()


@dataclass
class _Rules:
    """The lines of a source, and the names of those that have one."""

    lines: list[str] = field(default_factory=list)
    names: dict[Grammar, str] = field(default_factory=dict)

    def part(self, part: Grammar) -> str:
        """A part of a rule."""
        return part.in_rule(self)

    def name(self, part: Grammar, kind: str, write: Callable[[], str]) -> str:
        """The name of a part's line, which is written at the first use."""
        if part not in self.names:
            self.names[part] = f"{kind}{len(self.names)}"
            self.lines.append(f"{self.names[part]}: {write()}")
        return self.names[part]


def _in_token(part: Grammar) -> str:
    return part.form(_in_token)


def _grammar(part: object, where: str) -> Grammar:
    if isinstance(part, Grammar):
        return part
    if isinstance(part, str):
        return _Literal(part)
    raise InvalidRequest(f"{where}: expected text or a grammar, got {part!r:.60}", "parts")
