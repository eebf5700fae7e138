"""Structural tags as they are written: SGLang's form, and what xgrammar calls a `format`.

The words are xgrammar's. A format or a field that is not here is refused by its name. This module
knows no grammars.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args

import msgspec

from boughs.lang.errors import GrammarError

KIND = "structural_tag"

Style = Literal[
    "json",
    "qwen_xml",
    "minimax_xml",
    "glm_xml",
    "deepseek_xml",
    "deepseek_v4_1_xml",
    "kimi_k3_xml",
]
"""How the properties of an object are written. The others of xgrammar's write values of their own
kinds at every level, which is no JSON."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Format(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, frozen=True):
    pass


class Token(_Format, tag="token", frozen=True):
    """One token, by its id or its text."""

    token: int | str


Mark = str | Token
"""What a part begins or ends with."""


class ConstString(_Format, tag="const_string", frozen=True):
    """One text."""

    value: str


class JsonSchema(_Format, tag="json_schema", frozen=True):
    """JSON that is valid under a schema; any JSON where there is none."""

    json_schema: dict[str, Any] | bool | None = None
    style: Style = "json"
    max_whitespace_cnt: Count | None = None
    any_order: Literal[False] = False
    excludes: list[str] = []


class QwenParameters(_Format, tag="qwen_xml_parameter", frozen=True):
    """What xgrammar called the style `qwen_xml` before."""

    json_schema: dict[str, Any] | bool


class Regex(_Format, tag="regex", frozen=True):
    """A text that a regex matches wholly."""

    pattern: str


class Grammar(_Format, tag="grammar", frozen=True):
    """A text of a grammar: GBNF, or llguidance's dialect of Lark."""

    grammar: str
    syntax: Literal["ebnf", "lark"] = "ebnf"


class AnyText(_Format, tag="any_text", frozen=True):
    """Any text, of at most so many characters, and without some strings."""

    excludes: list[str] = []
    max_chars: Count | None = None
    max_tokens: None = None


class ExcludeToken(_Format, tag="exclude_token", frozen=True):
    """One token that is none of these."""

    exclude_tokens: list[int | str] = []


class AnyTokens(_Format, tag="any_tokens", frozen=True):
    """Any tokens but these, and at most so many."""

    exclude_tokens: list[int | str] = []
    max_tokens: Count | None = None


class Elements(_Format, tag="sequence", frozen=True):
    """One after the other."""

    elements: list[Format]


class Or(_Format, tag="or", frozen=True):
    """One of them."""

    elements: list[Format]


class Maybe(_Format, tag="optional", frozen=True):
    """Once, or not at all."""

    content: Format


class Star(_Format, tag="star", frozen=True):
    """Any number of times."""

    content: Format


class Plus(_Format, tag="plus", frozen=True):
    """Once or more."""

    content: Format


class Repeat(_Format, tag="repeat", frozen=True):
    """So many times; a `max` of -1 is no bound."""

    min: Count
    max: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
    content: Format


class Tag(_Format, tag="tag", frozen=True):
    """A begin, what it leads to, and one of some ends."""

    begin: Mark
    content: Format
    end: Mark | list[str]

    @property
    def ends(self) -> list[Mark]:
        """What may end it."""
        return [*self.end] if isinstance(self.end, list) else [self.end]


class Islands(msgspec.Struct, frozen=True):
    """What the four formats below have in common: free text, and tags in it.

    Attributes:
        name: Of the format.
        free: What stands around the tags.
        triggers: What leads into them: each tag begins with one of these.
        tags: The tags.
        at_least_one: The output begins with one.
        stop_after_first: Nothing follows the first.
    """

    name: str
    free: AnyText | AnyTokens
    triggers: list[Mark]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


class Triggered(_Format, tag="triggered_tags", frozen=True):
    """Free text, in which a trigger leads into a tag that begins with it."""

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False
    excludes: list[str] = []

    def islands(self) -> Islands:
        """Its common form."""
        free, flags = AnyText(self.excludes), (self.at_least_one, self.stop_after_first)
        return Islands("triggered_tags", free, [*self.triggers], self.tags, *flags)


