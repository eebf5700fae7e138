"""Objects in the styles of models' calls: what is generated is read naively, and is valid."""

import json
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jsonschema import Draft202012Validator

from boughs.lang.constraints import JsonForm
from boughs.runtime.constraints.llguidance_backend import load
from boughs.runtime.constraints.matcher import Matcher
from boughs.runtime.constraints.trial import try_source

VOCAB, EOS = 384, 2
DSML = "\uff5cDSML\uff5c"
READERS = {
    "qwen_xml": (r"<parameter=([^>]*)>()(.*?)</parameter>", None),
    "minimax_xml": (r'<parameter name="([^"]*)">()(.*?)</parameter>', None),
    "glm_xml": (r"<arg_key>(.*?)</arg_key>\s*<arg_value>()(.*?)</arg_value>", None),
    "deepseek_xml": (
        rf'<{DSML}parameter name="([^"]*)" string="(true|false)">(.*?)</{DSML}parameter>',
        "true",
    ),
    "deepseek_v4_1_xml": (
        rf'<{DSML} parameter name="([^"]*)" string="(true|false)">(.*?)</{DSML} parameter>',
        "true",
    ),
    "kimi_k3_xml": (
        r'<\|open\|>argument key="([^"]*)" type="(\w+)"<\|sep\|>(.*?)<\|close\|>argument<\|sep\|>',
        "string",
    ),
}
"""How a naive reader finds properties, and what tells it that a value is a string."""

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Of Europe."},
        "days": {"type": "integer"},
        "unit": {"enum": ["c", "f"]},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2},
        "near": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "code": {"type": "string", "pattern": "^[a-c]{2,3}$"},
        "part": {"type": "string", "pattern": "b+", "maxLength": 4},
        "sure": {"type": "boolean"},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"tag": {"type": "string", "maxLength": 3}},
}


@pytest.fixture(scope="module")
def backend(tiny_model):
    return load(tiny_model, VOCAB, (EOS,))


def tag(schema, style="qwen_xml", end="\n</f>", **more):
    content = {"type": "json_schema", "json_schema": schema, "style": style, **more}
    return json.dumps({"format": {"type": "tag", "begin": "<f>\n", "content": content, "end": end}})


def tag_grammar(backend, source, *form):
    return backend.translate("structural_tag", source, *form).grammar


def accepts(backend, source, text):
    raw = backend.build(tag_grammar(backend, source))
    ids = backend.tokenizer.tokenize_str(text)
    return raw.try_consume_tokens(ids) == len(ids) and raw.is_accepting()


def read(text, style, schema):
    """The object of a text; asserts that it is nothing but properties and white space."""
    text = text.removeprefix("<f>\n")
    assert text.endswith("\n</f>")
    text = text.removesuffix("\n</f>")
    pattern, is_string = READERS[style]
    assert not re.sub(pattern, "", text, flags=re.DOTALL).strip()
    made = {}
    for name, kind, value in re.findall(pattern, text, re.DOTALL):
        string = kind == is_string
        if is_string is None:
            sub = schema["properties"].get(name, {})
            string = sub.get("type", "string" if "enum" in sub else None) == "string"
        assert name not in made
        made[name] = (
            (value if kind else value.strip() if name == "unit" else value)
            if string
            else json.loads(value)
        )
    return made


def sample(backend, grammar, style, rng, most=600):
    """A text that a grammar allows, and whether it is whole; now and then it tries to close."""
    matcher, ids = Matcher(backend.build(grammar), backend, "structural_tag"), []
    close = written({"a": "|"}, style).partition("|</" if style != "kimi_k3_xml" else ">|<")[2]
    closes = [
        backend.tokenizer.tokenize_str(text) for text in (f"</{close}", f"<{close}", "\n</f>")
    ]
    while not matcher.complete and len(ids) < most:
        tries = rng.choice(closes) if rng.random() < 0.2 else []
        for wanted in [*tries, None]:
            allowed = np.flatnonzero(matcher.mask(VOCAB))
            if wanted is not None and wanted not in allowed:
                break
            ids.append(int(rng.choice(allowed)) if wanted is None else wanted)
            matcher.accept(ids[-1])
            if matcher.complete:
                break
    text = backend.tokenizer.decode_bytes([token for token in ids if token != EOS])
    return text.decode(errors="ignore"), matcher.complete


