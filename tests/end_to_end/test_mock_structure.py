"""The mock backend against an engine: the same random programs have the same structure on both."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import boughs
from boughs.testing import MockBackend

_path = Path(__file__).parents[1] / "lang" / "test_properties.py"
_spec = importlib.util.spec_from_file_location("boughs_test_properties", _path)
properties = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(properties)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def engine(tiny_model):
    with boughs.Engine(model_path=tiny_model, in_process=True, kv_memory="32M") as engine:
        yield engine


@boughs.function
def program(s, script):
    s += "Start."
    properties.play(s, script)
    s += boughs.gen("end")


def shape(value):
    """What a value is, without what a model says."""
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def structure(state):
    """All that a program is, but for the model's words."""
    contents = state._executor.contents
    meta = {name: shape(info) for name, info in contents.meta.items()}
    return {
        "roles": [message["role"] for message in state.messages()],
        "variables": {name: shape(value) for name, value in contents.variables.items()},
        "written": sorted(contents.written),
        "meta": meta,
        "choices": {name: sorted(probs) for name, probs in contents.probs.items()},
        "statements": state._backlog.submitted,
        "requests": state.usage.requests,
    }


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_program_has_the_same_structure_on_both(engine, data):
    script = data.draw(properties.scripts)
    states = [
        program.run(script, backend=backend, max_tokens=3, temperature=0)
        for backend in (engine, MockBackend(properties.answer))
    ]
    there, mocked = map(structure, states)
    assert there == mocked


def test_answers_have_the_same_fields(engine):
    @boughs.function
    def ask(s, **options):
        s += boughs.user("Hi") + boughs.assistant("So " + boughs.gen("x"))
        s += boughs.assistant(boughs.select("y", choices=["a", "bc"]))

    for options in ({}, {"n": 2}, {"return_logprob": True, "top_logprobs_num": 2}):
        keys = []
        for backend in (engine, MockBackend("ok")):
            state = ask.run(backend=backend, max_tokens=2, temperature=0, **options)
            infos = [state.get_meta_info("x"), state.get_meta_info("y")]
            infos = [info[0] if isinstance(info, list) else info for info in infos]
            keys.append([sorted(info) for info in infos])
        assert keys[0] == keys[1]
