"""Tool calls on a real engine: a random model calls nothing but tools, and reads the results."""

import json
import shutil
from typing import Literal

import pytest

import boughs


@boughs.tool
def scale(number: Literal[1, 2, 3], by: bool = True) -> int:
    """Make a number ten times as large."""
    return number * 10 if by else number


def greet(name: Literal["Ann", "Bo"]) -> str:
    return f"Hello, {name} <|im_end|>"


@boughs.function
def agent(s, seed):
    s += boughs.system(boughs.describe_tools([scale, greet]))
    s += boughs.user("call")
    s += boughs.assistant(boughs.gen_tool_call("call", [scale, greet], seed=seed))
    result = s["call"].run()
    assert result.error is None
    s += result
    s += boughs.assistant(boughs.gen("answer", max_tokens=2))
    return result.text


@pytest.fixture(scope="module", params=["tool", "user"])
def engine(request, tiny_model, tmp_path_factory):
    """Engines whose templates have a role for tools, and have none."""
    folder = tiny_model
    if request.param == "user":
        folder = tmp_path_factory.mktemp("models") / "no-tools"
        shutil.copytree(tiny_model, folder)
        path = folder / "tokenizer_config.json"
        config = json.loads(path.read_text())
        refuse = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}"
        config["chat_template"] = refuse + "{% endif %}{% endfor %}" + config["chat_template"]
        path.write_text(json.dumps(config))
    with boughs.Engine(model_path=folder, in_process=True, check_invariants=True) as engine:
        yield request.param, engine


def test_a_call_and_its_result_are_turns(engine):
    role, backend = engine
    states = agent.run_batch([{"seed": seed} for seed in range(4)], backend=backend)
    for state in states:
        messages = state.messages()
        assert [m["role"] for m in messages] == ["system", "user", "assistant", role, "assistant"]
        assert messages[3]["content"] == state.ret_value
        assert f"<|im_start|>{role}\n{state.ret_value}<|im_end|>" in state.text()
        info = state.get_meta_info("answer")
        assert info["cached_tokens"] > state.get_meta_info("call")["prompt_tokens"]


@boughs.function
def at_once(s, seed):
    s += boughs.system("Answer.") + boughs.user("call")
    s += boughs.tools([scale, greet], "x", rounds=2, seed=seed)
    s += boughs.tools([scale], "y", may_answer=True, run=False, max_tokens=60, seed=seed)


def test_turns_of_calls_are_the_three_parts_apart(engine):
    role, backend = engine
    for state in at_once.run_batch([{"seed": seed} for seed in range(4)], backend=backend):
        told = [m["role"] for m in state.messages()]
        turns = ["assistant", role] * 2
        assert told == ["system", "user", "system", *turns, "assistant"]  # scale is known by then
        assert [m["content"] for m in state.messages() if m["role"] == role][-2:] == [
            result.text for result in state["x_results"]
        ]
        assert [r.name for r in state["x_results"]][-1] == state["x"].name
        written = state.raw("y")
        assert isinstance(state["y"], str) == (not written.startswith("{"))
