"""JSON in grammars: how it is written, and schemas as terms of a Lark grammar.

This module knows no tokens and compiles nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from boughs.lang.constraints import JsonForm
from boughs.lang.errors import GrammarError

from .schema import rewrite

PLAIN = JsonForm()


def json_grammar(schema: Any, form: JsonForm = PLAIN) -> str:
    """The grammar of a schema that has been rewritten."""
    return json.dumps({"grammars": [{"json_schema": _with_options(schema, form)}]})


def json_term(schema: Any, form: JsonForm, kind: str) -> str:
    """A schema as a term of a Lark grammar, on one line.

    Args:
        schema: As the user wrote it.
        form: How JSON is written.
        kind: What stands before an error: it has no place to tell a violation from.

    Raises:
        GrammarError: A keyword is wrong, or no grammar holds it; names its JSON pointer.
    """
    try:
        made = rewrite(schema)
    except GrammarError as error:
        raise GrammarError(f"{kind}: {str(error).removeprefix('json_schema: ')}") from None
    if made.weaker:
        raise GrammarError(
            f"{kind}: {made.weaker[0]}: no grammar holds this keyword, and a value that is only a "
            "part of the output is not checked behind it; leave it out, and check it yourself"
        )
    return f"%json {json.dumps(_with_options(made.schema, form))}"


def with_json(source: str, kind: str) -> str:
    """A Lark grammar whose JSON schemas are rewritten, and written as JSON is by default.

    Lines keep their numbers.

    Raises:
        GrammarError: Of a schema.
    """
    made, at = [], 0
    for found in _JSON.finditer(source):
        if found[1] is None or found.start() < at:
            continue
        begin = found.end()
        try:
            schema, end = json.JSONDecoder().raw_decode(source, begin)
        except ValueError as error:
            raise GrammarError(f"{kind}: %json: {error}") from None
        made += [source[at : found.start()], json_term(schema, PLAIN, f"{kind}: %json")]
        made.append("\n" * source.count("\n", found.start(), end))
        at = end
    return "".join((*made, source[at:]))


_JSON = re.compile(
    r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n*])(?:\\.|[^/\\\n])*/|//[^\n]*|#[^\n]*|(%json)\s*(?=[{tf])'
)
"""A `%json` that stands in no string, regex or comment."""


def _with_options(schema: Any, form: JsonForm) -> dict[str, Any]:
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return {**schema, "x-guidance": _options(form)}


def _options(form: JsonForm) -> dict[str, Any]:
    """White space is bounded, so that a model cannot loop on it."""
    if form.whitespace:
        return {
            "whitespace_flexible": True,
            "whitespace_pattern": rf"[ \t\n\r]{{1,{form.whitespace}}}",
            "lenient": False,
        }
    return {
        "whitespace_flexible": False,
        "item_separator": form.item,
        "key_separator": form.key,
        "lenient": False,
    }
