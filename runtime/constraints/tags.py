"""Structural tags: free text with constrained islands, as a Lark grammar.

This module knows no tokenizer: what in a text is a special token, it is told.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from boughs.lang.constraints import MOST_WHITESPACE, JsonForm, between_slashes
from boughs.lang.errors import GrammarError

from .json_form import json_term, with_json
from .tag_ends import Ends, begin_free, may_begin_free, may_lack
from .tag_formats import (
    KIND,
    AnyText,
    AnyTokens,
    ConstString,
    Dispatch,
    Elements,
    ExcludeToken,
    Format,
    Free,
    Grammar,
    Islands,
    JsonSchema,
    Mark,
    Maybe,
    Or,
    Plus,
    QwenParameters,
    Regex,
    Repeat,
    Repeated,
    Separated,
    Simple,
    Star,
    Tag,
    Token,
    TokenDispatch,
    TokenTriggered,
    Triggered,
    WithIslands,
    read_tag,
)
from .tag_rules import FreeRun, Piece, Rules, Vocabulary, either, times
from .tag_xml import parameters


def tag_grammar(source: str, form: JsonForm, vocabulary: Vocabulary) -> str:
    """The grammar of a structural tag.

    Args:
        source: JSON.
        form: How JSON in it is written.
        vocabulary: The tokens.

    Raises:
        GrammarError: Names what is wrong with it.
    """
    rules = Rules(vocabulary, form)
    fmt = read_tag(source)
    Ends(rules).check(fmt)
    start = _Writer(rules).write(fmt, [], last=True)
    lark = "\n".join([f"start: {start}", *rules.lines])
    return json.dumps({"grammars": [{"name": KIND, "lark_grammar": lark}, *rules.grammars]})


@dataclass
class _Writer:
    """Writes formats as expressions.

    Each method gives an expression for a format and what ends it: one of `ends`, of which there
    are none where nothing does. `last` is whether the output may end behind it, and only there;
    `beside` is whether free text may stand in its place.
    """

    rules: Rules

    def write(self, fmt: Format, ends: Sequence[Mark], *, last: bool, beside: bool = False) -> str:
        """The expression of any format."""
        match fmt:
            case AnyText() | AnyTokens():
                pieces = [*map(self.rules.pieces, ends)]
                return self._free(self._freely(fmt, pieces), pieces, last=last)
            case Elements():
                return self._sequence(fmt.elements, ends, last=last, beside=beside)
            case Or():
                self._require(fmt.elements, "or: elements")
                beside = beside or any(map(may_begin_free, fmt.elements))
                return either(self.write(e, ends, last=last, beside=beside) for e in fmt.elements)
            case Tag():
                begin = self.rules.literal(fmt.begin, beside_text=beside)
                return f"{begin} {self._body(fmt, ends, last=last)}"
            case Triggered() | TokenTriggered() | Dispatch() | TokenDispatch():
                return self._islands(fmt.islands(), ends, last=last)
            case Separated():
                return f"{self._separated(fmt, beside=beside)} {self.rules.one(ends)}"
            case Maybe() | Star() | Plus() | Repeat():
                content = self.write(fmt.content, [], last=False, beside=beside)
                return f"{_repeated(content, fmt)} {self.rules.one(ends)}"
            case _:
                return f"{self._simple(fmt, ends, beside=beside)} {self.rules.one(ends)}"

    def _body(self, tag: Tag, ends: Sequence[Mark], *, last: bool) -> str:
        """What follows the begin of a tag."""
        own: Sequence[Mark] = tag.ends
        self._require(own, "tag: end")
        if own == [""]:
            own, ends = ends, []
        try:
            content = self.write(tag.content, own, last=last and not own)
        except GrammarError as error:
            what = str(error).removeprefix(f"{KIND}: ")
            begin = tag.begin.token if isinstance(tag.begin, Token) else tag.begin
            raise GrammarError(f"{KIND}: behind {begin!r:.60}: {what}") from None
        return f"{content} {self.rules.one(ends)}"

    def _simple(self, fmt: Simple, ends: Sequence[Mark], *, beside: bool) -> str:
        """What itself tells where it ends."""
        rules = self.rules
        match fmt:
            case ConstString():
                return rules.literal(fmt.value, beside_text=beside)
            case QwenParameters():
                return parameters(rules, fmt.json_schema, "qwen_xml")
            case JsonSchema():
                schema = {} if fmt.json_schema is None else fmt.json_schema
                if fmt.style != "json":
                    return parameters(
                        rules, schema, fmt.style, fmt.max_whitespace_cnt, fmt.excludes
                    )
                if fmt.excludes:
                    raise GrammarError(
                        f"{KIND}: json_schema: excludes are not supported in the style json; a "
                        "pattern in the schema tells which strings there may be"
                    )
                form = _spaced(rules.form, fmt.max_whitespace_cnt)
                return rules.rule(json_term(schema, form, KIND))
            case Regex():
                return rules.rule(between_slashes(fmt.pattern))
            case Token():
                return rules.literal(fmt)
            case ExcludeToken():
                ids = [*map(rules.id, fmt.exclude_tokens)]
                first = (pieces[0] for end in ends if (pieces := rules.pieces(end)))
                return rules.tokens([*ids, *(piece for piece in first if isinstance(piece, int))])
            case Grammar(syntax="lark"):
                return rules.grammar(with_json(fmt.grammar, KIND))
            case Grammar():
                try:
                    return rules.grammar(rules.vocabulary.lark(fmt.grammar))
                except GrammarError as error:
                    raise GrammarError(f"{KIND}: grammar: {error}") from None

    def _sequence(
        self, elements: list[Format], ends: Sequence[Mark], *, last: bool, beside: bool
    ) -> str:
        made: list[str] = []
        at = 0
        while at < len(elements):
            element, rest = elements[at], elements[at + 1 :]
            before = may_lack(element) and begin_free(rest)
            before = before or (beside and not made)
            if not rest:
                made.append(self.write(element, ends, last=last, beside=before))
                break
            if isinstance(element, Free | WithIslands) and (end := _mark(rest[0])):
                made.append(self.write(element, [end], last=False))
                at += 1
                made += [] if rest[1:] else [self.rules.one(ends)]
            else:
                made.append(self.write(element, [], last=False, beside=before))
            at += 1
        return f"({' '.join(made)})" if made else self.rules.one(ends)

    def _free(self, free: FreeRun, ends: Sequence[list[Piece]], *, last: bool) -> str:
        """Any text or tokens, up to the first of its ends."""
        if ends and all(ends):
            return either(map(free.up_to, ends))
        if last and not ends:
            return free.all
        raise GrammarError(
            f"{KIND}: what is free (any_text, any_tokens, what is around tags) ends nowhere; put "
            "it last, or let a const_string, a token or the end of its tag follow"
        )

    def _freely(self, free: Free, ends: Sequence[list[Piece]]) -> FreeRun:
        """Free text or tokens that one of some ends leads out of."""
        if isinstance(free, AnyText):
            return FreeRun(self.rules, self.rules.text(free))
        first = {pieces[0] for pieces in ends if pieces}
        texts = [piece for piece in first if isinstance(piece, str)]
        if texts:
            raise GrammarError(
                f"{KIND}: tokens cannot tell where {texts[0]!r:.60} ends them; a token can, or let "
                "them be any_text"
            )
        ids = {self.rules.id(token) for token in free.exclude_tokens}
        tokens = self.rules.tokens(ids | {piece for piece in first if isinstance(piece, int)})
        return FreeRun(self.rules, times(tokens, 0, free.max_tokens), of_tokens=True)

    def _islands(self, fmt: Islands, ends: Sequence[Mark], *, last: bool) -> str:
        self._require(fmt.tags, f"{fmt.name}: its tags (structures, rules)")
        if "" in fmt.triggers:
            raise GrammarError(f"{KIND}: a trigger is empty")
        heads: dict[Piece, list[str]] = {}
        for tag in fmt.tags:
            head, rest = self._split(tag.begin, fmt.triggers)
            open_ended = last and fmt.stop_after_first and not ends
            body = self._body(tag, [], last=open_ended)
            heads.setdefault(head, []).append(f"{self.rules.spelled(rest)} {body}")
        self._require_begins(fmt)
        pieces = [*map(self.rules.pieces, ends)]
        free = self._freely(fmt.free, [*pieces, *([head] for head in heads)])
        rests = {head: self.rules.rule(either(bodies)) for head, bodies in heads.items()}
        first = either(f"{self.rules.spelled([head])} {rest}" for head, rest in rests.items())
        if fmt.at_least_one and fmt.stop_after_first:
            return f"{first} {self.rules.one(ends)}"
        island = either(f"{free.up_to([head])} {rest}" for head, rest in rests.items())
        text = self._free(free, pieces, last=last)
        if fmt.stop_after_first:
            return either((f"{island} {self.rules.one(ends)}", text))
        return f"({first if fmt.at_least_one else ''} {island}* {text})"

    def _split(self, begin: Mark, triggers: Sequence[Mark]) -> tuple[Piece, list[Piece]]:
        """What of a begin leads to it, and what follows.

        In free text, what leads is up to the end of the first trigger in it: of triggers that
        begin alike, or stand in each other, the one acts that is complete first.
        """
        first, *rest = self.rules.pieces(begin) or [""]
        if isinstance(begin, Token):
            if first not in [self.rules.id(t.token) for t in triggers if isinstance(t, Token)]:
                raise GrammarError(f"{KIND}: no trigger is the token {begin.token!r:.60}")
            return first, []
        texts = tuple(trigger for trigger in triggers if isinstance(trigger, str))
        if not begin.startswith(texts):
            shown = [t.token if isinstance(t, Token) else t for t in triggers]
            raise GrammarError(
                f"{KIND}: no trigger starts the begin {begin!r:.60}; triggers are {shown!r:.200}"
            )
        if isinstance(first, int):
            return first, rest
        end = next(at for at in range(1, len(begin) + 1) if begin[:at].endswith(texts))
        if end > len(first):
            raise GrammarError(
                f"{KIND}: the trigger {begin[:end]!r:.60} has a special token that is not its first"
            )
        return first[:end], [first[end:], *rest] if first[end:] else rest

    def _require_begins(self, fmt: Islands) -> None:
        begins = [self.rules.pieces(tag.begin) for tag in fmt.tags]
        texts = [tag.begin for tag in fmt.tags if isinstance(tag.begin, str)]
        for trigger in fmt.triggers:
            shown = trigger.token if isinstance(trigger, Token) else trigger
            if isinstance(trigger, Token):
                used = self.rules.pieces(trigger) in begins
            else:
                used = any(text.startswith(trigger) for text in texts)
            if not used:
                raise GrammarError(f"{KIND}: no begin starts with the trigger {shown!r:.60}")

    def _separated(self, fmt: Separated, *, beside: bool) -> str:
        self._require(fmt.tags, "tags_with_separator: tags")

        def tags(*, beside: bool) -> str:
            made = [self.write(tag, [], last=False, beside=beside) for tag in fmt.tags]
            return self.rules.rule(either(made))

        first = tags(beside=beside)
        more = ""
        if not fmt.stop_after_first:
            later = tags(beside=False) if beside else first
            more = f"({self.rules.literal(fmt.separator)} {later})*"
        return f"({first} {more}){'' if fmt.at_least_one else '?'}"

    @staticmethod
    def _require(items: Sequence[object], what: str) -> None:
        if not items:
            raise GrammarError(f"{KIND}: {what}: there must be at least one")


def _repeated(content: str, fmt: Repeated) -> str:
    match fmt:
        case Maybe():
            return f"({content})?"
        case Star():
            return f"({content})*"
        case Plus():
            return f"({content})+"
        case Repeat():
            if 0 <= fmt.max < fmt.min:
                raise GrammarError(f"{KIND}: repeat: max {fmt.max} is less than min {fmt.min}")
            return times(content, fmt.min, None if fmt.max < 0 else fmt.max)


def _mark(fmt: Format) -> Mark | None:
    """What a format is, if it can end what is free before it."""
    if isinstance(fmt, Token):
        return fmt
    return fmt.value or None if isinstance(fmt, ConstString) else None


def _spaced(form: JsonForm, most: int | None) -> JsonForm:
    """How JSON is written with at most so many characters of white space in a row."""
    if most is None:
        return form
    if most == 0:
        return JsonForm(0, ",", ":")
    return form._replace(whitespace=min(most, MOST_WHITESPACE))
