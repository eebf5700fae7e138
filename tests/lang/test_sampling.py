"""The sampling parameters: aliases, types, ranges, and the names in errors."""

import re
from pathlib import Path

import msgspec
import pytest

from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.sampling import ALIASES, NOT_YET, SamplingParams


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_is_its_field(alias):
    assert SamplingParams.from_mapping({alias: 7}) == SamplingParams(**{ALIASES[alias]: 7})


@pytest.mark.parametrize("alias", sorted(ALIASES))
@pytest.mark.parametrize("value", [-1, "3", 1.5, True])
def test_an_error_names_the_field_as_it_was_written(alias, value):
    with pytest.raises(InvalidRequest, match=rf"^here\.{alias}\b") as caught:
        SamplingParams.from_mapping({alias: value}, "here.")
    assert caught.value.param == f"here.{alias}"


def test_two_names_of_one_field_are_refused():
    with pytest.raises(InvalidRequest, match="another name of max_new_tokens"):
        SamplingParams.from_mapping({"max_tokens": 1, "max_new_tokens": 2})


@pytest.mark.parametrize("name", sorted(NOT_YET))
def test_what_is_not_there_is_refused_by_name_unless_unset(name):
    assert SamplingParams.from_mapping({name: None}) == SamplingParams()
    with pytest.raises(Unsupported, match=name):
        SamplingParams.from_mapping({name: 2})


@pytest.mark.parametrize(
    ("name", "value", "held"),
    [
        ("stop", "a", ("a",)),
        ("stop", "", ()),
        ("stop_token_ids", 3, (3,)),
        ("allowed_token_ids", 3, (3,)),
        ("allowed_token_ids", [3, 3, 1], (3, 3, 1)),
        ("bad_words", "a b", ("a b",)),
        ("bad_words", "", ()),
        ("bad_words", [" a", "\n"], (" a", "\n")),
        ("logit_bias", {"3": 1}, {3: 1.0}),
    ],
)
def test_a_value_may_stand_for_a_list_of_one(name, value, held):
    assert getattr(SamplingParams.from_mapping({name: value}), name) == held


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_p", 0),
        ("top_p", float("nan")),
        ("top_k", 0),
        ("min_p", 1.5),
        ("n", 0),
        ("stop", [""]),
        ("stop", ["x"] * 33),
        ("stop_regex", "x" * 257),
        ("logit_bias", {"3": 101}),
        ("logit_bias", {"a": 1}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", ["a"]),
        ("allowed_token_ids", True),
        ("bad_words", [""]),
        ("bad_words", ["x"] * 1025),
        ("bad_words", "x" * 129),
        ("bad_words", [5]),
        ("seed", -1),
        ("timeout", 0),
        ("spaces_between_special_tokens", False),
        ("choices", []),
        ("choices", ["a", ""]),
        ("choices", "a"),
        ("json_schema", [1]),
        ("json_schema", 5),
        ("structural_tag", 5),
        ("json_object", 1),
        ("json_whitespace", -1),
        ("json_whitespace", 101),
        ("json_separators", [","]),
        ("json_separators", [",", ","]),
        ("json_separators", [";", ":"]),
        ("json_separators", [",", ":\u00a0"]),
        ("json_separators", [",", ":" + " " * 9]),
    ],
)
def test_a_value_out_of_range_is_named(name, value):
    with pytest.raises(InvalidRequest, match=name):
        SamplingParams.from_mapping({name: value})


LISTS = {"stop", "stop_regex", "bad_words"}
OBJECTS = {"json_schema", "structural_tag"}
TEXTS = LISTS | OBJECTS | {"regex", "ebnf", "lark", "cache_salt"}


@pytest.mark.parametrize("name", [*SamplingParams.__struct_fields__, *ALIASES])
@pytest.mark.parametrize("value", ["\ud800", ["\ud800"], {"\ud800": 1}])
def test_a_lone_surrogate_where_none_can_stand_is_refused_by_name(name, value):
    lists, objects = {*LISTS, "choices"}, OBJECTS
    if name in (TEXTS if isinstance(value, str) else lists if isinstance(value, list) else objects):
        return  # the front refuses it
    with pytest.raises(InvalidRequest, match=rf"^here\.{name}\b") as caught:
        SamplingParams.from_mapping({"n": 1, "top_k": 5} | {name: value}, "here.")
    assert caught.value.param.partition("[")[0] == f"here.{name}"


@pytest.mark.parametrize(("penalty", "fits"), [(1e-6, True), (9e-7, False), (1e-320, False)])
def test_a_repetition_penalty_that_makes_logits_infinite_is_refused(penalty, fits):
    if fits:
        SamplingParams.from_mapping({"repetition_penalty": penalty})
        return
    with pytest.raises(InvalidRequest, match="repetition_penalty must be from 1e-06 to 2"):
        SamplingParams.from_mapping({"repetition_penalty": penalty})


def test_the_page_of_parameters_has_each_with_its_aliases_and_default():
    page = (Path(__file__).parents[2] / "docs" / "sampling.md").read_text()
    table = page.split("## How they meet")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    listed = {}
    for names, default in rows:
        outside = re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", names))
        aliases = set(re.findall(r"`(\w+)`", names)) - set(outside)
        defaults = default.strip().split(", ")
        for at, name in enumerate(outside):
            listed[name] = defaults[min(at, len(defaults) - 1)]
            assert aliases == {a for a, field in ALIASES.items() if field == name}
    assert set(listed) == set(SamplingParams.__struct_fields__)
    words = {None: ("none", "drawn", "all"), (): ("none",), True: ("true",), False: ("false",)}
    for field in msgspec.structs.fields(SamplingParams):
        value = field.default
        is_word = value is None or value == () or isinstance(value, bool)
        expected = words[value] if is_word else (f"{value:g}",)
        assert listed[field.name] in expected, field.name
