"""Sources of grammars, as users write them, in llguidance's form.

This module knows no tokenizer: whether a grammar can be compiled is for `trial` to find out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from boughs.lang.constraints import JsonForm, between_slashes
from boughs.lang.errors import GrammarError

from .backend import Translated
from .json_form import json_grammar, with_json
from .schema import children, rewrite
from .tag_rules import Vocabulary
from .tags import tag_grammar


def translate(kind: str, source: str, form: JsonForm, vocabulary: Vocabulary) -> Translated:
    """The grammar of a source.

    Args:
        kind: `regex`, `json_schema`, `ebnf`, `lark`, `choices` or `structural_tag`.
        source: Of `choices` a JSON list.
        form: How JSON is written, of schemas and structural tags.
        vocabulary: The tokens.

    Raises:
        GrammarError: Names the kind, and what is wrong with the source.
    """
    try:
        if kind == "structural_tag":
            return Translated(tag_grammar(source, form, vocabulary))
        if kind == "json_schema":
            return _json_schema(source, form)
        if kind == "ebnf":
            return Translated(_ebnf(source, vocabulary))
        return Translated(_GRAMMARS[kind](source))
    except RecursionError:
        raise GrammarError(f"{kind}: it is nested too deeply", kind) from None
    except GrammarError as error:
        raise GrammarError(str(error), kind) from None
    except ValueError as error:
        raise GrammarError(f"{kind}: {error}", kind) from None


def with_prefix(grammar: str | None, prefix: str) -> str:
    """A grammar in llguidance's form for `prefix`, and then what `grammar` allows, or anything.

    A token may spell the end of the one and the begin of the other.
    """
    start = f"start: {json.dumps(prefix, ensure_ascii=False)}"
    if grammar is None:
        return json.dumps({"grammars": [{"lark_grammar": f"{start} REST\nREST: /(?s:.*)/"}]})
    parts: list[dict[str, Any]] = [{"lark_grammar": grammar}]
    if grammar.lstrip().startswith("{"):  # as llguidance tells its JSON from Lark
        parts = json.loads(grammar)["grammars"]
    name = parts[0].get("name") or ""
    if not _NAME.fullmatch(name):  # nothing can refer to it
        names = {part.get("name") for part in parts}
        name = next(name for at in range(len(parts) + 1) if (name := f"whole{at}") not in names)
        parts[0]["name"] = name
    return json.dumps({"grammars": [{"lark_grammar": f"{start} @{name}"}, *parts]})


_NAME = re.compile(r"[a-zA-Z0-9_-]+")
"""What `@` in a Lark grammar can refer to."""


def explain(kind: str, source: str, message: str) -> str:
    """A compiler's message with the place in the user's source, where it names one."""
    if message.startswith("recursion limit"):
        return "it is nested too deeply: at most 127 levels of JSON are taken"
    found = _REGEX_ERROR.search(message)
    if found is None:
        first = message.partition("\n")[0]
        own = kind == "lark" or (kind == "ebnf" and not _GBNF.search(source))
        return first if own else _LARK_PLACE.sub("", first)
    printed, caret, what = found[1], len(found[2]), found[3]
    if kind != "regex":
        return f"{what} at position {caret} of the regex {_short(printed)}"
    source = rusts(source)
    at = _position(source, printed, caret)
    return f"{what} at position {at}: {_short(source[:at])} ^ {_short(source[at:])}"


_LARK_PLACE = re.compile(r"^(at )?\d+\(\d+\): ")
"""Where in the Lark grammar that was made of a source; the user has not seen it."""

_REGEX_ERROR = re.compile(r"regex parse error:\n    (.*)\n    ( *)\^+[ ^]*\nerror: ([^\n]*)")


def _position(source: str, printed: str, caret: int) -> int:
    """Where in `source` the character at `caret` of the regex as printed is.

    Printed, a slash and a newline have a backslash before them.
    """
    at = seen = 0
    while seen < caret and at < len(source):
        seen += 1 if printed[seen] == source[at] else 2
        at += 1
    return at


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")


def locate(source: str, fails: Callable[[str], str | None]) -> str:
    """The JSON pointer of the innermost subschema that fails as the whole schema does.

    Args:
        source: A JSON schema that fails.
        fails: The message with which a grammar fails, if it does.
    """
    schema: Any = rewrite(json.loads(source)).schema
    message, at = fails(json_grammar(schema)), "#"
    if not isinstance(schema, dict):
        return at
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    while isinstance(schema, dict):
        for where, sub in children(schema):
            if isinstance(sub, dict) and fails(json_grammar({**shared, **sub})) == message:
                schema, at = sub, f"{at}/{where}"
                break
        else:
            break
    return at


def _json_schema(source: str, form: JsonForm) -> Translated:
    schema = json.loads(source, parse_constant=_no_constant)
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"json_schema: expected an object or a boolean, got {schema!r:.40}")
    made = rewrite(schema)
    return Translated(json_grammar(made.schema, form), tuple(made.weaker))


def _choices(source: str) -> str:
    texts = json.loads(source)
    return f"start: {between_slashes('|'.join(map(re.escape, texts)))}"


def _ebnf(source: str, vocabulary: Vocabulary) -> str:
    if not _GBNF.search(source):
        return _lark(source, "ebnf")
    try:
        return vocabulary.lark(source)
    except GrammarError as error:
        raise GrammarError(f"ebnf: {error}") from None


def _lark(source: str, kind: str = "lark") -> str:
    return with_json(source, kind)


_GBNF = re.compile(r"^[ \t]*[A-Za-z_][\w-]*\s*::=", re.MULTILINE)
"""A rule of GBNF; no line of a Lark grammar begins so."""


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _regex(source: str) -> str:
    return f"start: {between_slashes(rusts(source))}"


def rusts(pattern: str) -> str:
    """A pattern with what Python writes otherwise, as Rust's `regex` has it.

    Raises:
        GrammarError: It has a possessive quantifier, which Rust would read as two of another kind.
    """
    return _PYTHONS.sub(_rust, pattern)


def _rust(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] not in "\\[" and text.endswith("+"):
        raise GrammarError(
            f"regex: possessive quantifiers are not supported at position {found.end() - 1}: "
            f"{_short(found.string[: found.end() - 1])} ^ {_short(found.string[found.end() - 1 :])}"
        )
    return r"\z" if text == r"\Z" else re.sub(r"^\{,", "{0,", text)


_PYTHONS = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|(?<!^)\{,\d+\}\+?|(?<!^)(?:[*+?]|\{\d+(?:,\d*)?\})\+",
    re.DOTALL,
)
"""An escape, a class, a repeat without a least number, and a possessive quantifier."""


_GRAMMARS: dict[str, Callable[[str], str]] = {
    "regex": _regex,
    "choices": _choices,
    "lark": _lark,
}
