"""JSON schemas: what is rewritten means the same, or is noted; and real ones, with instances."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from boughs.runtime.constraints.check import violation
from boughs.runtime.constraints.exclusion import excludes, local_refs
from boughs.runtime.constraints.llguidance_backend import load
from boughs.runtime.constraints.matcher import Matcher
from boughs.runtime.constraints.schema import rewrite
from boughs.runtime.constraints.trial import try_source

VOCAB, EOS = 384, 2
SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "schemas" / "sample.jsonl"


@pytest.fixture(scope="module")
def backend(tiny_model):
    return load(tiny_model, VOCAB, (EOS,))


# ---- small schemas and values ----

scalars = st.sampled_from([None, True, False, 0, 1, 1.0, 2.5, "", "a", "b"])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)
kinds = st.sampled_from(["null", "boolean", "object", "array", "number", "string", "integer"])


def composed(inner):
    return st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "required": st.lists(st.sampled_from("ab"), max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "$ref": st.just("#/$defs/d"),
        },
    )


leaves = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"type": kinds}),
    st.fixed_dictionaries({"const": values}),
    st.fixed_dictionaries({"enum": st.lists(values, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"type": st.just("array"), "uniqueItems": st.booleans()}),
)
schemas = st.recursive(leaves, composed, max_leaves=6)


def is_valid(schema, value, shared=None):
    if shared is not None and isinstance(schema, dict):
        schema = {**schema, "$defs": {"d": shared}}
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def without_refs(schema):
    """A definition without references, so that none is circular."""
    if isinstance(schema, dict):
        return {k: without_refs(v) for k, v in schema.items() if k != "$ref"}
    return [without_refs(item) for item in schema] if isinstance(schema, list) else schema


@given(schemas, schemas, schemas, st.lists(values, min_size=1, max_size=8))
@settings(max_examples=400, deadline=None)
def test_what_is_said_to_exclude_each_other_has_no_value_in_common(a, b, shared, instances):
    shared = without_refs(shared)
    if excludes(a, b, local_refs({"$defs": {"d": shared}})):
        for value in instances:
            assert not (is_valid(a, value, shared) and is_valid(b, value, shared))


@pytest.mark.parametrize(
    ("a", "b", "types"),
    [
        ({"type": "string"}, {"type": ["number", "null"]}, ()),
        ({"const": 1}, {"enum": [2, "1"]}, ()),
        ({"type": "string"}, {"const": 1}, ()),
        ({"required": ["a"]}, {"additionalProperties": False}, ("object",)),
        (
            {"type": "object", "properties": {"kind": {"const": "x"}}, "required": ["kind"]},
            {"type": "object", "properties": {"kind": {"enum": ["y", "z"]}}},
            (),
        ),
        ({"$ref": "#/$defs/s"}, {"type": "integer"}, ()),
        ({"allOf": [{"type": "string"}]}, {"type": "integer"}, ()),
    ],
)
def test_common_ways_to_exclude_each_other_are_seen(a, b, types):
    resolve = local_refs({"$defs": {"s": {"type": "string"}}})
    assert excludes(a, b, resolve, types)
    assert excludes(b, a, resolve, types)
    assert not rewrite(
        {"type": list(types) or [], "oneOf": [a, b]}
        if types
        else {"oneOf": [a, b], "$defs": {"s": {"type": "string"}}}
    ).weaker


@given(schemas, schemas, st.lists(values, min_size=1, max_size=8))
@settings(max_examples=400, deadline=None)
def test_a_rewritten_schema_allows_what_is_valid_and_no_more_unless_it_says_so(
    schema, shared, instances
):
    if isinstance(schema, dict):
        schema = {**schema, "$defs": {"d": without_refs(shared)}}
    made = rewrite(schema)
    for value in instances:
        if is_valid(schema, value):
            assert is_valid(made.schema, value)
        elif not made.weaker:
            assert not is_valid(made.schema, value)
        else:
            assert violation(json.dumps(schema), json.dumps(value)) is not None


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"properties": {"a/b": {"unevaluatedProperties": False}}}, "#/properties/a~1b/uneval"),
        ({"items": {"$dynamicRef": "#x"}}, "#/items/$dynamicRef"),
        ({"properties": {"a": 5}}, "#/properties/a: expected a schema, got 5"),
        ({"anyOf": [{}, 5]}, "#/anyOf/1: expected a schema, got 5"),
        ({"properties": {"x": {"type": "foo"}}}, "#/properties/x: Invalid type: foo"),
        ({"properties": {"x": {"items": {"pattern": "a("}}}}, "#/properties/x/items: unclosed"),
        ({"$defs": {"d": {"type": "foo"}}, "items": {"$ref": "#/$defs/d"}}, "#/items"),
        ({"items": {"minItems": "x"}}, "#/items: Expected positive integer for 'minItems'"),
    ],
)
def test_an_error_names_the_pointer(backend, schema, at):
    verdict = try_source(backend, VOCAB, "json_schema", json.dumps(schema))
    assert verdict.grammar is None
    assert verdict.error.startswith(f"json_schema: {at}")


# ---- the check of finished values ----


@pytest.mark.parametrize(
    ("schema", "text", "says"),
    [
        ({"uniqueItems": True}, "[1, 1]", "$: [1, 1] has non-unique"),
        ({"properties": {"a": {"not": {"const": 1}}}}, '{"a": 1}', "$.a: 1 should not be"),
        ({"oneOf": [{"minimum": 1}, {"maximum": 3}]}, "2", "$: 2 is valid under each"),
        ({"uniqueItems": True}, "[1, 2", "not JSON"),
        ({"uniqueItems": True}, "[1, 2]<|im_end|>", None),
        ({"not": {"pattern": "^(b|bb)+x"}}, json.dumps("b" * 90), "too long"),
        ({"$ref": "http://127.0.0.1:9/x"}, "1", "cannot be checked"),
        ({"$ref": "#"}, "1", "too long"),
    ],
)
def test_a_violation_is_told(schema, text, says):
    found = violation(json.dumps(schema), text)
    assert found is None if says is None else says in found


def test_a_check_has_a_deadline():
    schema = {"$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}}
    schema |= {"$ref": "#/$defs/d0"}
    schema["$defs"]["d40"] = {}
    assert "too long" in violation(json.dumps(schema), "1", seconds=0.1)


# ---- real schemas ----


def written(value, schema, root):
    """`value` with its keys in the order of the schema, and whole numbers without a point."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        items = [sub for s in parts(schema, root) for sub in subschemas(s, "items")]
        return [written(item, {"anyOf": items}, root) for item in value]
    if not isinstance(value, dict):
        return value
    known = {}
    for part in parts(schema, root):
        for name, sub in part.get("properties", {}).items():
            known.setdefault(name, []).append(sub)
        for sub in part.get("patternProperties", {}).values():
            known.setdefault(None, []).append(sub)
        known.setdefault(None, []).extend(subschemas(part, "additionalProperties"))
    names = [name for name in known if name in value]
    names += [name for name in value if name not in known]
    return {
        name: written(value[name], {"anyOf": known.get(name, known.get(None, []))}, root)
        for name in names
    }


