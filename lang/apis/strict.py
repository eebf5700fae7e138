"""JSON schemas as APIs want them: each object closed, each property required.

OpenAI's strict mode takes no others, and Anthropic wants objects closed. Both only narrow: what is
valid under the result is valid under the schema that was given. What cannot be narrowed so is left
as it is, for the API to refuse in its own words. This module knows no API.
"""

from __future__ import annotations

import json
from typing import Any

_PLURAL = ("properties", "$defs", "definitions")
_LISTS = ("anyOf", "prefixItems")
_TURNS = {"not", "if", "oneOf", "allOf", "dependentSchemas", "contains", "unevaluatedProperties"}
"""Keywords under or beside which a narrower part may make the whole wider, or empty."""


def narrowed(text: str) -> Any:
    """The schema of this JSON text, narrowed; or as it is, where that may not be sound."""
    schema = json.loads(text)
    return schema if _keys(schema) & _TURNS else _narrow(schema)


def _narrow(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    for key in _PLURAL:
        if isinstance(schema.get(key), dict):
            result[key] = {name: _narrow(part) for name, part in schema[key].items()}
    for key in _LISTS:
        if isinstance(schema.get(key), list):
            result[key] = [_narrow(part) for part in schema[key]]
    if "items" in schema:
        result["items"] = _narrow(schema["items"])
    properties = schema.get("properties")
    if isinstance(properties, dict) and not _must_be_optional(schema):
        result["required"] = list(dict.fromkeys([*schema.get("required", []), *properties]))
        if schema.get("additionalProperties", True) is True and "patternProperties" not in schema:
            result["additionalProperties"] = False
    return result


def _must_be_optional(schema: dict[str, Any]) -> bool:
    """Whether a property may be left out and has to: it allows nothing, or may end a recursion."""
    required = schema.get("required", [])
    optional = [part for name, part in schema["properties"].items() if name not in required]
    return any(part is False or (isinstance(part, dict) and "$ref" in part) for part in optional)


def _keys(schema: Any) -> set[str]:
    """All keys anywhere in it: more than its keywords, never fewer."""
    if isinstance(schema, dict):
        return set(schema).union(*map(_keys, schema.values()))
    if isinstance(schema, list):
        return set().union(*map(_keys, schema))
    return set()
