"""Whether no value can be valid under two JSON schemas at once, as far as that is easy to see.

This module knows nothing of grammars: it reads schemas, and a wrong "no" costs only precision.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Resolve = Callable[[Any], Any]
"""A schema in place of one that only refers to it."""

_ALL = frozenset(("null", "boolean", "object", "array", "number", "string", "integer"))
DEPTH = 4
"""Levels of properties that are looked into."""


def local_refs(root: Any) -> Resolve:
    """Resolves `$ref`s into the same document; what it cannot resolve stays as it is."""

    def resolve(schema: Any) -> Any:
        for _ in range(8):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                return schema
            target = _at(root, schema["$ref"])
            rest = {key: value for key, value in schema.items() if key != "$ref"}
            if not isinstance(target, dict) or rest.keys() & target.keys():
                return schema
            schema = {**target, **rest}
        return schema

    return resolve


def excludes(a: Any, b: Any, resolve: Resolve, types: tuple[str, ...] = (), depth: int = 0) -> bool:
    """Whether no value is valid under both `a` and `b`.

    Args:
        a: A schema.
        b: Another.
        resolve: What `local_refs` gives.
        types: Those that the value has in any case; none stands for all.
        depth: Levels of properties above.
    """
    a, b = resolve(a), resolve(b)
    if a is False or b is False:
        return True
    if not isinstance(a, dict) or not isinstance(b, dict) or depth > DEPTH:
        return False
    for one, other in ((a, b), (b, a)):
        parts = one.get("allOf")
        if isinstance(parts, list) and any(
            excludes(part, other, resolve, types, depth + 1) for part in parts
        ):
            return True
    common = _types(a) & _types(b) & (_widened(types) or _ALL)
    if not common or _values_differ(a, b):
        return True
    return common == {"object"} and _objects_differ(a, b, resolve, depth)


def _types(schema: dict[str, Any]) -> frozenset[str]:
    given = schema.get("type")
    if isinstance(given, str):
        return _widened((given,))
    if isinstance(given, list):
        return _widened(tuple(given))
    values = _values(schema)
    return _ALL if values is None else frozenset().union(*(_types_of(value) for value in values))


def _widened(types: tuple[str, ...]) -> frozenset[str]:
    """Every integer is a number, too."""
    return frozenset(types) | ({"integer"} if "number" in types else frozenset())


def _types_of(value: Any) -> frozenset[str]:
    kinds = {type(None): "null", bool: "boolean", dict: "object", list: "array", str: "string"}
    kind = kinds.get(type(value))
    return frozenset((kind,)) if kind else frozenset(("number", "integer"))


def _values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _values_differ(a: dict[str, Any], b: dict[str, Any]) -> bool:
    ours, theirs = _values(a), _values(b)
    if ours is None or theirs is None:
        return False
    return not {_key(value) for value in ours} & {_key(value) for value in theirs}


def _key(value: Any) -> str:
    """Equal for values that JSON Schema takes for equal: 1 and 1.0 are."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, list):
        return "[" + ",".join(map(_key, value)) + "]"
    if isinstance(value, dict):
        items = sorted((name, _key(sub)) for name, sub in value.items())
        return "{" + ",".join(f"{json.dumps(name)}:{sub}" for name, sub in items) + "}"
    return json.dumps(value)


def _objects_differ(a: dict[str, Any], b: dict[str, Any], resolve: Resolve, depth: int) -> bool:
    """Whether a property that one of two schemas of objects requires cannot suit the other."""
    for one, other in ((a, b), (b, a)):
        for name in one.get("required") or ():
            theirs = _property(other, name)
            ours = _property(one, name)
            if excludes(ours, theirs, resolve, (), depth + 1):
                return True
    return False


def _property(schema: dict[str, Any], name: str) -> Any:
    """The schema of a property, or True where any value may be."""
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return not closed


def _at(root: Any, ref: str) -> Any:
    """What a reference `#/a/b` points to; None where it is not one of these, or dangles."""
    if ref != "#" and not ref.startswith("#/"):
        return None
    found = root
    for part in ref.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found
