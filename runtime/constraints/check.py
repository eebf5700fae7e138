"""Whether a finished value is valid under its whole schema, where its grammar allowed more.

Nothing is fetched, and what takes too long is told. This module knows no grammar.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry

MOST = 300
"""Characters of a message that are kept: it may quote the whole value."""

SECONDS = 1.0
"""Time that a check may take."""


def violation(source: str, text: str, seconds: float = SECONDS) -> str | None:
    """How the JSON at the beginning of `text` violates a schema; None where it is valid.

    Args:
        source: The schema, which compiles.
        text: What a model wrote.
        seconds: After so many it is said that the check takes too long.
    """
    schema = json.loads(source)
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except ValueError as error:
        return f"not JSON: {error}"
    known = validator_for(schema, default=Draft202012Validator)
    made = extend(known, _timed(known.VALIDATORS, time.monotonic() + seconds))
    try:
        errors = made(schema, registry=Registry()).iter_errors(value)
        first = next(iter(errors), None)
    except (TimeoutError, RecursionError):
        return "it takes too long to check whether it is valid under the schema"
    except Exception as error:  # noqa: BLE001 -- of a schema that is itself wrong: many kinds
        return f"the schema cannot be checked: {error!s:.{MOST}}"
    if first is None:
        return None
    return f"{first.json_path}: {first.message:.{MOST}} ({'/'.join(map(str, first.schema_path))})"


def _timed(keywords: dict[str, Any], deadline: float) -> dict[str, Any]:
    """The keywords of a validator, none of which begins behind the deadline."""

    def timed(check: Callable[..., Any]) -> Callable[..., Any]:
        def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            if time.monotonic() > deadline:
                raise TimeoutError
            return check(validator, value, instance, schema) or iter(())

        return run

    return {name: timed(check) for name, check in {**keywords, **_PATTERNS}.items()}


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _search(pattern, instance):
        yield ValidationError(f"{instance!r:.80} does not match {pattern!r:.80}")


def _pattern_properties(
    validator: Any, patterns: dict[str, Any], instance: Any, _: Any
) -> Iterator[ValidationError]:
    if not isinstance(instance, dict):
        return
    for pattern, schema in patterns.items():
        for name, value in instance.items():
            if _search(pattern, name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _search(pattern: str, text: str) -> bool:
    return regex.search(pattern, text, timeout=SECONDS / 10) is not None


_PATTERNS = {"pattern": _pattern, "patternProperties": _pattern_properties}
"""Python's `re` has no bound on its time."""
