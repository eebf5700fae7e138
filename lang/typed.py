"""Python types as what a model writes: the constraint on a text, and the value it stands for.

Numbers, booleans, enumerations, literals, dates, times and UUIDs are written as in plain text;
everything else, strings too, is JSON. This module knows no states and no backends' answers.
"""

from __future__ import annotations

import enum
import functools
import itertools
import json
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from boughs.lang import schemas
from boughs.lang.errors import BoughsError, Incomplete, InvalidRequest, InvalidValue
from boughs.lang.scalars import FORMATS, GOES_ON, NUMBERS

MEND = (
    "use int, float, bool, str, a date, an Enum, a Literal, or lists, dicts with str keys, unions "
    "and classes (dataclass, TypedDict, NamedTuple, Pydantic model) made of these"
)

ENDS = {"stop": (), "stop_regex": (), "stop_token_ids": (), "min_new_tokens": 0}
"""A typed text ends where its value does, whatever `run` says of all others."""


@dataclass(frozen=True)
class Typed:
    """How the values of one Python type are written and read.

    Attributes:
        name: The type's name.
        sampling: The fields of `SamplingParams` that make a text one of them.
        parse: A text's value; raises ValueError where it stands for none.
        example: A text that has a value; None if none is known.
        ends_itself: Whether a whole text can be no begin of another.
        is_json: Whether texts are JSON.
    """

    name: str
    sampling: Mapping[str, Any]
    parse: Callable[[str], Any]
    example: str | None
    ends_itself: bool = True
    is_json: bool = False

    def read(self, text: str, *, cut: bool) -> Any:
        """The value of a text, or the error, not raised, that there is none.

        Args:
            text: What the model wrote.
            cut: Whether the number of its tokens ended it, and not the model or the grammar.
        """
        if cut and not self.ends_itself:
            return self._incomplete(text)
        try:
            return self.parse(text)
        except ValueError as error:
            return self._incomplete(text) if cut else self._invalid(text, error)

    def placeholder(self) -> tuple[str, Any]:
        """A text and its value, for a trace.

        Raises:
            InvalidRequest: No text is known.
        """
        if self.example is None:
            raise InvalidRequest(
                f"tracing knows no example of {self.name}; give its fields one: "
                "Annotated[str, Field(pattern=…, examples=[…])]"
            )
        return self.example, self.parse(self.example)

    def then(self, make: Callable[[Any], Any], name: str) -> Typed:
        """The same texts, with `make` of the value for a value."""
        parse = self.parse
        return replace(self, name=name, parse=lambda text: make(parse(text)))

    def _incomplete(self, text: str) -> BoughsError:
        error = Incomplete(
            f"max_tokens cut the {self.name} before its end, at {text[-40:]!r}; raise max_tokens, "
            "or take what there is with on_incomplete='value'"
        )
        error.text = text
        if self.is_json:
            from pydantic_core import from_json

            try:
                error.partial = from_json(text, allow_partial=True)
            except ValueError:  # not even a begin
                error.partial = None
        return error

    def _invalid(self, text: str, error: ValueError) -> BoughsError:
        invalid = InvalidValue(f"{text!r:.80} is no {self.name}: {_why(error)}")
        invalid.text = text
        invalid.__cause__ = error
        return invalid


def typed(kind: Any) -> Typed:
    """How values of a Python type are written and read.

    Raises:
        InvalidRequest: No constraint can hold it; names the type.
    """
    try:
        return _cached(kind)
    except TypeError:  # it cannot be hashed
        return _typed(kind)


def options(kind: Any) -> dict[str, Any] | None:
    """The texts of an enumeration's or literal's values, or of bool's; None for other types.

    None too where values are no plain scalars, or where two of them have one text.
    """
    if kind is bool:
        return {"True": True, "False": False, "true": True, "false": False}
    values: list[tuple[Any, Any]]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        values = [(member.value, member) for member in kind]
    elif typing.get_origin(kind) is typing.Literal:
        values = [
            (arg.value if isinstance(arg, enum.Enum) else arg, arg) for arg in typing.get_args(kind)
        ]
    else:
        return None
    if not all(isinstance(plain, str | int | float) for plain, _ in values):
        return None
    texts = {plain if isinstance(plain, str) else str(plain): value for plain, value in values}
    return texts if len(texts) == len(values) and "" not in texts else None


def _typed(kind: Any) -> Typed:
    name = _name(kind)
    base = typing.get_args(kind)[0] if typing.get_origin(kind) is typing.Annotated else kind
    texts = options(base)
    if texts is not None:
        return _of_options(name, texts)
    try:
        adapter, schema = _described(kind)
        _check_core(adapter.core_schema)
    except TypeError as error:
        raise _refused(name, str(error)) from None
    plain = schemas.resolved(schema, schema)
    if "enum" not in plain and "const" not in plain:
        if plain.get("type") in ("integer", "number"):
            return _of_numbers(name, plain, adapter)
        if plain.get("format") in FORMATS:
            return _of_format(name, plain, adapter)
    return _of_json(name, schema, adapter)