class TokenTriggered(_Format, tag="token_triggered_tags", frozen=True):
    """Any tokens, of which some lead into a tag that begins with them."""

    trigger_tokens: list[int | str]
    tags: list[Tag]
    exclude_tokens: list[int | str] = []
    at_least_one: bool = False
    stop_after_first: bool = False

    def islands(self) -> Islands:
        """Its common form."""
        free, flags = AnyTokens(self.exclude_tokens), (self.at_least_one, self.stop_after_first)
        triggers: list[Mark] = [*map(Token, self.trigger_tokens)]
        return Islands("token_triggered_tags", free, triggers, self.tags, *flags)


class Dispatch(_Format, tag="dispatch", frozen=True):
    """Free text, in which each of some strings leads into a format."""

    rules: list[tuple[str, Format]]
    loop: bool = True
    excludes: list[str] = []

    def islands(self) -> Islands:
        """Its common form."""
        tags = [Tag(begin, content, "") for begin, content in self.rules]
        triggers: list[Mark] = [tag.begin for tag in tags]
        free = AnyText(self.excludes)
        return Islands("dispatch", free, triggers, tags, stop_after_first=not self.loop)


class TokenDispatch(_Format, tag="token_dispatch", frozen=True):
    """Any tokens, of which some lead into a format each."""

    rules: list[tuple[int | str, Format]]
    loop: bool = True
    exclude_tokens: list[int | str] = []

    def islands(self) -> Islands:
        """Its common form."""
        tags = [Tag(Token(begin), content, "") for begin, content in self.rules]
        triggers: list[Mark] = [tag.begin for tag in tags]
        free = AnyTokens(self.exclude_tokens)
        return Islands("token_dispatch", free, triggers, tags, stop_after_first=not self.loop)


class Separated(_Format, tag="tags_with_separator", frozen=True):
    """Tags, and nothing but a separator between them."""

    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Free = AnyText | AnyTokens
WithIslands = Triggered | TokenTriggered | Dispatch | TokenDispatch
Repeated = Maybe | Star | Plus | Repeat
Simple = ConstString | JsonSchema | QwenParameters | Regex | Grammar | Token | ExcludeToken
"""What itself tells where it ends."""

Format = Simple | Free | Elements | Or | Repeated | Tag | WithIslands | Separated


class _Structure(msgspec.Struct, forbid_unknown_fields=True):
    begin: str
    end: str
    schema: dict[str, Any] | bool | None = None


class _Legacy(msgspec.Struct, forbid_unknown_fields=True):
    structures: list[_Structure]
    triggers: list[str]
    type: Literal["structural_tag"] = "structural_tag"
    at_least_one: bool = False


class _Modern(msgspec.Struct, forbid_unknown_fields=True):
    format: Format
    type: Literal["structural_tag"] = "structural_tag"


def read_tag(source: str) -> Format:
    """The format that a structural tag describes.

    Args:
        source: JSON: SGLang's `structures` and `triggers`, or a `format`.

    Raises:
        GrammarError: Names the place in it, and what is wrong there.
    """
    try:
        value = json.loads(source)
        if not isinstance(value, dict):
            raise GrammarError(f"{KIND}: expected an object, got {value!r:.40}")
        if "structures" not in value and "triggers" not in value:
            return msgspec.convert(value, _Modern).format
        legacy = msgspec.convert(value, _Legacy)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `")
        place = place.rstrip("`") or "$"
        raise GrammarError(f"{KIND}: {place}: {what}{_mend(what, place)}") from None
    except ValueError as error:
        if isinstance(error, GrammarError):
            raise
        raise GrammarError(f"{KIND}: not JSON: {error}") from None
    tags = [Tag(s.begin, JsonSchema(s.schema), s.end) for s in legacy.structures]
    return Triggered(legacy.triggers, tags, legacy.at_least_one)


def _mend(what: str, place: str) -> str:
    """What to write instead, for what msgspec says is wrong at a place."""
    field = place.rpartition(".")[2]
    if place == "$.type":
        return f"; it is {KIND!r}"
    if what.startswith("Invalid"):
        names = {"type": _TYPES, "style": get_args(Style), "syntax": ("ebnf", "lark")}
        if field in names:
            return f"; it is one of {', '.join(names[field])}"
    return f"; {_MENDS[field]}" if field in _MENDS else ""


_TYPES = tuple(str(kind.__struct_config__.tag) for kind in get_args(Format))

_MENDS = {
    "any_order": "leave it out: keys come in the schema's order",
    "max_tokens": "max_chars bounds any_text, and max_tokens any_tokens",
}
"""By the last of a place."""
