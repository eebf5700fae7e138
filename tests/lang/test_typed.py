"""`gen("x", type=T)`: what is constrained, what is read, and what is refused."""

import dataclasses
import datetime as dt
import enum
import json
import random
import re
import typing
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict

import numpy as np
import pydantic
import pytest
import regex
from hypothesis import given, strategies as st
from llguidance import LLMatcher, LLTokenizer
from pydantic import Field

import boughs
from boughs.lang.errors import Incomplete, InvalidRequest, InvalidValue
from boughs.lang.scalars import DATE
from boughs.lang.typed import typed
from boughs.testing import Cut, MockBackend

pytestmark = pytest.mark.timeout(60)

BYTES = LLTokenizer("byte")


class Colour(enum.Enum):
    RED = "red"
    DARK_RED = "dark red (a|b)"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 12


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.5


class Pair(NamedTuple):
    a: int
    b: str


class Options(TypedDict):
    a: int
    b: NotRequired[str]


class Node(pydantic.BaseModel):
    name: Annotated[str, Field(min_length=1)]
    left: Optional["Node"] = None


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    tail: bool


PATTERNED = Annotated[str, Field(pattern="^[a-z]{3}$")]
Animal = Annotated[Cat | Dog, Field(discriminator="kind")]

VALUES = [
    (int, "-42", -42),
    (float, "3.25", 3.25),
    (float, "3", 3.0),
    (bool, "True", True),
    (bool, "false", False),
    (str, '"a \\"b\\" \\n"', 'a "b" \n'),
    (dt.date, "2024-02-29", dt.date(2024, 2, 29)),
    (dt.time, "23:59:00", dt.time(23, 59)),
    (dt.datetime, "2024-02-29T01:02:03Z", dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.UTC)),
    (dt.timedelta, "P3DT12H", dt.timedelta(days=3, hours=12)),
    (uuid.UUID, "00000000-0000-4000-8000-000000000000", uuid.UUID(int=(4 << 76) | (8 << 60))),
    (Colour, "dark red (a|b)", Colour.DARK_RED),
    (Size, "12", Size.LARGE),
    (Literal["yes", 3, True], "3", 3),
    (Annotated[int, Field(ge=-3, le=10)], "10", 10),
    (Annotated[float, Field(gt=0, lt=1)], "0.5", 0.5),
    (PATTERNED, '"abc"', "abc"),
    (list[int], "[1, 2]", [1, 2]),
    (list[Colour], '["red"]', [Colour.RED]),
    (Annotated[list[int], Field(min_length=1, max_length=2)], "[5]", [5]),
    (tuple[int, str], '[1, "a"]', (1, "a")),
    (dict[str, dt.date], '{"a": "2023-01-31"}', {"a": dt.date(2023, 1, 31)}),
    (Point, '{"x": 1, "y": 2.5}', Point(1, 2.5)),
    (Point, '{"x": 1}', Point(1)),
    (Pair, '[1, "b"]', Pair(1, "b")),
    (Options, '{"a": 1}', {"a": 1}),
    (list[Options], '[{"a": 1, "b": "c"}]', [{"a": 1, "b": "c"}]),
    (Options | None, '{"a": 1}', {"a": 1}),
    (Node, '{"name": "a", "left": {"name": "b", "left": null}}', None),
    (Animal, '{"kind": "dog", "tail": true}', Dog(kind="dog", tail=True)),
    (int | None, "null", None),
    (int | str, '"5"', "5"),
    (int | str, "5", 5),
    (Any, '{"a": [1]}', {"a": [1]}),
]

BAD = [
    (int, "007"),
    (int, "1" * 19),
    (int, "5.5"),
    (int, " 5"),
    (float, "1e5"),
    (float, "0." + "1" * 18),
    (bool, "TRUE"),
    (str, '"a'),
    (str, "a"),
    (dt.date, "2023-02-29"),
    (dt.date, "1900-02-29"),
    (dt.datetime, "2024-01-01"),
    (Colour, "dark red a"),
    (Colour, "RED"),
    (Size, "2"),
    (Annotated[int, Field(ge=-3, le=10)], "11"),
    (Annotated[str, Field(pattern="^[a-z]{3}$")], '"abcd"'),
    (Annotated[list[int], Field(min_length=1, max_length=2)], "[]"),
    (list[int], "[1,\n2]"),
    (list[int], "[" + "1" * 19 + "]"),
    (list[dt.date], '["2023-02-31"]'),
    (tuple[int, str], "[1]"),
    (Point, '{"x": 1, "z": 2}'),
    (Point, "{}"),
    (Animal, '{"kind": "dog", "lives": 3}'),
    (Options, '{"b": "c"}'),
]


