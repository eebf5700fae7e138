"""Structural tags as they are written: SGLang's form, and what xgrammar calls a `format`.

The words are xgrammar's. A format or a field that is not here is refused by its name. This module
knows no grammars.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

from boughs.lang.errors import GrammarError

KIND = "structural_tag"


class _Format(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, frozen=True):
    pass


class ConstString(_Format, tag="const_string", frozen=True):
    """One text."""

    value: str


class JsonSchema(_Format, tag="json_schema", frozen=True):
    """JSON that is valid under a schema; any JSON where there is none."""

    json_schema: dict[str, Any] | bool | None = None
    style: Literal["json"] = "json"


class Regex(_Format, tag="regex", frozen=True):
    """A text that a regex matches wholly."""

    pattern: str


class Grammar(_Format, tag="grammar", frozen=True):
    """A text of a GBNF grammar."""

    grammar: str


class AnyText(_Format, tag="any_text", frozen=True):
    """Any text."""


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


class Tag(_Format, tag="tag", frozen=True):
    """A begin, what it leads to, and one of some ends."""

    begin: str
    content: Format
    end: str | list[str]


class Triggered(_Format, tag="triggered_tags", frozen=True):
    """Free text, in which a trigger leads into a tag that begins with it."""

    triggers: list[str]
    tags: list[Tag]
    at_least_one: bool = False
    stop_after_first: bool = False


class Separated(_Format, tag="tags_with_separator", frozen=True):
    """Tags, and nothing but a separator between them."""

    tags: list[Tag]
    separator: str
    at_least_one: bool = False
    stop_after_first: bool = False


Format = (
    ConstString
    | JsonSchema
    | Regex
    | Grammar
    | AnyText
    | Elements
    | Or
    | Maybe
    | Star
    | Plus
    | Tag
    | Triggered
    | Separated
)


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
        raise GrammarError(f"{KIND}: {place.rstrip('`') or '$'}: {what}") from None
    except ValueError as error:
        if isinstance(error, GrammarError):
            raise
        raise GrammarError(f"{KIND}: not JSON: {error}") from None
    tags = [Tag(s.begin, JsonSchema(s.schema), s.end) for s in legacy.structures]
    return Triggered(legacy.triggers, tags, legacy.at_least_one)
