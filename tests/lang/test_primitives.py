"""Expressions: what is checked when they are made, and what they become."""

import inspect
import re

import pydantic
import pytest
import regex
from hypothesis import given, strategies as st

import boughs
from boughs.lang import ir, scalars
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.expression import Text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": ["a", 3]}, "stop"),
        ({"stop": 3}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"n": 0}, "n"),
        ({"seed": -1}, "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"return_logprob": 1}, "return_logprob"),
        ({"top_logprobs_num": -1}, "top_logprobs_num"),
        ({"token_ids_logprob": [-1]}, "token_ids_logprob"),
        ({"token_ids_logprob": "3"}, "token_ids_logprob"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"logprob_start_len": "0"}, "logprob_start_len"),
        ({"dtype": "complex"}, "dtype"),
        ({"dtype": list}, "dtype"),
        ({"dtype": int, "regex": "x"}, "regex"),
        ({"dtype": int, "no_stop_trim": True}, "no_stop_trim"),
        ({"dtype": float, "min_tokens": 2}, "min_tokens"),
        ({"dtype": int, "stop": 5}, "stop"),
        ({"regex": "a", "json_schema": "{}"}, "json_schema"),
        ({"json_schema": "{nope"}, "json_schema"),
        ({"json_schema": 5}, "json_schema"),
        ({"json_schema": {"a": object()}}, "json_schema"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"name": ""}, "name"),
        ({"name": 5}, "name"),
        ({"choices": []}, "choices"),
        ({"choices": "ab"}, "choices"),
        ({"choices": ["a", ""]}, "choices"),
        ({"choices": ["a", None]}, "choices"),
        ({"choices": ["a"], "max_tokens": 3}, "max_tokens"),
        ({"choices": ["a"], "return_logprob": True}, "return_logprob"),
        ({"choices": ["a"], "regex": "x"}, "regex"),
        ({"choices": ["a"], "seed": 1}, "seed"),
        ({"choices": ["a"], "temperature": 0.7}, "temperature"),
        ({"choices": ["a"], "choices_method": "best"}, "choices_method"),
        ({"choices_method": boughs.token_length_normalized}, "choices"),
    ],
)
def test_a_wrong_argument_is_named_at_once(arguments, named):
    with pytest.raises(InvalidRequest, match=rf"\b{named}\b"):
        boughs.gen(**{"name": "x", **arguments})


def test_an_unknown_argument_is_an_error():
    with pytest.raises(TypeError, match="maxtokens"):
        boughs.gen("x", maxtokens=5)


def test_signatures_begin_with_those_of_sglang():
    names = list(inspect.signature(boughs.gen).parameters)
    assert names[:23] == [
        *("name", "max_tokens", "min_tokens", "n", "stop", "stop_token_ids", "stop_regex"),
        *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
        *("ignore_eos", "return_logprob", "logprob_start_len", "top_logprobs_num"),
        *("return_text_in_logprobs", "dtype", "choices", "choices_method", "regex", "json_schema"),
    ]
    for function in (boughs.gen_int, boughs.gen_string):
        missing = {"min_tokens", "dtype", "choices", "choices_method", "regex", "json_schema"}
        expected = [name for name in names[:23] if name not in missing]
        assert list(inspect.signature(function).parameters) == expected


def test_only_what_was_given_is_kept():
    node = boughs.gen("x", 5, stop="a", seed=3, top_logprobs_num=2)
    assert node.sampling == {"max_new_tokens": 5, "stop": ("a",), "seed": 3}
    assert node.options == {"top_logprobs_num": 2}
    assert boughs.gen().sampling == {}
    node = boughs.gen("x", allowed_token_ids=[5, 6], bad_words="bad", token_ids_logprob=[7])
    assert node.sampling == {"allowed_token_ids": (5, 6), "bad_words": ("bad",)}
    assert node.options == {"token_ids_logprob": (7,)}


def test_a_minimum_alone_is_compared_with_the_maximum_of_the_run():
    assert boughs.gen(min_tokens=500).sampling == {"min_new_tokens": 500}


@pytest.mark.parametrize("stop", [".", ["."], (".", "!")])
def test_a_users_stop_list_stays_as_it_is(stop):
    before = stop.copy() if isinstance(stop, list) else stop
    node = boughs.gen_int("x", stop=stop, stop_regex=["a+"])
    assert node.sampling["stop"] == tuple(stop)
    assert node.sampling["stop_regex"][0] == "a+"
    assert stop == before