def constraint(sampling):
    """The matcher of a gen's constraint, whose tokens are bytes."""
    if "regex" in sampling:
        grammar = LLMatcher.grammar_from_regex(sampling["regex"])
    elif "ebnf" in sampling:
        grammar = LLMatcher.grammar_from_lark(sampling["ebnf"])
    else:
        wide = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        schema = json.loads(sampling["json_schema"])
        grammar = LLMatcher.grammar_from_json_schema(schema, overrides=wide)
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def accepts(sampling, text):
    """Whether a text is whole under a gen's constraint."""
    matcher = constraint(sampling)
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def random_text(sampling, seed):
    """Whatever comes to the mind of a model that only heeds the constraint; None: no end to it."""
    matcher, draw, text = constraint(sampling), random.Random(seed), bytearray()
    while not (matcher.is_accepting() and (matcher.is_stopped() or draw.random() < 0.4)):
        if len(text) > 300:
            return None
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(bits, bitorder="little")[:256]).tolist()
        likely = [byte for byte in allowed if byte in b'"]}\\u0123456789']
        byte = draw.choice(likely if likely and draw.random() < 0.6 else allowed)
        assert matcher.consume_token(byte)
        text.append(byte)
    written = text.decode("utf-8", "replace")
    for stop in sampling["stop_regex"]:
        found = regex.search(stop, written)
        written = written if found is None else written[: found.start()]
    return written


def ids(case):
    return str(case)[:30]


@pytest.mark.parametrize(("kind", "text", "value"), VALUES, ids=ids)
def test_a_text_is_allowed_and_becomes_the_value(kind, text, value):
    assert accepts(boughs.gen("x", type=kind).sampling, text)
    read = typed(kind).parse(text)
    if value is None and kind is Node:
        value = Node(name="a", left=Node(name="b"))
    assert read == value
    assert type(read) is type(value)


MORE = [
    *(list[dt.datetime], list[dt.timedelta], list[uuid.UUID], dict[str, list[str]], list[float]),
    *(list[dt.time], list[Any], tuple[bool, ...], Annotated[list[str], Field(max_length=2)]),
    *(Annotated[float, Field(ge=-1.5, multiple_of=0.5)], list[Annotated[float, Field(gt=0)]]),
]


@pytest.mark.parametrize("kind", [*(kind for kind, _, _ in VALUES), *MORE], ids=ids)
def test_whatever_the_constraint_allows_is_a_value(kind):
    sampling = boughs.gen("x", type=kind).sampling
    texts = [random_text(sampling, seed) for seed in range(12)]
    whole = [text for text in texts if text is not None]
    assert whole
    for text in whole:
        typed(kind).parse(text)


@pytest.mark.parametrize(("kind", "text"), BAD, ids=ids)
def test_a_text_that_is_no_value_is_not_allowed(kind, text):
    assert not accepts(boughs.gen("x", type=kind).sampling, text)


def test_a_date_is_a_day_of_the_calendar():
    day, days = dt.date(1999, 12, 1), 4 * 366
    real = {(day + dt.timedelta(n)).isoformat() for n in range(days)}
    written = {
        f"{y}-{m:02}-{d:02}" for y in range(2000, 2003) for m in range(14) for d in range(33)
    }
    for text in written:
        assert bool(re.fullmatch(DATE, text)) == (text in real), text
    for year in range(1000, 10000):
        leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        assert bool(re.fullmatch(DATE, f"{year}-02-29")) == leap, year


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (set[int], "uniqueItems"),
        (bytes, "format"),
        (complex, "complex"),
        (dict[int, str], "keys"),
        (list[dict[int, str]], "keys"),
        (object(), "object"),
        (typing.Callable, "Callable"),
        (Annotated[str, Field(pattern="(?=a)b")], "look"),
        (Annotated[list[int], Field(min_length=3, max_length=1)], "min"),
    ],
    ids=ids,
)
def test_a_type_that_cannot_be_constrained_is_refused_where_it_is_written(kind, said):
    with pytest.raises(InvalidRequest, match=rf"(?s)variable 'x'.*type.*{said}.*use int, float"):
        boughs.gen("x", type=kind)


