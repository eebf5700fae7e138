"""What the text of a `gen` may be: of a type, of a dtype, of a grammar; as its node has it.

`boughs.lang.primitives` and those who write their own gens (tools) share this. This module knows
no choices and no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from boughs.lang.constraints import CONSTRAINTS
from boughs.lang.errors import GrammarError, InvalidRequest, located
from boughs.lang.expression import Expression
from boughs.lang.grammar import Grammar
from boughs.lang.ir import Gen
from boughs.lang.named_parts import Parts
from boughs.lang.parameters import Given
from boughs.lang.scalars import DTYPES, GOES_ON
from boughs.lang.schemas import refusal
from boughs.lang.typed import Typed, typed

OnIncomplete = Literal["raise", "value"]


def check_name(name: object, where: str) -> None:
    """Refuse what is no variable's name."""
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidRequest(
            f"{where}: name must be a string that is not empty, got {name!r:.60}", "name"
        )


def gen_of(
    name: str | None,
    kind: Typed,
    arguments: Mapping[str, Any],
    on_incomplete: OnIncomplete = "raise",
) -> Expression:
    """`gen` of a `Typed`, for what makes its own.

    Raises:
        InvalidRequest: An argument cannot be honoured; the message names it.
    """
    if on_incomplete not in get_args(OnIncomplete):
        raise InvalidRequest(
            f"on_incomplete: expected 'raise' or 'value', got {on_incomplete!r:.60}",
            "on_incomplete",
        )
    for other in _NOT_TYPED:
        if arguments.get(other) not in (None, (), False):
            raise InvalidRequest(
                f"gen: variable {name!r}: {other} cannot be given together with type={kind.name}: "
                "a value's text is what its type makes it, and ends where it does",
                other,
            )
    given = Given.parse(arguments, "gen: ")
    return Gen(
        name,
        {**given.sampling, **kind.sampling},
        given.options,
        kind=kind,
        keeps_errors=on_incomplete == "value",
    )


_NOT_TYPED = (
    *("dtype", "grammar", *(name for name in CONSTRAINTS if name != "choices")),
    *("stop", "stop_token_ids", "stop_regex", "no_stop_trim", "min_tokens", "ignore_eos"),
)


def grammar_source(
    name: str | None, grammar: object, arguments: Mapping[str, Any]
) -> tuple[str, Parts | None]:
    """The source of a gen's grammar, once the compiler has had a look at it, and its parts."""
    if not isinstance(grammar, Grammar):
        raise InvalidRequest(
            f"gen: variable {name!r}: grammar: expected what the functions of boughs.grammar make, "
            f"got {grammar!r:.60}",
            "grammar",
        )
    for other in ("dtype", *CONSTRAINTS):
        if arguments.get(other) not in (None, False):
            raise InvalidRequest(
                f"gen: variable {name!r}: {other} cannot be given together with grammar", other
            )
    source = grammar.lark()
    said = refusal("ebnf", source)
    if said:
        raise GrammarError(f"gen: variable {name!r}: grammar: {said}", "grammar")
    try:
        parts = Parts.of(grammar)
    except InvalidRequest as error:
        raise located(error, f"gen: variable {name!r}") from None
    if parts is not None and name in parts.names:
        raise InvalidRequest(
            f"gen: variable {name!r}: a part of its grammar has the same name", "grammar"
        )
    return source, parts


def type_of(name: str | None, kind: Any) -> Typed:
    """What a gen's `type` makes of its text.

    Raises:
        InvalidRequest: It is no type whose values can be written.
    """
    try:
        return typed(kind)
    except InvalidRequest as error:
        raise located(error, f"gen: variable {name!r}") from None


def dtype_of(dtype: object) -> type | None:
    """The type that a gen's `dtype` says, which may be its name; None for none.

    Raises:
        InvalidRequest: There is no such dtype.
    """
    for kind in DTYPES:
        if dtype in (kind, kind.__name__):
            return kind
    if dtype is None:
        return None
    raise InvalidRequest(f"dtype: expected int, float, bool or str, got {dtype!r:.60}", "dtype")


def put_dtype(arguments: dict[str, Any], kind: type) -> None:
    """Put the regex of a dtype among a gen's arguments, and the stop that ends a number."""
    for other in CONSTRAINTS:
        if arguments.get(other) not in (None, False):
            raise InvalidRequest(f"{other}: cannot be given together with dtype", other)
    arguments["regex"] = DTYPES[kind]
    if kind not in GOES_ON:
        return
    for other in ("no_stop_trim", "min_tokens"):
        if arguments[other]:
            raise InvalidRequest(
                f"{other}: cannot be given together with dtype={kind.__name__}, whose text ends "
                "at a stop",
                other,
            )
    rest, end = GOES_ON[kind]
    arguments["regex"] += rest
    own = Given.parse({"stop_regex": arguments["stop_regex"]}, "gen: ")
    arguments["stop_regex"] = (*own.sampling.get("stop_regex", ()), end)
