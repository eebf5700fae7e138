"""JSON schemas in the form that llguidance takes.

What it lacks is rewritten to what means the same (`oneOf` whose branches exclude each other is
`anyOf`; a format that it does not know is an annotation, as the standard has it), or left out, and
then noted: the grammar allows more than the schema, and who uses it must check the finished value.
This module knows no tokens and compiles nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from boughs.lang.errors import GrammarError

from .exclusion import Resolve, excludes, local_refs

Schema = dict[str, Any] | bool

FORMATS = frozenset(
    (
        *("date-time", "time", "date", "duration", "email", "hostname"),
        *("ipv4", "ipv6", "uuid", "uri", "unknown"),
    )
)
"""What llguidance generates; any other `format` is an annotation (2020-12, Validation, 7.2.1)."""

_CHECKED = (
    *("not", "uniqueItems", "contains", "minContains", "maxContains", "propertyNames"),
    *("if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas"),
)
"""Assertions that a grammar leaves out, and a check of the finished value holds."""

_REFUSED = ("unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef")
"""Assertions without which a grammar would allow mostly what is wrong."""

_TYPES = ("null", "boolean", "object", "array", "number", "string")
_ONE = ("items", "additionalItems", "additionalProperties", "contains", "not")
_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")


@dataclass
class Rewritten:
    """A schema for llguidance.

    Attributes:
        schema: Allows all that the given one does.
        weaker: JSON pointers of keywords that it leaves out; a value that it allows may violate
            these.
    """

    schema: Schema
    weaker: list[str] = field(default_factory=list)


def rewrite(schema: Schema) -> Rewritten:
    """What llguidance is to make of a schema.

    Raises:
        GrammarError: A keyword that is not supported, or wrong; names its JSON pointer.
    """
    made = Rewritten(schema)
    if isinstance(schema, dict):  # an annotation, as the standard has it, but not to llguidance
        schema = {key: value for key, value in schema.items() if key != "x-guidance"}
    made.schema = _Rewriter(local_refs(schema), made.weaker).walk(schema, "#", ())
    return made


def children(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The subschemas of a schema, with their pointers below it."""
    for key in _ONE:
        if isinstance(schema.get(key), dict | bool):
            yield key, schema[key]
    for key in _MANY:
        if isinstance(schema.get(key), list):
            yield from ((f"{key}/{at}", child) for at, child in enumerate(schema[key]))
    for key in _NAMED:
        if isinstance(schema.get(key), dict):
            yield from ((f"{key}/{escape(name)}", sub) for name, sub in schema[key].items())


def escape(name: str) -> str:
    """A name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


@dataclass
class _Rewriter:
    resolve: Resolve
    weaker: list[str]

    def walk(self, schema: Any, at: str, above: tuple[str, ...]) -> Any:
        """The schema at a pointer, rewritten; `above` are the types that those around it allow."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise GrammarError(f"json_schema: {at}: expected a schema, got {schema!r:.40}")
        for key in _REFUSED:
            if key in schema:
                raise GrammarError(f"json_schema: {at}/{key}: {key} is not supported")
        made = dict(schema)
        if schema.get("not") in (True, {}):
            return False
        if not _without_types(made):
            return False
        self._leave_out(made, at)
        if isinstance(made.get("format"), str) and made["format"] not in FORMATS:
            del made["format"]
        own = schema.get("type", above)
        types = (own,) if isinstance(own, str) else tuple(own)
        self._descend(made, at, types)
        if "oneOf" in made:
            self._one_of(made, at, types)
        return made

    def _leave_out(self, made: dict[str, Any], at: str) -> None:
        schema = dict(made)
        for key in _CHECKED:
            if key not in made:
                continue
            del made[key]
            if _asserts(schema, key):
                self.weaker.append(f"{at}/{key}")

    def _descend(self, made: dict[str, Any], at: str, types: tuple[str, ...]) -> None:
        for key in _ONE:
            if isinstance(made.get(key), dict):
                made[key] = self.walk(made[key], f"{at}/{key}", ())
        for key in _MANY:
            if isinstance(made.get(key), list):
                inner = types if key.endswith("Of") else ()
                made[key] = [
                    self.walk(sub, f"{at}/{key}/{i}", inner) for i, sub in enumerate(made[key])
                ]
        for key in _NAMED:
            if isinstance(made.get(key), dict):
                made[key] = {
                    name: self.walk(sub, f"{at}/{key}/{escape(name)}", ())
                    for name, sub in made[key].items()
                }

    def _one_of(self, made: dict[str, Any], at: str, types: tuple[str, ...]) -> None:
        branches = made.pop("oneOf")
        if not isinstance(branches, list):
            raise GrammarError(f"json_schema: {at}/oneOf: expected a list, got {branches!r:.40}")
        pairs = ((a, b) for i, a in enumerate(branches) for b in branches[:i])
        if not all(excludes(a, b, self.resolve, types) for a, b in pairs):
            self.weaker.append(f"{at}/oneOf")
        if "anyOf" in made:
            made["allOf"] = [*made.get("allOf", ()), {"anyOf": branches}]
        else:
            made["anyOf"] = branches


def _asserts(schema: dict[str, Any], key: str) -> bool:
    """Whether a keyword that is left out asserts anything that no other one is noted for."""
    value = schema[key]
    if key == "if":
        return "then" in schema or "else" in schema
    if key in ("then", "else", "minContains", "maxContains"):
        return False  # noted with `if` and `contains`, without which they assert nothing
    if key in ("not", "uniqueItems"):
        return value is not False
    return value not in (True, {})


def _without_types(made: dict[str, Any]) -> bool:
    """Put `not: {type: ...}` into the types; False where none is left."""
    inner = made.get("not")
    if not isinstance(inner, dict) or set(inner) != {"type"}:
        return True
    given = inner["type"]
    without = {given} if isinstance(given, str) else set(given)
    if "integer" in without and "number" not in without:
        return True  # a number that is no integer has no type
    own = made.get("type", list(_TYPES))
    left = [
        kind
        for kind in ([own] if isinstance(own, str) else own)
        if kind not in without and not (kind == "integer" and "number" in without)
    ]
    del made["not"]
    made["type"] = left
    return bool(left)
