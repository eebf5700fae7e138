"""Structural tags: free text with constrained islands, as a Lark grammar.

Free text ends where the first string ends that leads out of it, so it holds no trigger and no end.
This module knows no tokenizer: what in a text is a special token, it is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from boughs.lang.constraints import JsonForm
from boughs.lang.errors import GrammarError

from .json_form import PLAIN, json_term
from .tag_ends import Ends
from .tag_formats import (
    KIND,
    AnyText,
    ConstString,
    Elements,
    Format,
    Grammar,
    JsonSchema,
    Maybe,
    Or,
    Plus,
    Regex,
    Separated,
    Star,
    Tag,
    Triggered,
    read_tag,
)

Pieces = Callable[[str], list[str | int]]
"""A text's parts: special tokens by their ids, and what is between them."""


def whole(text: str) -> list[str | int]:
    """The pieces of a text without special tokens."""
    return [text] if text else []


def tag_grammar(
    source: str, form: JsonForm = PLAIN, pieces: Pieces = whole, eos: Collection[int] = ()
) -> str:
    """The grammar of a structural tag.

    Args:
        source: JSON.
        form: How JSON in it is written.
        pieces: What in its strings is a special token.
        eos: The tokens that end an output.

    Raises:
        GrammarError: Names what is wrong with it.
    """
    writer = _Writer(form, pieces)
    fmt = read_tag(source)
    Ends(eos, pieces).check(fmt)
    start = writer.write(fmt, [], last=True)
    lines = [f"start: {start}", "TEXT: /(?s:.*)/", *writer.lines]
    return json.dumps(
        {"grammars": [{"name": KIND, "lark_grammar": "\n".join(lines)}, *writer.grammars]}
    )


