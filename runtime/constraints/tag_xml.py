"""Objects whose properties are written one by one, as models write the arguments of calls.

A property that is a string is written as it is, up to the first close; any other as JSON. Which
properties there are, in which order, and what each may be, is the schema's. This module knows no
tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from boughs.lang.constraints import between_slashes
from boughs.lang.errors import GrammarError

from .exclusion import Resolve, excludes, local_refs
from .json_form import json_term
from .schema import FORMATS, escape
from .tag_formats import KIND
from .tag_rules import Rules, either, times, without
from .tag_styles import STYLES, Style

SPACE = 4
"""Characters of white space between two properties, where nobody says how many."""


_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
"""The name of a property that the schema does not name."""

_BLANK = r"/[ \t\n\r]/"

_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$comment", "$schema", "$id"),
    )
)
_SHARED = ("$defs", "definitions")
_OBJECT = {"type", "properties", "required", "additionalProperties", *_SHARED, *_ANNOTATIONS}
_OF_OTHERS = {
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    *("contains", "minContains", "maxContains", "properties", "required", "patternProperties"),
    *("additionalProperties", "minProperties", "maxProperties", "propertyNames"),
}
"""Keywords that assert nothing of a string, a boolean or null."""

_SCALAR = {"type", "minLength", "maxLength", "pattern", "format", *_SHARED, *_OF_OTHERS}
_TYPES = ("null", "boolean", "object", "array", "number", "string")


def parameters(
    rules: Rules, schema: Any, style: str, space: int | None = None, excludes: Sequence[str] = ()
) -> str:
    """An object's properties in a style, as an expression.

    Args:
        rules: Of the grammar.
        schema: The object's; true stands for any.
        style: Of `tag_formats.Style`, but `json`.
        space: At most so many characters of white space between two parts.
        excludes: What no text may have in it.

    Raises:
        GrammarError: The schema asserts what no grammar holds in this style; names the pointer.
    """
    if space is None:
        space = rules.form.whitespace or SPACE
    blank = rules.rule(times(rules.terminal(_BLANK), 0, space))
    resolve = local_refs(schema)
    return _Writer(rules, style, STYLES[style], blank, schema, resolve, excludes).write()


@dataclass(frozen=True)
class _Value:
    """One kind of values that a property may have.

    Attributes:
        type: Of JSON; of an integer it is `number`.
        literal: The one text of it.
        text: The terminal of texts that stand as they are.
        schema: Of others.
    """

    type: str
    literal: str | None = None
    text: str | None = None
    schema: Any = None


@dataclass(frozen=True)
class _Writer:
    rules: Rules
    name: str
    style: Style
    blank: str
    root: Any
    resolve: Resolve
    excludes: Sequence[str]

    def write(self) -> str:
        schema = self.resolve(self.root)
        if schema in (True, {}):
            schema = {"type": "object", "additionalProperties": True}
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise self._refused("#", "the schema must be that of an object")
        self._only(schema, frozenset(_OBJECT), "#")
        given = self._get(schema, "properties", dict, "#") or {}
        required = self._get(schema, "required", list, "#") or []
        more = schema.get("additionalProperties", False)
        for name in required:
            if name not in given:
                raise self._refused("#/required", f"{name!r:.60} is no property of the schema")
        made = []
        for name, sub in given.items():
            if sub is False and name not in required:
                continue
            written = self._property(name, sub, f"#/properties/{escape(name)}", alone=not more)
            made.append(f"({self.blank} {written}){'' if name in required else '?'}")
        if more is not False:
            written = self._property(None, more, "#/additionalProperties", but=tuple(given))
            made.append(f"({self.blank} {written})*")
        return f"{' '.join(made)} {self.blank}"

    def _property(
        self,
        name: str | None,
        schema: Any,
        at: str,
        *,
        alone: bool = False,
        but: tuple[str, ...] = (),
    ) -> str:
        """A property; without a name, one of any name but some."""
        if name == "" or (name and re.search(r'[<>"&\n]', name)):
            raise self._refused(at, 'a name that is empty, or has one of < > " & in it')
        if name is None:
            others = f" & ~({' | '.join(map(json.dumps, but))})" if but else ""
            key = self.rules.terminal(f"/{_NAME}/{others}")
        else:  # beside others of any name it is one lexeme, as they are
            key = self.rules.literal(name) if alone else self.rules.terminal(json.dumps(name))
        values = [*self._values(schema, at)]
        if not values:
            raise self._refused(at, "no value is allowed")
        groups: dict[str, list[_Value]] = {}
        for value in values:
            groups.setdefault((self.style.types or {}).get(value.type, ""), []).append(value)
        made = [self._group(kind, group, at) for kind, group in groups.items()]
        return self.rules.rule(f"{self.rules.literal(self.style.open)} {key} {either(made)}")

    def _group(self, kind: str, values: list[_Value], at: str) -> str:
        """Values that are told apart by nothing before them, with what stands around them."""
        parts = [self.rules.literal(part.format(kind)) for part in self.style.middle]
        return f"{f' {self.blank} '.join(parts)} {self._value(values, at)}"

    def _value(self, values: list[_Value], at: str) -> str:
        """Values, and the close."""
        close = self.rules.pieces(self.style.close)
        texts = [value.text for value in values if value.text is not None]
        schemas = [value.schema for value in values if value.schema is not None]
        literals = [value.literal for value in values if value.literal is not None]
        anything = self.rules.terminal(f"/(?s:.*)/{self._but}")
        if anything in texts:  # whatever else there may be is text, too
            texts, literals, schemas = [anything], [], []
        elif schemas and not any(value.type == "string" for value in values):
            schemas += [{"const": json.loads(literal)} for literal in literals]
            literals = []
        if len(texts) + bool(literals) + bool(schemas) > 1:
            raise self._refused(at, "texts and other values cannot be told apart")
        if texts:
            return self.rules.lead(texts[0], close)
        if literals:
            body = either(map(self.rules.literal, literals))
        else:
            root = self.root if isinstance(self.root, dict) else {}
            shared = {key: root[key] for key in _SHARED if key in root}
            schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
            body = self.rules.rule(json_term({**shared, **schema}, self.rules.form, KIND))
        exact = self.style.types is not None and values[0].type == "string"
        blank = "" if exact else self.blank
        return f"{blank} {body} {blank} {self.rules.spelled(close)}"

    @property
    def _but(self) -> str:
        """What texts have none of."""
        return without([self.style.close, *self.excludes])

    # ---- schemas ----

    def _values(self, schema: Any, at: str) -> Iterator[_Value]:
        """The kinds of values under a schema."""
        schema = self.resolve(schema)
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise self._refused(at, f"expected a schema, got {schema!r:.40}")
        schema = {key: value for key, value in schema.items() if key not in _ANNOTATIONS}
        if "$ref" in schema:
            raise self._refused(f"{at}/$ref", "it is not found, or not within this schema")
        if "const" in schema or "enum" in schema:
            yield from self._constants(schema, at)
            return
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema:
                yield from self._branches(schema, key, at)
                return
        for kind in self._types(schema, at):
            yield from self._typed(kind, schema, at)

    def _types(self, schema: dict[str, Any], at: str) -> list[str]:
        given = schema.get("type", [*_TYPES])
        types = [given] if isinstance(given, str) else given
        if not isinstance(types, list) or not all(t in (*_TYPES, "integer") for t in types):
            raise self._refused(f"{at}/type", f"expected types, got {given!r:.40}")
        return types

    def _get(self, schema: dict[str, Any], key: str, kind: type, at: str) -> Any:
        """What a keyword says, if it is there."""
        value = schema.get(key)
        if key in schema and (not isinstance(value, kind) or isinstance(value, bool)):
            raise self._refused(f"{at}/{key}", f"expected {kind.__name__}, got {value!r:.40}")
        return value

    def _constants(self, schema: dict[str, Any], at: str) -> Iterator[_Value]:
        self._only(schema, frozenset(("const", "enum", "type")), at)
        types = {"type": self._types(schema, at)}
        values = self._get(schema, "enum", list, at)
        for value in [schema["const"]] if "const" in schema else values:
            if values is not None and value not in values:
                continue
            if not excludes({"const": value}, types, self.resolve):
                yield self._constant(value, at)

    def _constant(self, value: Any, at: str) -> _Value:
        if isinstance(value, str):
            for string in (self.style.close, *self.excludes):
                if string in value:
                    raise self._refused(at, f"{value!r:.60} has {string!r:.60} in it")
            return _Value("string", literal=value)
        kinds = {type(None): "null", bool: "boolean", dict: "object", list: "array"}
        form = self.rules.form
        text = json.dumps(value, ensure_ascii=False, separators=(form.item, form.key))
        return _Value(kinds.get(type(value), "number"), literal=text)

    def _branches(self, schema: dict[str, Any], key: str, at: str) -> Iterator[_Value]:
        self._only(schema, frozenset((key, *_SHARED)), at)
        branches = self._get(schema, key, list, at)
        pairs = ((a, b) for i, a in enumerate(branches) for b in branches[:i])
        if key == "oneOf" and not all(excludes(a, b, self.resolve) for a, b in pairs):
            raise self._refused(f"{at}/oneOf", "its branches overlap; use anyOf")
        if key == "allOf" and len(branches) > 1:
            raise self._refused(f"{at}/allOf", "it has more than one branch")
        for number, branch in enumerate(branches):
            yield from self._values(branch, f"{at}/{key}/{number}")

    def _typed(self, kind: str, schema: dict[str, Any], at: str) -> Iterator[_Value]:
        if kind in ("string", "null", "boolean"):
            self._only(schema, frozenset(_SCALAR), at)
        if kind == "string":
            yield _Value(kind, text=self._text(schema, at))
        elif kind == "null":
            yield _Value(kind, literal="null")
        elif kind == "boolean":
            yield _Value(kind, literal="true")
            yield _Value(kind, literal="false")
        else:
            for ref in re.findall(r'"\$ref": "([^"]*)"', json.dumps(schema)):
                if not ref.startswith(tuple(f"#/{key}/" for key in _SHARED)):
                    raise self._refused(at, f"a $ref to {ref!r:.60}, which is not below #/$defs")
            if kind in ("object", "array") and self.excludes:
                raise self._refused(
                    at, "excludes are not supported where JSON can have strings in it"
                )
            yield _Value("number" if kind == "integer" else kind, schema={**schema, "type": kind})

    def _text(self, schema: dict[str, Any], at: str) -> str:
        """The terminal of a string's texts."""
        if schema.get("format") in FORMATS:
            raise self._refused(
                f"{at}/format", "a format is not supported; a pattern can say what it means"
            )
        least, most = (self._get(schema, key, int, at) for key in ("minLength", "maxLength"))
        free = least is None and most is None
        body = "*" if free else f"{{{least or 0},{'' if most is None else most}}}"
        made = f"/(?s:.{body})/{self._but}"
        pattern = self._get(schema, "pattern", str, at)
        if pattern is not None:
            made += f" & {between_slashes(self._whole(pattern, at))}"
        return self.rules.terminal(made)

    def _whole(self, pattern: str, at: str) -> str:
        """A pattern that is searched for, as one that matches wholly."""
        body = pattern.removeprefix("^")
        begin = "" if body != pattern else "(?s:.*)"
        ends = body.endswith("$") and not body.endswith("\\$")
        body = body[:-1] if ends else body
        plain = re.sub(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]", "", body)
        if re.search(r"[\^$]", plain) or (len(body) < len(pattern) and _parts(plain)):
            raise self._refused(f"{at}/pattern", "^ and $ can only be around the whole pattern")
        return f"{begin}(?:{body}){'' if ends else '(?s:.*)'}"

    def _only(self, schema: dict[str, Any], known: frozenset[str], at: str) -> None:
        for key in schema:
            if key not in known:
                raise self._refused(
                    f"{at}/{escape(key)}", f"{key} is not supported beside its other keywords"
                )

    def _refused(self, at: str, what: str) -> GrammarError:
        return GrammarError(f"{KIND}: {at}: {what} (in the style {self.name}; json takes more)")


def _parts(plain: str) -> bool:
    """Whether a pattern without escapes and classes has alternatives that no group holds."""
    depth = 0
    for character in plain:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "|" and not depth:
            return True
    return False