def json_schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type, as Pydantic tells it.

    Raises:
        TypeError: It has none; says why.
    """
    return _described(kind)[1]


def _described(kind: Any) -> tuple[Any, dict[str, Any]]:
    """Pydantic's adapter of a type, and its JSON schema."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError
    from pydantic_core import SchemaError

    try:
        adapter: Any = TypeAdapter(_portable(kind))
        return adapter, adapter.json_schema()
    except (PydanticUserError, SchemaError, TypeError, NameError, RecursionError) as error:
        raise TypeError(" ".join(str(error).split())[:200]) from None


_cached = functools.lru_cache(maxsize=512, typed=True)(_typed)


def _of_options(name: str, texts: Mapping[str, Any]) -> Typed:
    """One of some texts, without quotes."""

    def parse(text: str) -> Any:
        if text not in texts:
            raise ValueError(f"expected one of {', '.join(map(repr, texts))}")
        return texts[text]

    ordered = sorted(texts)
    alone = not any(b.startswith(a) for a, b in itertools.pairwise(ordered))
    pattern = "|".join(re.escape(text) for text in texts)
    return Typed(name, {**ENDS, "regex": f"({pattern})"}, parse, next(iter(texts)), alone)


def _of_numbers(name: str, schema: Mapping[str, Any], adapter: Any) -> Typed:
    """A number, and what a model may write after it."""
    kind = int if schema["type"] == "integer" else float
    rest, stop = GOES_ON[kind]
    constraint = {"regex": NUMBERS[kind] + rest}
    bounds = {k: v for k, v in schema.items() if k in _BOUNDS}
    if bounds:
        number = json.dumps(schemas.bounded({"type": schema["type"], **bounds}))
        after = rest.removesuffix(")?").removeprefix("(")
        constraint = {"ebnf": f"start: number rest?\nnumber: %json {number}\nrest: /{after}/\n"}
        _check(name, "ebnf", constraint["ebnf"])
    return Typed(
        name,
        {**ENDS, **constraint, "stop_regex": (stop,), "no_stop_trim": False},
        adapter.validate_json,
        _example(schema, adapter.validate_json),
        ends_itself=False,
    )


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def _of_format(name: str, schema: Mapping[str, Any], adapter: Any) -> Typed:
    """A date, a time or a UUID, without quotes."""
    sampling = {**ENDS, "regex": FORMATS[schema["format"]]}
    parse = adapter.validate_strings
    text = schemas.example(schema, schema)
    # A date has one length; a time may have an offset or not.
    return Typed(name, sampling, parse, text, schema["format"] in ("date", "uuid"))


def _of_json(name: str, schema: Mapping[str, Any], adapter: Any) -> Typed:
    """JSON."""
    source = json.dumps(schemas.closed(schema))
    _check(name, "json_schema", source)
    return Typed(
        name,
        {**ENDS, "json_schema": source},
        adapter.validate_json,
        _example(schema, adapter.validate_json),
        schemas.ends_itself(schema, schema),
        is_json=True,
    )


def _example(schema: Mapping[str, Any], parse: Callable[[str], Any]) -> str | None:
    try:
        text = json.dumps(schemas.example(schema, schema))
        parse(text)
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    return text


def _check(name: str, kind: str, source: str) -> None:
    said = schemas.refusal(kind, source)
    if said:
        raise _refused(name, said)


def _check_core(schema: Any) -> None:
    """Refuse what Pydantic's JSON schemas call a string, and what is none.

    Raises:
        TypeError: Says what.
    """
    if isinstance(schema, Mapping):
        kind = schema.get("type")
        if kind == "complex":
            raise TypeError("complex numbers have no form in JSON")
        keys = schema.get("keys_schema") if kind == "dict" else None
        if keys is not None and keys.get("type") not in ("str", "any"):
            raise TypeError(f"a dict's keys are str in JSON, not {keys.get('type')}")
        for part in schema.values():
            _check_core(part)
    elif isinstance(schema, list | tuple):
        for part in schema:
            _check_core(part)


def _portable(kind: Any) -> Any:
    """A `typing.TypedDict`, by itself or inside of a generic type, as one that Pydantic can read.

    Before Python 3.12 it cannot tell which of its fields are required.
    """
    if typing.is_typeddict(kind) and type(kind).__module__ == "typing":
        import typing_extensions

        fields = {}
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            inner = hint
            if typing.get_origin(hint) in (typing.Required, typing.NotRequired):
                inner = typing.get_args(hint)[0]
            needed = name in kind.__required_keys__
            fields[name] = _portable(inner) if needed else typing.NotRequired[_portable(inner)]
        return typing_extensions.TypedDict(kind.__name__, fields)  # type: ignore[operator]
    arguments, origin = typing.get_args(kind), typing.get_origin(kind)
    if origin in (None, typing.Literal):
        return kind
    made = tuple(map(_portable, arguments))
    if made == arguments:
        return kind
    return functools.reduce(operator.or_, made) if origin is types.UnionType else origin[made]


def _refused(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"type: {name} cannot be constrained: {why}; {MEND}", "type")


def _name(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Annotated:
        return f"Annotated[{_name(typing.get_args(kind)[0])}]"
    return kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else repr(kind)


def _why(error: ValueError) -> str:
    """What is wrong first, in Pydantic's words."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]
