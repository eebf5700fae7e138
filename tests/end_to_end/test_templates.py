"""States of several turns under a template that rewrites earlier turns, against the template."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import pytest

import boughs

_path = Path(__file__).parents[1] / "fixtures" / "chat_templates.py"
_spec = importlib.util.spec_from_file_location("boughs_fixtures_chat_templates", _path)
templates = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(templates)

ANSWER = r"<think>\n[a-c]{3,8}\n</think>\n\n[x-z]{3,8}"


@pytest.fixture(scope="module")
def engine(tiny_model, tmp_path_factory):
    """The tiny model with a template like Qwen3's."""
    model = shutil.copytree(tiny_model, tmp_path_factory.mktemp("qwen3") / "model")
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    for theirs, ours in (("<|user|>", "<|im_start|>"), ("<|end|>", "<|im_end|>")):
        templates.QWEN3 = templates.QWEN3.replace(theirs, ours)
    config["chat_template"] = templates.QWEN3
    path.write_text(json.dumps(config))
    with boughs.Engine(model_path=model, in_process=True, kv_memory="16M") as engine:
        yield engine


@boughs.function
def chat(s, turns, separate):
    s += boughs.system("Be brief.")
    for turn in range(turns):
        s += boughs.user(f"Question {turn}?")
        answer = boughs.assistant(boughs.gen(f"a{turn}", regex=ANSWER, temperature=0))
        s += boughs.separate_reasoning(answer, "qwen3") if separate else answer


def expected(engine, messages):
    hf = engine.endpoint.tokenizer.hf
    return hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def test_with_reasoning_apart_every_prompt_is_the_templates_own(engine):
    state = chat.run(3, separate=True, backend=engine)
    whole, messages = state.text(), [{"role": "system", "content": "Be brief."}]
    for turn in range(3):
        messages.append({"role": "user", "content": f"Question {turn}?"})
        assert whole.startswith(expected(engine, messages))
        thought, answer = state[f"a{turn}_reasoning_content"], state[f"a{turn}"]
        content = f"<think>\n{thought}\n</think>\n\n{answer}"  # the template drops what it must
        messages.append({"role": "assistant", "content": content})
    assert "think" not in whole
    assert state.messages()[-1]["content"] == state["a2"]
    assert "".join(chat.run(3, separate=True, backend=engine, stream=True).text_iter()) == whole


def test_else_a_turn_stays_as_the_model_made_it(engine):
    """What a model generated is never taken back, so the next turn finds it in the tree."""
    state = chat.run(2, separate=False, backend=engine)
    first, second = state.get_meta_info("a0"), state.get_meta_info("a1")
    assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 1
    assert f"<|im_start|>assistant\n{state['a0']}<|im_end|>" in state.text()


@boughs.function
def keeping(s, turns, separate):
    chat.func(s, turns, separate)


def test_reasoning_that_the_template_would_drop_is_warned_of_once(engine, caplog):
    with caplog.at_level("WARNING", "boughs"):
        keeping.run_batch([(2, True)] * 2, backend=engine)
        keeping.run(1, False, backend=engine)  # no turn is over
        assert not caplog.messages
        keeping.run_batch([(3, False)] * 3, backend=engine, num_threads=1)
        [warning] = caplog.messages
    assert re.match(r"program keeping: what the model thought .* separate_reasoning", warning)