@pytest.mark.parametrize(
    "other",
    [
        {"regex": "a"},
        {"json_schema": {}},
        {"ebnf": "start: /a/"},
        {"dtype": int},
        {"choices": ["a"]},
        {"stop": "a"},
        {"stop_regex": "a"},
        {"stop_token_ids": [3]},
        {"min_tokens": 3},
        {"ignore_eos": True},
        {"no_stop_trim": True},
        {"on_incomplete": "never"},
    ],
    ids=ids,
)
def test_what_a_type_cannot_stand_with_is_named(other):
    (name,) = other
    with pytest.raises(InvalidRequest, match=rf"\b{'type' if name == 'choices' else name}\b"):
        boughs.gen("x", type=int, **other)


def test_only_a_typed_gen_has_values_to_be_incomplete():
    with pytest.raises(InvalidRequest, match="on_incomplete"):
        boughs.gen("x", on_incomplete="value")


@boughs.function
def form(s, kind, **options):
    s += "Value: " + boughs.gen("x", type=kind, **options)


@pytest.mark.parametrize(("kind", "text", "value"), VALUES[:8], ids=ids)
def test_a_variable_is_the_value_and_raw_the_text(kind, text, value):
    state = form.run(kind, backend=MockBackend([text]))
    assert state["x"] == value
    assert state.raw("x") == text
    assert state.text() == "Value: " + text
    assert state.get_meta_info("x")["finish_reason"]["type"] == "stop"


def test_n_values():
    state = form.run(int, n=3, backend=MockBackend([["1", "2", "3"]]))
    assert state["x"] == [1, 2, 3]
    assert state.raw("x") == ["1", "2", "3"]


def test_batches_and_streams():
    backend = MockBackend(lambda call: call.text.split()[0], piece=1)

    @boughs.function
    def echo(s, number):
        s += f"{number} is " + boughs.gen("x", type=int)

    states = echo.run_batch([{"number": n} for n in range(10, 20)], backend=backend)
    assert [state["x"] for state in states] == list(range(10, 20))
    state = echo.run(123, stream=True, backend=backend)
    assert list(state.text_iter("x")) == ["1", "2", "3"]
    assert state["x"] == 123


def test_the_branches_of_a_fork_give_lists_of_values():
    @boughs.function
    def program(s):
        s += "p" + boughs.gen("before", type=int)
        branches = s.fork(2)
        assert [branch["before"] for branch in branches] == [7, 7]
        assert branches[1].raw("before") == "7"
        branches += boughs.gen("x", type=Point)
        branches.join()
        assert s["x"] == [Point(1), Point(1)]
        assert s.raw("x") == ['{"x": 1}'] * 2

    def say(call):
        return "7" if call.text == "p" else '{"x": 1}'

    program.run(backend=MockBackend(say))


@pytest.mark.parametrize(
    ("kind", "text"),
    [(int, "12"), (Point, '{"x": 1'), (str, '"abc'), (int | None, "4"), (Colour, "dar")],
    ids=ids,
)
def test_what_was_cut_is_raised_when_it_is_read(kind, text):
    state = form.run(kind, backend=MockBackend([Cut(text)]))
    message = r"program form, variable 'x', request \w+: max_tokens cut .*on_incomplete"
    for _ in range(2):
        with pytest.raises(Incomplete, match=message) as caught:
            state["x"]
    assert caught.value.text == text
    assert state.raw("x") == text
    assert state.get_meta_info("x")["finish_reason"]["type"] == "length"
    assert "x" in state
    assert state.error() is None


def test_what_was_cut_at_its_end_is_whole_where_nothing_can_follow():
    assert form.run(Point, backend=MockBackend([Cut('{"x": 1}')]))["x"] == Point(1)
    assert form.run(Colour, backend=MockBackend([Cut("red")]))["x"] is Colour.RED


def test_a_cut_value_is_the_error_if_asked():
    backend = MockBackend([[Cut('{"x": 1, "y"'), '{"x": 2}']])
    state = form.run(Point, n=2, on_incomplete="value", backend=backend)
    cut, whole = state["x"]
    assert isinstance(cut, Incomplete)
    assert cut.text == '{"x": 1, "y"'
    assert cut.partial == {"x": 1}
    assert whole == Point(2)