def subschemas(schema, key):
    found = schema.get(key)
    return [found] if isinstance(found, dict) else found if isinstance(found, list) else []


def parts(schema, root, depth=0):
    """A schema and all that are combined with it, those of references too."""
    if not isinstance(schema, dict) or depth > 12:
        return
    if isinstance(schema.get("$ref"), str):
        yield from parts(local_refs(root)({"$ref": schema["$ref"]}), root, depth + 1)
    yield schema
    for key in ("allOf", "anyOf", "oneOf"):
        for sub in subschemas(schema, key):
            yield from parts(sub, root, depth + 1)


def accepts(backend, grammar, text):
    """Whether a grammar accepts a text, token by token, and it may end there."""
    matcher = Matcher(backend.build(grammar), backend, "json_schema")
    for token in backend.tokenizer.tokenize_str(text):
        if not matcher.mask(VOCAB)[token]:
            return False
        matcher.accept(token)
    return matcher.accepting


@pytest.mark.skipif(not SAMPLE.exists(), reason="needs ../shared/data/schemas")
def test_real_schemas_compile_and_take_their_valid_instances_alone(backend):
    lines = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    refused, reordered, count = {}, 0, 0
    for line in lines:
        schema, source = line["schema"], json.dumps(line["schema"])
        verdict = try_source(backend, VOCAB, "json_schema", source)
        if verdict.grammar is None:
            refused[line["id"]] = verdict.error
            continue
        for test in line["tests"]:
            count += 1
            text = json.dumps(test["data"], ensure_ascii=False)
            taken = accepts(backend, verdict.grammar, text)
            if not taken and test["valid"]:
                text = json.dumps(written(test["data"], schema, schema), ensure_ascii=False)
                taken = accepts(backend, verdict.grammar, text)
                reordered += taken
            if taken and verdict.weaker:
                taken = violation(source, text) is None
            assert taken == test["valid"], f"{line['id']}: {text}"
    assert len(refused) <= 0.05 * len(lines), refused
    assert all(error.startswith("json_schema: #") for error in refused.values()), refused
    assert count > 300
    assert reordered < 20  # where only the order was another, or 1.0 was written for 1


def test_a_remote_reference_is_never_fetched(backend):
    source = '{"items": {"$ref": "http://127.0.0.1:9/x"}}'
    assert "127.0.0.1:9/x" in try_source(backend, VOCAB, "json_schema", source).error


@pytest.mark.skipif(not SAMPLE.exists(), reason="needs ../shared/data/schemas")
def test_what_is_drawn_under_real_schemas_is_valid_or_cut(backend):
    """Tokens at random; what ends is valid, or its violation is told."""
    draw, whole = np.random.default_rng(0), 0
    for line in SAMPLE.read_text().splitlines():
        source = json.dumps(json.loads(line)["schema"])
        verdict = try_source(backend, VOCAB, "json_schema", source)
        if verdict.grammar is None:
            continue
        matcher, tokens = Matcher(backend.build(verdict.grammar), backend, "json_schema"), []
        while len(tokens) < 128 and not matcher.complete:
            tokens.append(int(draw.choice(np.flatnonzero(matcher.mask(VOCAB)))))
            matcher.accept(tokens[-1])
        if matcher.complete:
            whole += 1
            text = backend.tokenizer.decode_str([token for token in tokens if token != EOS])
            assert verdict.weaker or violation(source, text) is None, f"{source}: {text}"
    assert whole > 20
