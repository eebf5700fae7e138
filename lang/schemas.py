"""JSON schemas of Python types, made so that a model can write them and comes to an end.

This module knows no gen. That Pydantic writes the schemas and llguidance reads them, it knows.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from boughs.lang.scalars import FORMAT_EXAMPLES, FORMATS, MAX_DIGITS

_OPEN = frozenset({"integer", "number"})
_MOST = 10**MAX_DIGITS - 1


def closed(schema: Any) -> Any:
    """The schema with what Pydantic leaves open closed.

    Objects have no other properties than those named, whole numbers at most 18 digits, dates and
    times are ones of the calendar, and alternatives (`oneOf`) are what llguidance knows (`anyOf`):
    Pydantic reads the first that fits.
    """
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = {key: _closed_part(key, value) for key, value in schema.items()}
    for key in ("discriminator", "default", "examples"):
        made.pop(key, None)
    if "oneOf" in made:
        made["anyOf"] = made.pop("oneOf")
    if "properties" in made:
        made.setdefault("additionalProperties", False)
    if made.get("type") == "integer" and "enum" not in made and "const" not in made:
        bounded(made)
    pattern = FORMATS.get(made.get("format", ""))
    if made.get("type") == "string" and pattern is not None:
        del made["format"]
        made["pattern"] = f"^{pattern}$"
    return made


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """Give a number's schema the bounds that it lacks."""
    if "minimum" not in schema and "exclusiveMinimum" not in schema:
        schema["minimum"] = -_MOST
    if "maximum" not in schema and "exclusiveMaximum" not in schema:
        schema["maximum"] = _MOST
    return schema


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a schema that only refers to another refers to."""
    while set(schema) >= {"$ref"}:
        schema = root["$defs"][str(schema["$ref"]).removeprefix("#/$defs/")]
    return schema


def ends_itself(schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    """Whether a whole text of the schema can be no begin of another: it is no number."""
    schema = resolved(schema, root)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return all(ends_itself(item, root) for item in schema[key])
    if "const" in schema or "enum" in schema:
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        return not any(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    kind = schema.get("type")
    return isinstance(kind, str) and kind not in _OPEN


def example(schema: Any, root: Mapping[str, Any]) -> Any:
    """Plain data that is valid under most schemas: what each part needs and no more.

    A part's own `examples` go first: there is no other way to know what fits a pattern.
    """
    schema = resolved(schema, root) if isinstance(schema, Mapping) else {}
    if schema.get("examples"):
        return schema["examples"][0]
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for key in ("anyOf", "oneOf"):
        if key in schema:
            options = [resolved(option, root) for option in schema[key]]
            if any(option.get("type") == "null" for option in options):
                return None  # and so a type that holds itself comes to its end
            return example(options[0], root)
    return _example_of(schema, root)


@functools.lru_cache(maxsize=512)
def refusal(kind: str, source: str) -> str:
    """What the compiler of grammars has against a source, so that it is said where it is written.

    Args:
        kind: `json_schema` or `ebnf`.
        source: The source.

    Returns:
        Its words; an empty text if it has nothing against it.
    """
    from llguidance import LLMatcher

    read = {
        "json_schema": LLMatcher.grammar_from_json_schema,
        "ebnf": LLMatcher.grammar_from_lark,
    }
    try:
        said = str(LLMatcher.validate_grammar(read[kind](source)))
    except ValueError as error:
        said = str(error)
    return " ".join(said.split())[:200]


def _example_of(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Any:
    """The same for a schema that says its type, or allows all."""
    match schema.get("type"):
        case "integer" | "number":
            return _number(schema)
        case "string":
            text = FORMAT_EXAMPLES.get(schema.get("format", ""), "")
            return text.ljust(schema.get("minLength", 0), "x")
        case "boolean":
            return False
        case "array":
            items = [example(item, root) for item in schema.get("prefixItems", ())]
            least = schema.get("minItems", 0) - len(items)
            return items + [example(schema.get("items", {}), root) for _ in range(least)]
        case "object":
            needed = schema.get("required", ())
            return {name: example(schema["properties"][name], root) for name in needed}
        case _:
            return None


def _number(schema: Mapping[str, Any]) -> Any:
    """0, or the number nearest to it that its bounds and its step allow."""
    step = schema.get("multipleOf", 1 if schema["type"] == "integer" else 0.5)
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    if least is not None and (least > 0 or schema.get("exclusiveMinimum") == 0):
        number = -(-least // step) * step
        return number + step if number == schema.get("exclusiveMinimum") else number
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    if most is not None and (most < 0 or schema.get("exclusiveMaximum") == 0):
        number = most // step * step
        return number - step if number == schema.get("exclusiveMaximum") else number
    return 0


def _closed_part(key: str, value: Any) -> Any:
    """A keyword's value, closed: names of properties are no keywords."""
    if key in ("properties", "$defs", "patternProperties") and isinstance(value, Mapping):
        return {name: closed(schema) for name, schema in value.items()}
    return value if key in ("enum", "const", "default", "examples") else closed(value)
