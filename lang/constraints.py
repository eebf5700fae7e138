"""The fields that hold an output to a grammar: which there are, and what may be written for them.

This module compiles nothing: what a source means is for the runtime to find out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from boughs.lang.errors import InvalidRequest

if TYPE_CHECKING:
    from boughs.lang.sampling import SamplingParams

CONSTRAINTS = (
    *("regex", "json_schema", "json_object", "ebnf", "lark", "choices", "structural_tag"),
)
"""The fields of which at most one may be set."""

SEPARATORS = (", ", ": ")
"""Between the items of JSON, and behind its keys; as Python's `json` writes them."""

MOST_WHITESPACE = 100

_SEPARATOR = re.compile(r"[ \t\n\r]{0,8}[,:][ \t\n\r]{0,8}")


class JsonForm(NamedTuple):
    """How JSON is written.

    Attributes:
        whitespace: At most so many characters of white space between two tokens; 0: exactly the
            separators, and no other.
        item: Between items.
        key: Behind a key.
    """

    whitespace: int = 0
    item: str = SEPARATORS[0]
    key: str = SEPARATORS[1]


class Constraint(NamedTuple):
    """What an output obeys: a source, of which kind it is, and how JSON in it is written."""

    kind: str
    source: str
    form: JsonForm = JsonForm()


def constraint(params: SamplingParams) -> Constraint | None:
    """What the output obeys, if anything."""
    for kind in ("regex", "ebnf", "lark"):
        source = getattr(params, kind)
        if source is not None:
            return Constraint(kind, source)
    if params.choices is not None:
        return Constraint("choices", json.dumps(params.choices, ensure_ascii=False))
    form = JsonForm(params.json_whitespace, *(params.json_separators or SEPARATORS))
    if params.json_object:
        return Constraint("json_schema", '{"type":"object"}', form)
    for kind in ("json_schema", "structural_tag"):
        source = getattr(params, kind)
        if source is not None:
            return Constraint(kind, source, form)
    return None


def check(params: SamplingParams, where: str) -> None:
    """Raise `InvalidRequest` where the fields do not go together, or are out of range.

    Args:
        params: The fields.
        where: What stands before a field's name in the error.
    """
    given = [name for name in CONSTRAINTS if getattr(params, name) not in (None, False)]
    if len(given) > 1:
        raise InvalidRequest(
            f"{where}{given[1]}: at most one of {', '.join(CONSTRAINTS)} may be given, "
            f"got {' and '.join(given)}",
            where + given[1],
        )
    if params.json_separators is not None and params.json_whitespace:
        raise InvalidRequest(
            f"{where}json_separators: with json_whitespace the model chooses the white space; "
            "give one of them",
            f"{where}json_separators",
        )


def bounds(params: SamplingParams) -> tuple[tuple[str, bool, str], ...]:
    """(field, whether it is out of range, what is allowed)."""
    choices, separators = params.choices, params.json_separators
    return (
        ("choices", choices == (), "at least one text"),
        ("choices", "" in (choices or ()), "texts that are not empty"),
        (
            "json_whitespace",
            not 0 <= params.json_whitespace <= MOST_WHITESPACE,
            f"from 0 to {MOST_WHITESPACE}",
        ),
        (
            "json_separators",
            separators is not None and not _are_separators(separators),
            "a comma and a colon, each with at most 8 characters of white space around",
        ),
    )


def _are_separators(pair: tuple[str, str]) -> bool:
    """White space is JSON's."""
    whole = all(_SEPARATOR.fullmatch(text) for text in pair)
    return whole and [text.strip() for text in pair] == [",", ":"]


def widened(name: str, value: Any) -> Any:
    """What a user may write for one of these fields, as what the field holds.

    Raises:
        InvalidRequest: It is no JSON.
    """
    if value == "":
        return None
    if name == "json_schema" and not isinstance(value, str):
        return json_schema_text(value)
    if name == "structural_tag" and isinstance(value, Mapping):
        return _dumped(value, name)
    return value


def json_schema_text(schema: object) -> str | None:
    """A JSON schema as text, from text, a dict, a bool, or a type that Pydantic can describe.

    Raises:
        InvalidRequest: It is none of these, or the text is no JSON.
    """
    if schema is None or schema == "":
        return None
    if isinstance(schema, str):
        try:
            json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"json_schema: not JSON: {error}", "json_schema") from None
        return schema
    if isinstance(schema, Mapping | bool):
        return _dumped(schema, "json_schema")
    if isinstance(schema, int | float | list | tuple):  # Pydantic's words for these help nobody
        raise _no_schema(schema, "")
    from boughs.lang.typed import json_schema_of

    try:
        return json.dumps(json_schema_of(schema))
    except TypeError as error:
        raise _no_schema(schema, f": {error}") from None


def _dumped(value: object, name: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name}: not JSON: {error}", name) from None


def _no_schema(schema: object, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"json_schema: expected a JSON text, a dict, or a type that Pydantic can describe, "
        f"got {schema!r:.60}{why}",
        "json_schema",
    )


def between_slashes(pattern: str) -> str:
    """A pattern as Lark has it: between slashes, on one line, without a slash of its own."""
    made, escaped = [], False
    for character in pattern:
        if character in "/\n":
            made.append(("" if escaped else "\\") + {"/": "/", "\n": "n"}[character])
        else:
            made.append(character)
        escaped = character == "\\" and not escaped
    return f"/{''.join(made)}/"