def test_one_cut_choice_of_many_is_raised():
    state = form.run(int, n=2, backend=MockBackend([["1", Cut("2")]]))
    with pytest.raises(Incomplete):
        state["x"]
    assert state.raw("x") == ["1", "2"]


def test_a_cut_value_of_a_branch_is_raised_at_the_read_of_the_joined_list():
    @boughs.function
    def program(s):
        s += "p"
        branches = s.fork(2)
        for i, branch in enumerate(branches):
            branch += f"{i}" + boughs.gen("x", type=int)
        branches.join()
        assert s.raw("x") == ["5", "6"]
        with pytest.raises(Incomplete, match="branch 1, variable 'x'"):
            s["x"]
        s["x"] = 3
        assert s["x"] == 3
        assert s.raw("x") == 3

    program.run(backend=MockBackend(lambda call: "5" if call.text == "p0" else Cut("6")))


def test_what_a_types_own_rules_refuse():
    def even(value):
        if value % 2:
            raise ValueError("it is odd")
        return value

    kind = Annotated[int, pydantic.AfterValidator(even)]
    assert form.run(kind, backend=MockBackend(["4"]))["x"] == 4
    state = form.run(kind, backend=MockBackend(["5"]))
    with pytest.raises(InvalidValue, match=r"variable 'x'.*'5'.*it is odd") as caught:
        state["x"]
    assert caught.value.text == "5"
    state = form.run(kind, on_incomplete="value", backend=MockBackend(["5"]))
    assert isinstance(state["x"], InvalidValue)
    with pytest.raises(InvalidValue, match="expected one of 'red'"):
        form.run(Colour, backend=MockBackend(["green"]))["x"]


def test_the_stops_of_the_run_do_not_count():
    backend = MockBackend(["[1]"])
    form.run(list[int], backend=backend, stop="1", min_new_tokens=9, stop_token_ids=[1])
    params = backend.calls[0].request.params
    assert (params.stop, params.stop_token_ids, params.min_new_tokens) == ((), (), 0)


async def _async_values():
    @boughs.function
    async def program(s):
        s += boughs.gen("x", type=int) + boughs.gen("y", type=int)
        await s.wait()
        assert s.raw("x") == "4"
        with pytest.raises(Incomplete):
            await s.get("y")
        return await s.get("x")

    return (await program.run_async(backend=MockBackend(["4", Cut("5")]))).ret_value


def test_async_programs():
    import asyncio

    assert asyncio.run(_async_values()) == 4


@pytest.mark.parametrize("kind", [kind for kind, _, _ in VALUES], ids=ids)
def test_a_trace_has_an_example_of_a_type(kind):
    if kind is PATTERNED:
        with pytest.raises(InvalidRequest, match="example"):
            form.trace(kind)
        return
    trace = form.trace(kind)
    assert "type=" in str(trace)
    typed(kind).read(typed(kind).example, cut=False)
    assert accepts(boughs.gen("x", type=kind).sampling, typed(kind).example)


def test_an_example_of_a_field_is_used_in_a_trace():
    kind = Annotated[str, Field(pattern="^[a-z]{3}$", examples=["abc"])]
    assert form.trace(kind).variables["x"] == "abc"


@given(
    st.integers(-50, 50),
    st.integers(0, 60),
    st.integers(-120, 120),
    st.sampled_from("ge gt".split()),
)
def test_bounds_hold(low, width, number, key):
    kind = Annotated[int, Field(**{key: low}, le=low + width + 1)]
    inside = (low <= number if key == "ge" else low < number) and number <= low + width + 1
    assert accepts(boughs.gen(type=kind).sampling, str(number)) == inside
    assert accepts(boughs.gen(type=kind).sampling, f"{number} apples") == inside
    example = typed(kind).parse(typed(kind).example)
    assert low + (key == "gt") <= example <= low + width + 1


class TestSelect:
    @pytest.mark.parametrize(
        ("kind", "text", "value"),
        [(Colour, "red", Colour.RED), (Literal["a", 5], "5", 5), (Size, "12", Size.LARGE)],
        ids=ids,
    )
    def test_a_selects_value_is_the_member(self, kind, text, value):
        @boughs.function
        def program(s):
            s += boughs.select("x", choices=kind)

        state = program.run(backend=MockBackend([text]))
        assert state["x"] == value
        assert state.raw("x") == text == state.text()
        assert text in state.choice_probs("x")
        assert program.trace().variables["x"] in list(typing.get_args(kind) or kind)