@dataclass
class _Writer:
    """Writes formats as expressions; rules and grammars that they need are collected.

    Each method gives an expression for a format and what ends it: one of `ends`, of which there
    are none where nothing does. `last` is whether the output may end behind it, and only there.
    """

    form: JsonForm
    pieces: Pieces
    lines: list[str] = field(default_factory=list)
    grammars: list[dict[str, str]] = field(default_factory=list)

    def write(self, fmt: Format, ends: Sequence[str], *, last: bool) -> str:
        """The expression of any format."""
        match fmt:
            case AnyText():
                return self._text(ends, last=last)
            case Elements():
                return self._sequence(fmt.elements, ends, last=last)
            case Or():
                self._require(fmt.elements, "or: elements")
                return _either(self.write(e, ends, last=last) for e in fmt.elements)
            case Tag():
                return f"{self._literal(fmt.begin)} {self._body(fmt, ends, last=last)}"
            case Triggered():
                return self._triggered(fmt, ends, last=last)
            case Separated():
                return f"{self._separated(fmt)} {self._one(ends)}"
            case Maybe() | Star() | Plus():
                sign = {Maybe: "?", Star: "*", Plus: "+"}[type(fmt)]
                return f"({self.write(fmt.content, [], last=False)}){sign} {self._one(ends)}"
            case _:
                return self._bounded(fmt, ends)

    def _body(self, tag: Tag, ends: Sequence[str], *, last: bool) -> str:
        """What follows the begin of a tag."""
        own = [tag.end] if isinstance(tag.end, str) else tag.end
        self._require(own, "tag: end")
        if own == [""]:
            own, ends = list(ends), []
        try:
            content = self.write(tag.content, own, last=last and not own)
        except GrammarError as error:
            what = str(error).removeprefix(f"{KIND}: ")
            raise GrammarError(f"{KIND}: behind {tag.begin!r:.60}: {what}") from None
        return f"{content} {self._one(ends)}"

    def _bounded(self, fmt: ConstString | JsonSchema | Regex | Grammar, ends: Any) -> str:
        """What itself tells where it ends."""
        match fmt:
            case ConstString():
                return f"{self._literal(fmt.value)} {self._one(ends)}"
            case JsonSchema():
                schema = {} if fmt.json_schema is None else fmt.json_schema
                return f"{self._rule(json_term(schema, self.form, KIND))} {self._one(ends)}"
            case Regex():
                return f"{self._rule(f'/{_between_slashes(fmt.pattern)}/')} {self._one(ends)}"
            case Grammar():
                name = f"grammar{len(self.grammars)}"
                try:
                    lark = gbnf_to_lark(fmt.grammar)
                except Exception as error:  # noqa: BLE001 -- what the converter raises, in part
                    raise GrammarError(f"{KIND}: grammar: {error}") from None
                self.grammars.append({"name": name, "lark_grammar": lark})
                return f"@{name} {self._one(ends)}"

    def _sequence(self, elements: list[Format], ends: Sequence[str], *, last: bool) -> str:
        made, at = [], 0
        while at < len(elements):
            final = at == len(elements) - 1
            if not final and isinstance(elements[at], AnyText | Triggered):
                following = elements[at + 1]
                if isinstance(following, ConstString):  # it ends the text before it
                    made.append(self.write(elements[at], [following.value], last=False))
                    at += 2
                    if at == len(elements):
                        made.append(self._one(ends))
                    continue
            made.append(self.write(elements[at], ends if final else [], last=last and final))
            at += 1
        return f"({' '.join(made)})" if made else self._one(ends)

    def _text(self, ends: Sequence[str], *, last: bool) -> str:
        """Any text, up to the first of its ends."""
        if ends:
            return _either(self._after_text(end) for end in ends)
        if last:
            return "TEXT"
        raise GrammarError(
            f"{KIND}: free text (any_text, triggered_tags) ends nowhere; put it last, or let it be "
            "followed by a const_string, or by the end of a tag"
        )

    def _after_text(self, end: str) -> str:
        """Text up to the end of a string."""
        first, *rest = self.pieces(end)
        return f"{self._lead(first)} {self._spelled(rest)}"

    def _lead(self, piece: str | int) -> str:
        """Text up to and with a piece."""
        if isinstance(piece, int):
            return f"TEXT <[{piece}]>"
        return self._rule(f"TEXT {json.dumps(piece)}", lazy=True)

    def _triggered(self, fmt: Triggered, ends: Sequence[str], *, last: bool) -> str:
        self._require(fmt.tags, "triggered_tags: tags (structures)")
        if "" in fmt.triggers:
            raise GrammarError(f"{KIND}: a trigger is empty")
        heads: dict[str | int, list[str]] = {}
        for tag in fmt.tags:
            head, rest = self._split(tag.begin, fmt.triggers)
            open_ended = last and fmt.stop_after_first and not ends
            body = self._body(tag, [], last=open_ended)
            heads.setdefault(head, []).append(f"{self._spelled(rest)} {body}")
        for trigger in fmt.triggers:
            if not any(tag.begin.startswith(trigger) for tag in fmt.tags):
                raise GrammarError(f"{KIND}: no begin starts with the trigger {trigger!r:.60}")
        island = _either(f"{self._lead(head)} {_either(rests)}" for head, rests in heads.items())
        if fmt.stop_after_first:
            whole_island = f"({island} {self._one(ends)})"
            if fmt.at_least_one:
                return whole_island
            return _either((whole_island, self._text(ends, last=last)))
        return f"({island}{'+' if fmt.at_least_one else '*'} {self._text(ends, last=last)})"

    def _split(self, begin: str, triggers: Sequence[str]) -> tuple[str | int, list[str | int]]:
        """What of a begin leads to it, in free text, and what follows.

        What leads is up to the end of the first trigger in it: of triggers that begin alike, or
        stand in each other, the one acts that is complete first.
        """
        if not begin.startswith(tuple(triggers)):
            raise GrammarError(
                f"{KIND}: no trigger starts the begin {begin!r:.60}; triggers are {triggers!r:.200}"
            )
        first, *rest = self.pieces(begin)
        if isinstance(first, int):
            return first, rest
        ends = (at for at in range(1, len(begin) + 1) if begin[:at].endswith(tuple(triggers)))
        end = next(ends)
        if end > len(first):
            raise GrammarError(
                f"{KIND}: the trigger {begin[:end]!r:.60} has a special token that is not its first"
            )
        return first[:end], [first[end:], *rest] if first[end:] else rest

    def _separated(self, fmt: Separated) -> str:
        self._require(fmt.tags, "tags_with_separator: tags")
        tag = self._rule(_either(self.write(tag, [], last=False) for tag in fmt.tags))
        more = "" if fmt.stop_after_first else f"({self._literal(fmt.separator)} {tag})*"
        return f"({tag} {more}){'' if fmt.at_least_one else '?'}"

    # ---- strings and rules ----

    def _one(self, ends: Sequence[str]) -> str:
        return _either(map(self._literal, ends)) if ends else ""

    def _literal(self, text: str) -> str:
        return self._spelled(self.pieces(text))

    def _spelled(self, pieces: Sequence[str | int]) -> str:
        """Letter by letter: a longer lexeme would compete with others that begin alike."""
        made: list[str] = []
        for piece in pieces:
            letters = map(json.dumps, piece) if isinstance(piece, str) else (f"<[{piece}]>",)
            made += letters
        return " ".join(made)

    def _rule(self, body: str, *, lazy: bool = False) -> str:
        name = f"rule{len(self.lines)}"
        self.lines.append(f"{name}{'[lazy]' if lazy else ''}: {body}")
        return name

    @staticmethod
    def _require(items: Sequence[object], what: str) -> None:
        if not items:
            raise GrammarError(f"{KIND}: {what}: there must be at least one")


def _either(expressions: Iterable[str]) -> str:
    """One of some expressions; one that is empty stands for the empty text."""
    return "(" + " | ".join(text if text.strip() else '""' for text in expressions) + ")"


def _between_slashes(pattern: str) -> str:
    """The pattern as it stands between slashes: on one line, and without a slash of its own."""
    made, escaped = [], False
    for character in pattern:
        if character in "/\n":
            made.append(("" if escaped else "\\") + {"/": "/", "\n": "n"}[character])
        else:
            made.append(character)
        escaped = character == "\\" and not escaped
    return "".join(made)
