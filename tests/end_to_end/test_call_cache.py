"""The cache of calls on real backends: an engine and a server of one model share their answers."""

import pytest

import boughs

pytestmark = pytest.mark.timeout(120)


@boughs.function
def program(s, temperature):
    s += boughs.user("Name three things.")
    branches = s.fork(2)
    for at, branch in enumerate(branches):
        branch += boughs.assistant(
            f"{at}:" + boughs.gen("x", max_tokens=6, temperature=temperature, seed=at)
        )
    branches.join()
    s += boughs.assistant(boughs.select("y", choices=["one", "two"]))
    s += boughs.user("And a number?")
    s += boughs.assistant(boughs.gen("z", type=int, max_tokens=8, temperature=0))


def told(state):
    return state.text(), state["x"], state["y"], state["z"], state.choice_probs("y")


def test_engine_and_server_answer_for_each_other(tiny_model, tiny_server, tmp_path):
    cache = boughs.CallCache(tmp_path)
    with boughs.Engine(model_path=tiny_model, in_process=True, kv_memory="32M") as engine:
        first = program.run(1.5, backend=engine, cache=cache)
        answered = told(first)
        before = engine.stats()["finished"]
        again = program.run(1.5, backend=engine, cache=cache)
        assert told(again) == answered
        assert engine.stats()["finished"] == before
    assert first.usage.requests == again.usage.call_hits > 0
    assert again.usage.requests == first.usage.call_hits == 0
    endpoint = boughs.RuntimeEndpoint(tiny_server.url)
    there = program.run(1.5, backend=endpoint, cache=cache)
    assert told(there) == answered
    assert there.usage.requests == 0
    other = program.run(0.5, backend=endpoint, cache=cache)
    assert other.usage.call_hits > 0  # what comes before the branches is the same
    assert other.usage.requests > 0
    assert told(program.run(0.5, backend=endpoint))[:4] == told(other)[:4]  # without a cache


def test_another_model_has_answers_of_its_own(tiny_model, tmp_path):
    cache = boughs.CallCache(tmp_path)
    for settings in ({}, {"quantize": "int8"}):
        with boughs.Engine(
            model_path=tiny_model, in_process=True, kv_memory="32M", **settings
        ) as engine:
            state = program.run(0, backend=engine, cache=cache)
            assert state.usage.call_hits == 0
