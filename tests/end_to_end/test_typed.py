"""Typed values on a real engine: a random model writes what its constraint allows, and no more."""

import ast
import dataclasses
import datetime as dt
import enum
from typing import Annotated, Literal

import pytest
from pydantic import Field

import boughs
from boughs.grammar import alt, gen as part, opt, recursive, regex, seq


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


@dataclasses.dataclass
class Order:
    pieces: Annotated[int, Field(ge=1, le=20)]
    colour: Colour
    day: dt.date


KINDS = {
    "integer": int,
    "bounded": Annotated[int, Field(ge=10, le=99)],
    "number": float,
    "flag": bool,
    "day": dt.date,
    "colour": Colour,
    "word": Literal["a", "ab", 7],
    "order": Order,
    "pair": tuple[bool, Annotated[str, Field(max_length=3)]],
}


@boughs.function
def program(s, temperature):
    s += "values"
    branches = s.fork(len(KINDS))
    for branch, (name, kind) in zip(branches, KINDS.items(), strict=True):
        branch += f" {name}: "
        branch += boughs.gen(name, type=kind, temperature=temperature, seed=3, n=2, max_tokens=120)
    for branch, name in zip(branches, KINDS, strict=True):
        for text, value in zip(branch.raw(name), branch[name], strict=True):
            check(name, text, value)
    branches.join()


def check(name, text, value):
    if name in ("integer", "bounded"):
        assert str(value) == text or text == "-0"
        assert name == "integer" or 10 <= value <= 99
    elif name == "number":
        assert isinstance(value, float)
    elif name == "day":
        assert value.isoformat() == text
    elif name == "order":
        assert isinstance(value, Order)
        assert 1 <= value.pieces <= 20
    elif name == "colour":
        assert value.value == text
    else:
        assert isinstance(value, {"flag": bool, "word": str | int, "pair": tuple}[name])


@pytest.fixture(scope="module")
def engine(tiny_model):
    with boughs.Engine(model_path=tiny_model, in_process=True) as engine:
        yield engine


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_random_model_writes_values(engine, temperature):
    program.run(temperature, backend=engine)


def test_a_recursive_grammar(engine):
    nested = recursive(lambda n: alt(regex("[0-9]{1,2}"), seq("(", n, opt(seq("+", n)), ")")))

    @boughs.function
    def write(s):
        s += "term: " + boughs.gen("term", grammar=nested, n=6, seed=1, max_tokens=60)

    state = write.run(backend=engine)
    ended = [
        term
        for term, meta in zip(state["term"], state.get_meta_info("term"), strict=True)
        if meta["finish_reason"]["type"] == "stop"
    ]
    assert ended
    for term in ended:
        ast.parse(term.replace("0", "1"), mode="eval")  # no 01


def test_named_parts_of_a_grammar(engine):
    digits = regex("[0-9]{1,3}")
    grammar = seq("(", part("x", digits), opt(seq(",", part("y", digits))), ")")

    @boughs.function
    def write(s):
        s += "point: " + boughs.gen("point", grammar=grammar, n=4, seed=1, max_tokens=20)

    state = write.run(backend=engine)
    for point, x, y in zip(state["point"], state["x"], state["y"], strict=True):
        assert point == (f"({x})" if y is None else f"({x},{y})")


def test_over_an_endpoint(tiny_server):
    program.run(1.0, backend=boughs.RuntimeEndpoint(tiny_server.url))


def test_a_cut_value(engine):
    @boughs.function
    def cut(s):
        s += "order: " + boughs.gen("order", type=Order, max_tokens=3)

    state = cut.run(backend=engine)
    with pytest.raises(boughs.Incomplete, match="variable 'order'"):
        state["order"]
    assert state.raw("order").startswith("{")