def ended(kind, text):
    """What a gen with this dtype makes of what a model would write freely; None: it is masked."""
    node = boughs.gen(dtype=kind)
    pattern = regex.compile(node.sampling["regex"].replace("(?s:.)", r"[\s\S]"))
    if not pattern.fullmatch(text):
        return None
    (stop,) = node.sampling["stop_regex"]
    found = regex.search(stop, text)
    return text if found is None else text[: found.start()]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (int, "42", "42"),
        (int, "-42 apples", "-42"),
        (int, "+7\n\n", "+7"),
        (int, "42. The end", "42"),
        (int, "42.5", None),
        (int, "42.", None),
        (int, "10,000", None),
        (int, " 4", None),
        (int, "x", None),
        (float, "3.14", "3.14"),
        (float, "-3.14 or so", "-3.14"),
        (float, "3.14.\n", "3.14"),
        (float, "3. Then", "3"),
        (float, ".5%", ".5"),
        (float, "3 legs", "3"),
        (float, "1e5", None),
        (float, "1.", None),
        (float, "1,5", None),
    ],
)
def test_a_number_ends_where_the_model_writes_on(kind, text, value):
    assert ended(kind, text) == value


@given(st.sampled_from([int, float]), st.text(alphabet="0123456789+-.,e aA\n", max_size=8))
def test_a_number_is_a_number_whatever_the_model_writes(kind, text):
    value = ended(kind, text)
    if value is not None:
        kind(value)
        assert value == value.strip()
        assert text.startswith(value)


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (scalars.REGEX_INT, ["7", "-12", "+0"], ["", "-", "7 ", "7\n", "7.0", "a", " 7"]),
        (
            scalars.REGEX_FLOAT,
            ["7", "-1.5", ".5", "+2.25"],
            ["", ".", "1.", "1..2", "1.5 ", "e3"],
        ),
        (scalars.REGEX_BOOL, ["True", "False"], ["true", "True ", ""]),
        (
            scalars.REGEX_STR,
            ['""', '"Hi, you: (é) 100 %!"', r'"a \"quoted\" \\ \n é"'],
            ['"', '"a" "b"', '"a\nb"', "a", '"\\"', r'"\x"'],
        ),
    ],
)
def test_the_texts_of_a_dtype(pattern, good, bad):
    for text in good:
        assert re.fullmatch(pattern, text), text
    for text in bad:
        assert not re.fullmatch(pattern, text), text


@pytest.mark.parametrize("kind", [int, float, bool, str])
def test_a_dtype_is_a_regex(kind):
    by_type, by_name = boughs.gen("x", dtype=kind), boughs.gen("x", dtype=kind.__name__)
    assert by_type == by_name
    pattern = getattr(scalars, f"REGEX_{kind.__name__.upper()}")
    assert by_type.sampling["regex"].startswith(pattern)
    assert ("stop_regex" in by_type.sampling) == (kind in (int, float))


class Person(pydantic.BaseModel):
    name: str
    age: int


def test_a_schema_may_be_text_a_dict_or_a_model():
    text = '{"type": "integer"}'
    assert boughs.gen(json_schema=text).sampling["json_schema"] == text
    assert boughs.gen(json_schema={"type": "integer"}).sampling["json_schema"] == text
    assert '"age"' in boughs.gen(json_schema=Person).sampling["json_schema"]


def test_choices_make_a_select():
    node = boughs.gen("x", choices=["a", "b"], temperature=0, cache_salt="s")
    assert node == boughs.select("x", choices=["a", "b"], cache_salt="s")
    assert node.choices == ("a", "b")
    with pytest.raises(InvalidRequest, match="choices"):
        boughs.select("x")
    with pytest.raises(Unsupported, match="temperature"):
        boughs.select("x", ["a"], temperature=1)


def test_sums_from_both_sides_keep_the_order():
    total = "a" + boughs.gen("x") + "b" + boughs.user("c")
    flat = [str(term) for term in total.terms]
    assert flat == ["'a'", "gen('x')", "'b'", "user begins", "'c'", "user ends"]


@pytest.mark.parametrize("other", [5, None, ["a"], b"a"])
def test_a_sum_with_anything_else_is_an_error(other):
    with pytest.raises(TypeError):
        boughs.gen("x") + other
    with pytest.raises(TypeError):
        other + boughs.gen("x")
    if other is not None:
        with pytest.raises(InvalidRequest, match="user: expected text"):
            boughs.user(other)


def test_roles():
    assert boughs.system_begin() == ir.RoleBegin("system")
    assert boughs.assistant_end() == ir.RoleEnd("assistant")
    assert boughs.role("tool", "x").terms == (
        ir.RoleBegin("tool"),
        Text("x"),
        ir.RoleEnd("tool"),
    )
    assert boughs.user().terms == (ir.RoleBegin("user"), ir.RoleEnd("user"))
    with pytest.raises(InvalidRequest):
        boughs.role("")


def test_nodes_cannot_be_changed():
    with pytest.raises(AttributeError):
        boughs.gen("x").name = "y"