@pytest.mark.parametrize("style", READERS)
def test_what_is_generated_is_an_object_under_the_schema(backend, style):
    verdict = try_source(backend, VOCAB, "structural_tag", tag(SCHEMA, style))
    assert verdict.error is None
    validator, rng, whole = Draft202012Validator(SCHEMA), random.Random(1), 0
    for _ in range(12):
        text, complete = sample(backend, verdict.grammar, style, rng)
        if complete:
            whole += 1
            validator.validate(read(text, style, SCHEMA))
    assert whole > 3


def written(value, style, space=""):
    """An object in a style."""
    made = []
    for name, item in value.items():
        string = isinstance(item, str)
        text = item if string else json.dumps(item)
        kinds = {bool: "boolean", type(None): "null", list: "array", str: "string"}
        kind = kinds.get(type(item), "number")
        if kind != "string" and space:
            text = f"{space}{text}{space}"
        made.append(
            {
                "qwen_xml": f"<parameter={name}>{text}</parameter>",
                "minimax_xml": f'<parameter name="{name}">{text}</parameter>',
                "glm_xml": f"<arg_key>{name}</arg_key>{space}<arg_value>{text}</arg_value>",
                "deepseek_xml": f'<{DSML}parameter name="{name}" string="{str(string).lower()}">'
                f"{text}</{DSML}parameter>",
                "deepseek_v4_1_xml": f'<{DSML} parameter name="{name}" '
                f'string="{str(string).lower()}">{text}</{DSML} parameter>',
                "kimi_k3_xml": f'<|open|>argument key="{name}" type="{kind}"<|sep|>'
                f"{text}<|close|>argument<|sep|>",
            }[style]
        )
    return f"<f>\n{space.join(made)}\n</f>"


VALUES = st.fixed_dictionaries(
    {"city": st.text("ab <>/é\n", max_size=6), "days": st.integers(-99, 99)},
    optional={
        "unit": st.sampled_from(["c", "f", "k"]),
        "tags": st.lists(st.text("ab", max_size=4), max_size=3),
        "near": st.none() | st.integers(0, 9) | st.just(True),
        "code": st.text("abcd", max_size=4),
        "part": st.text("ab", max_size=5),
        "sure": st.booleans(),
    },
)


@given(st.sampled_from([*READERS]), VALUES, st.sampled_from(["", "\n", " \n", "\n    \n"]))
@settings(max_examples=120, deadline=None)
def test_an_object_is_accepted_if_it_is_valid(backend, style, value, space):
    value = {name: value[name] for name in SCHEMA["properties"] if name in value}
    fits = Draft202012Validator(SCHEMA).is_valid(value) and len(space) <= 4
    text = written(value, style, space)
    assert accepts(backend, tag(SCHEMA, style), text) == fits, text


