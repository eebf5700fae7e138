"""Real schemas on an engine: what is generated under each of them is valid, told, or cut."""

import importlib.util
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jsonschema
import pytest
from jsonschema.validators import validator_for

import boughs
from boughs.lang.errors import GrammarError

_path = Path(__file__).parents[1] / "fixtures" / "tiny_models.py"
_spec = importlib.util.spec_from_file_location("tiny_models", _path)
tiny_models = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_models)

SAMPLE = Path(__file__).parents[3] / "shared" / "data" / "schemas" / "sample.jsonl"
pytestmark = pytest.mark.skipif(not SAMPLE.exists(), reason="needs ../shared/data/schemas")

REFUSED = 4
"""Schemas of the sample that no grammar is made of; docs/constraints.md names them."""


def schemas():
    return [json.loads(line)["schema"] for line in SAMPLE.read_text().splitlines()]


def is_valid(schema, text):
    validator = validator_for(schema, default=jsonschema.Draft202012Validator)
    return validator(schema).is_valid(json.loads(text))


def ending(engine, schema, seed, temperature):
    """How one output ends: `refused`, `whole`, `told` (a violation) or `cut`."""
    params = {"max_new_tokens": 128, "temperature": temperature, "seed": seed}
    try:
        answer = engine.generate("JSON:", {**params, "json_schema": json.dumps(schema)})
    except GrammarError:
        return "refused"
    reason, text = answer["meta_info"]["finish_reason"], answer["text"]
    if reason["type"] == "length":
        assert reason.get("incomplete") or is_valid(schema, text), text
        return "cut"
    assert reason["type"] == "stop"
    assert is_valid(schema, text) == ("violation" not in reason), (schema, text)
    return "told" if "violation" in reason else "whole"


def endings(engine, some, temperature, seed=0):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda schema: ending(engine, schema, seed, temperature), some))
    return {kind: made.count(kind) for kind in sorted(set(made))}


@pytest.fixture(scope="module")
def flat_model(tmp_path_factory):
    """A random model for which no token is much more likely than others."""
    return tiny_models.make_tiny_model(tmp_path_factory.mktemp("flat"), logit_std=2.0)


def test_a_random_model_under_every_schema(flat_model):
    with boughs.Engine(model_path=flat_model, kv_memory="16M") as engine:
        found = endings(engine, schemas(), temperature=2.0)
        assert engine.stats()["running"] == 0
    assert found["refused"] == REFUSED
    assert found["whole"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_real_model_under_many_schemas(demo_model, temperature):
    some = schemas()[::5]
    with boughs.Engine(model_path=demo_model, kv_memory="256M") as engine:
        found = endings(engine, some, temperature)
    assert sum(found.values()) == len(some) >= 30
    assert found["whole"] > 10, found