def test_names_of_others_are_told_from_those_of_the_schema(backend):
    schema = {"properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "null"}}
    source = tag(schema)
    for names, fits in (("ab", True), ("a", True), ("abc", True), ("aab", True), ("1", False)):
        value = {names: 1 if names == "ab" else None}
        assert accepts(backend, source, written(value, "qwen_xml")) == fits, names
        assert not accepts(backend, source, written({names: "x"}, "qwen_xml"))
    assert accepts(backend, source, written({"ab": 1, "b": None, "abab": None}, "qwen_xml"))
    anything = written({"b": "x", "c": [1]}, "qwen_xml")
    assert accepts(backend, tag(True), anything)
    assert accepts(backend, tag({}), anything)
    assert not accepts(backend, tag({"type": "object"}), anything)
    old = {"format": {"type": "qwen_xml_parameter", "json_schema": schema}}
    grammar = backend.build(tag_grammar(backend, json.dumps(old)))
    ids = backend.tokenizer.tokenize_str("<parameter=ab>1</parameter>")
    assert grammar.try_consume_tokens(ids) == len(ids)


def test_white_space_and_exclusions_are_held(backend):
    schema = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
    text = written({"a": "x-y", "b": 1}, "qwen_xml", "\n\n")
    assert accepts(backend, tag(schema), text)
    assert not accepts(backend, tag(schema, max_whitespace_cnt=1), text)
    assert not accepts(backend, tag(schema, excludes=["-y"]), text)
    assert accepts(backend, tag(schema, excludes=["yx"]), text)
    grammar = tag_grammar(backend, tag(schema), JsonForm(whitespace=1))
    assert backend.build(grammar).try_consume_tokens(
        ids := backend.tokenizer.tokenize_str(text)
    ) < len(ids)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"type": "array"}, "#: the schema must be that of an object"),
        (False, "#: the schema must be that of an object"),
        ({"properties": {}, "required": ["a"]}, "#/required: 'a' is no property"),
        (
            {"patternProperties": {"a": {}}},
            "#/patternProperties: patternProperties is not supported",
        ),
        ({"properties": {"a>": {}}}, "#/properties/a>: a name that is empty, or has one of"),
        ({"properties": {"": {}}}, "#/properties/: a name that is empty"),
        ({"properties": {"a": {"enum": []}}}, "#/properties/a: no value is allowed"),
        ({"properties": {"a": {"enum": ["b"], "type": "null"}}}, "#/properties/a: no value is"),
        ({"properties": [1]}, "#/properties: expected dict, got [1]"),
        ({"properties": {}, "required": 3}, "#/required: expected list, got 3"),
        ({"properties": {"a": {"enum": 3}}}, "#/properties/a/enum: expected list, got 3"),
        ({"properties": {"a": {"anyOf": 3}}}, "#/properties/a/anyOf: expected list, got 3"),
        ({"properties": {"a": {"type": "strin"}}}, "#/properties/a/type: expected types, got"),
        ({"properties": {"a": {"type": [[]]}}}, "#/properties/a/type: expected types, got"),
        ({"properties": {"a": {"type": "string", "pattern": 5}}}, "pattern: expected str, got 5"),
        ({"properties": {"a": {"type": "string", "minLength": "x"}}}, "minLength: expected int"),
        ({"properties": {"a": False}, "required": ["a"]}, "#/properties/a: expected a schema"),
        ({"properties": {"a": {"type": "string", "format": "date"}}}, "#/properties/a/format:"),
        (
            {"properties": {"a": {"type": "string", "not": {}}}},
            "#/properties/a/not: not is not supported",
        ),
        ({"properties": {"a": {"not": {"const": 1}}}}, "#/properties/a/not: not is not supported"),
        ({"properties": {"a": {"type": "array", "uniqueItems": True}}}, "#/uniqueItems: no"),
        ({"properties": {"a": {"$ref": "#/x"}}}, "#/properties/a/$ref: it is not found"),
        ({"properties": {"a": {"type": "array", "items": {"$ref": "#"}}}}, "a $ref to '#'"),
        ({"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}, "#/properties/a/pattern"),
        ({"properties": {"a": {"type": "string", "pattern": "a(b$)"}}}, "#/properties/a/pattern"),
        ({"properties": {"a": {"enum": ["</parameter>"]}}}, "has '</parameter>' in it"),
        (
            {"properties": {"a": {"anyOf": [{"enum": ["x"]}, {"type": "integer"}]}}},
            "#/properties/a: texts and other values cannot be told apart",
        ),
        (
            {"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}},
            "#/properties/a/oneOf: its branches overlap; use anyOf",
        ),
    ],
)
def test_what_is_refused_says_why(backend, schema, says):
    error = try_source(backend, VOCAB, "structural_tag", tag(schema)).error
    assert error.startswith("structural_tag: behind '<f>\\n': #")
    assert says in error
