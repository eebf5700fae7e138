"""`Engine`: SGLang's forms of call, over fake cores; and one real core, from a script."""

import asyncio
import gc
import importlib.util
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from boughs.lang import loop
from boughs.lang.backend import Backend
from boughs.lang.errors import (
    BoughsError,
    EngineDied,
    InvalidRequest,
    NotFound,
    RequestAborted,
    Unsupported,
)
from boughs.runtime import engine as engines
from boughs.runtime.engine import Engine
from boughs.runtime.front.link import ThreadLink


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model's folder, but for the weights."""
    made = load("tiny_models").make_tiny_tokenizer(tmp_path_factory.mktemp("model"))
    (made / "config.json").write_text("{}")
    return made


@pytest.fixture(scope="module")
def engine(folder):
    patch = pytest.MonkeyPatch()
    patch.setattr(engines, "process_link", lambda _: ThreadLink(fake.FakeCore().run))
    with Engine(model_path=folder) as made:
        yield made
        assert made.stats()["in_flight"] == 0
    patch.undo()


def want(engine, prompt, count, choice=0):
    ids = engine.endpoint.tokenizer.encode(prompt, "start") if isinstance(prompt, str) else prompt
    return fake.counting(ids, choice)[:count]


FOUR = {"max_new_tokens": 4}


def test_one_prompt_gives_one_answer(engine):
    answer = engine.generate("Hello", FOUR, rid="r1")
    assert set(answer) == {"text", "output_ids", "meta_info"}
    assert answer["output_ids"] == want(engine, "Hello", 4)
    text_of = engine.endpoint.tokenizer.text_of
    assert answer["text"] == "".join(map(text_of, answer["output_ids"]))
    info = answer["meta_info"]
    assert info["id"] == "r1"
    assert info["finish_reason"] == {"type": "length", "length": 4}
    assert (info["prompt_tokens"], info["completion_tokens"]) == (4, 4)
    assert info["e2e_latency"] >= 0
    assert engine.generate(input_ids=[70, 71], sampling_params=FOUR)["output_ids"] == want(
        engine, [70, 71], 4
    )


def test_the_defaults_are_the_sampling_parameters(engine):
    assert engine.generate("Hello")["meta_info"]["completion_tokens"] == 128


@pytest.mark.parametrize("stream", [False, True])
def test_lists_and_choices_give_lists_in_order(engine, stream):
    def ids(**arguments):
        answers = engine.generate(**arguments, stream=stream)
        if stream:
            answers = [a for _, a in sorted({a["index"]: a for a in answers}.items())]
        return [answer["output_ids"] for answer in answers]

    two = ["Hello", "my world"]
    assert ids(prompt=two, sampling_params=FOUR) == [want(engine, p, 4) for p in two]
    assert ids(prompt=["Hello"], sampling_params=FOUR) == [want(engine, "Hello", 4)]
    assert ids(input_ids=[[70], [71, 72]], sampling_params=FOUR) == [
        want(engine, [70], 4), want(engine, [71, 72], 4),
    ]  # fmt: skip
    assert ids(prompt="Hello", sampling_params={**FOUR, "n": 2}) == [
        want(engine, "Hello", 4, choice) for choice in (0, 1)
    ]
    mixed = [{"max_new_tokens": 2, "n": 2}, {"max_new_tokens": 3}]
    assert ids(prompt=two, sampling_params=mixed) == [
        want(engine, two[0], 2), want(engine, two[0], 2, 1), want(engine, two[1], 3),
    ]  # fmt: skip


def test_an_empty_list_gives_an_empty_list(engine):
    assert engine.generate([]) == []
    assert list(engine.generate([], stream=True)) == []


def test_a_stream_grows_to_the_answer(engine):
    answers = list(engine.generate("Hello", FOUR, stream=True))
    assert [len(answer["output_ids"]) for answer in answers] == [1, 2, 3, 4]
    assert all(b["text"].startswith(a["text"]) for a, b in itertools.pairwise(answers))
    assert [a["meta_info"]["finish_reason"] is None for a in answers] == [True] * 3 + [False]
    assert "index" not in answers[0]
    assert answers[-1]["text"] == engine.generate("Hello", FOUR)["text"]


def test_leaving_a_stream_ends_its_requests(engine):
    for _ in engine.generate(["Hello", "you"], {"max_new_tokens": 400}, stream=True):
        break
    gc.collect()
    assert engine.stats()["running"] == 0


def test_logprobs_are_in_meta_info(engine):
    info = engine.generate(
        input_ids=[70, 71], sampling_params=FOUR, return_logprob=True, logprob_start_len=0,
        top_logprobs_num=1, token_ids_logprob=[9, 5],
    )["meta_info"]  # fmt: skip
    assert info["input_token_logprobs"] == [(None, 70, None), (fake.logprob(1, 71), 71, None)]
    assert [token for _, token, _ in info["output_token_logprobs"]] == want(engine, [70, 71], 4)
    assert len(info["output_top_logprobs"]) == 4
    assert info["input_token_ids_logprobs"] == [
        None, [(fake.logprob(1, 9), 9, None), (fake.logprob(1, 5), 5, None)]
    ]  # fmt: skip
    assert len(info["output_token_ids_logprobs"]) == 4
    each = engine.generate(["a", "b"], FOUR, return_logprob=[True, False])
    assert ["output_token_logprobs" in answer["meta_info"] for answer in each] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "input_ids": [1]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[]]}, "input_ids[0]"),
        ({"input_ids": [[5], []]}, "input_ids[1]"),
        ({"input_ids": "abc"}, "input_ids"),
        ({"input_ids": [1, "a"]}, "input_ids[1]"),
        ({"input_ids": [[1], 2]}, "input_ids[1]"),
        ({"input_ids": [1.5]}, "input_ids[0]"),
        ({"prompt": "a", "sampling_params": 5}, "sampling_params"),
        ({"prompt": "a", "sampling_params": [FOUR]}, "sampling_params"),
        ({"prompt": ["a", "b"], "sampling_params": [FOUR]}, "sampling_params"),
        ({"prompt": ["a"], "sampling_params": [5]}, "sampling_params[0]"),
        ({"prompt": "a", "sampling_params": {"tempature": 1}}, "sampling_params.tempature"),
        ({"prompt": "a", "sampling_params": {"n": "x"}}, "sampling_params.n"),
        ({"prompt": ["a"], "sampling_params": [{"n": 0}]}, "sampling_params[0].n"),
        ({"prompt": "a", "return_logprob": "yes"}, "return_logprob"),
        ({"prompt": "a", "return_logprob": 1}, "return_logprob"),
        ({"prompt": "a", "return_logprob": [True]}, "return_logprob"),
        ({"prompt": ["a", "b"], "return_logprob": [True]}, "return_logprob"),
        ({"prompt": "a", "logprob_start_len": 1.0}, "logprob_start_len"),
        ({"prompt": "a", "logprob_start_len": True}, "logprob_start_len"),
        ({"prompt": "a", "top_logprobs_num": "1"}, "top_logprobs_num"),
        ({"prompt": "a", "token_ids_logprob": "1"}, "token_ids_logprob"),
        ({"prompt": "a", "token_ids_logprob": [[1]]}, "token_ids_logprob[0]"),
        ({"prompt": ["a", "b"], "token_ids_logprob": [[1]]}, "token_ids_logprob"),
        ({"prompt": "a", "rid": 5}, "rid"),
        ({"prompt": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"prompt": ["a", "b"], "rid": ["x", "x"]}, "rid"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_argument_is_named(engine, arguments, param, stream):
    def call():
        answer = engine.generate(**arguments, stream=stream)
        return list(answer) if stream else answer

    with pytest.raises(InvalidRequest) as caught:
        call()
    assert caught.value.param == param
    assert param.partition("[")[0] in str(caught.value)


def test_wrong_arguments_of_the_other_methods_are_named(engine):
    wrong = {
        "choices": [lambda: engine.score("a", None), lambda: engine.score("a", 5)],
        "unconditional": [lambda: engine.score("a", ["b"], unconditional="no")],
        "timeout": [lambda: engine.flush_cache(None), lambda: engine.flush_cache("1")],
        "max_segments": [lambda: engine.tree(max_segments="1")],
        "rid": [lambda: engine.abort_request(["a"]), lambda: engine.abort_request(None)],
        "cache_salt": [lambda: engine.pin("a", cache_salt=5).__enter__()],
        "token_ids_logprob": [lambda: engine.generate("a", token_ids_logprob=["\ud800"])],
        "input_ids": [lambda: engine.encode(input_ids=["\ud800"])],
    }
    for param, calls in wrong.items():
        for call in calls:
            with pytest.raises(InvalidRequest, match=param) as caught:
                call()
            assert caught.value.param == param


def test_the_first_failure_ends_a_batch(engine):
    with pytest.raises(InvalidRequest, match="empty"):
        engine.generate(["Hello", "", "you"], {"max_new_tokens": 400})
    assert engine.stats()["running"] == 0


def test_the_callers_arguments_are_left_alone(engine):
    params, prompts = {"max_new_tokens": 2, "stop": ["x"]}, ["a", "b"]
    engine.generate(prompts, params)
    assert (params, prompts) == ({"max_new_tokens": 2, "stop": ["x"]}, ["a", "b"])


def test_a_large_batch_runs_however_few_may_wait(engine):
    answers = engine.generate(["Hello"] * 3000, {"max_new_tokens": 1})
    assert len(answers) == 3000


def test_an_abort_by_id_ends_a_stream(engine):
    ends = []
    for answer in engine.generate("Hello", {"max_new_tokens": 400}, stream=True, rid="long"):
        if len(answer["output_ids"]) == 1:
            engine.abort_request("lon")
            engine.abort_request("long")
        ends.append(answer["meta_info"]["finish_reason"])
    assert ends[-1] == {"type": "abort", "message": "the request was aborted"}


def test_it_works_inside_a_running_event_loop(engine):
    async def main():
        first = engine.generate("Hello", FOUR)
        second, third = await asyncio.gather(
            engine.async_generate("Hello", FOUR), engine.async_generate(["Hello"], FOUR)
        )
        stream = await engine.async_generate("Hello", FOUR, stream=True)
        fourth = [answer async for answer in stream][-1]
        return [answer["output_ids"] for answer in (first, second, third[0], fourth)]

    assert asyncio.run(main()) == [want(engine, "Hello", 4)] * 4


def test_a_cancelled_await_ends_the_request(engine):
    async def main():
        task = asyncio.create_task(engine.async_generate("Hello", {"max_new_tokens": 450}))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())
    assert engine.stats()["running"] == 0


def test_on_boughs_own_loop_only_the_async_form_waits(engine):
    async def sync():
        return engine.generate("Hello", FOUR)

    async def asynchronous():
        return await engine.async_generate("Hello", FOUR)

    with pytest.raises(RuntimeError, match="async form"):
        loop.run(sync())
    assert loop.run(asynchronous())["output_ids"] == want(engine, "Hello", 4)


def test_it_is_a_backend_by_its_endpoint(engine, folder):
    assert isinstance(engine.endpoint, Backend)
    assert engine.model_path == engine.get_server_info()["model_path"] == str(folder)
    scores = engine.score("Hello", [" a", " b c"], unconditional=True)
    assert len(scores.choices) == 2
    engine.flush_cache()
    assert engine.stats()["requests"] == 0


# ---- its life ----


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"model_path": "no-such-model"}, NotFound, "no-such-model"),
        ({"pagesize": 3}, InvalidRequest, "pagesize: unknown engine argument"),
        ({"page_size": "x"}, InvalidRequest, "page_size"),
        ({"page_size": 0}, InvalidRequest, "page_size must be at least 1"),
        ({"tp_size": 2}, Unsupported, "tp_size: a model runs on one device"),
        ({"tp_size": 0}, InvalidRequest, "tp_size must be at least 1"),
        ({"model_path": 5}, InvalidRequest, "model_path"),
    ],
)
def test_a_wrong_setting_is_named_and_starts_nothing(folder, monkeypatch, arguments, kind, message):
    monkeypatch.setattr(engines, "process_link", None)
    with pytest.raises(kind, match=message):
        Engine(**{"model_path": folder, **arguments})


def test_a_core_that_cannot_start_leaves_nothing(folder, monkeypatch):
    core = fake.FakeCore(fail=("Unservable", "kv_memory: no page fits", "kv_memory"))
    monkeypatch.setattr(engines, "process_link", lambda _: ThreadLink(core.run))
    before = set(threading.enumerate())
    with pytest.raises(BoughsError, match="no page fits"):
        Engine(folder)
    assert not [t for t in set(threading.enumerate()) - before if t.name == "boughs-core"]


def test_after_shutdown_nothing_runs(folder, monkeypatch):
    core = fake.FakeCore(pause=lambda: time.sleep(0.05))  # cannot end before the shutdown
    monkeypatch.setattr(engines, "process_link", lambda _: ThreadLink(core.run))
    engine = Engine(folder)
    stream = engine.generate("Hello", {"max_new_tokens": 450}, stream=True)
    next(stream)
    engine.shutdown()
    engine.shutdown()
    with pytest.raises(RequestAborted, match="shut down"):
        list(stream)
    with pytest.raises(EngineDied, match="shut down"):
        engine.generate("Hello")


SCRIPT = """
import asyncio, os, sys, threading
from boughs.runtime.engine import Engine

engine = Engine(sys.argv[1], kv_memory="16M", threads=1)
print(engine.endpoint._core._link.pid, flush=True)
a = engine.generate("Once upon a time", {"max_new_tokens": 8, "temperature": 0})
assert len(a["output_ids"]) == 8 and a["meta_info"]["cached_tokens"] == 0

async def main():
    b = await engine.async_generate("Once upon a time", {"max_new_tokens": 8, "temperature": 0})
    assert b["text"] == a["text"]
    assert b["meta_info"]["cached_tokens"] == b["meta_info"]["prompt_tokens"] - 1, b

asyncio.run(main())
if sys.argv[2] == "kill":
    os.kill(os.getpid(), 9)

params = {"max_new_tokens": 40, "n": 2, "seed": 3, "ignore_eos": True, "stop": "never said"}
want = [b["output_ids"] for b in engine.generate("Once upon a time", params)]
got = {}
for b in engine.generate("Once upon a time", params, stream=True):
    if not got:
        os.kill(engine.endpoint._core._link.pid, 9)
    got[b["index"]] = b["output_ids"]
assert [got[0], got[1]] == want
assert engine.stats()["restarts"] == 1
print(engine.endpoint._core._link.pid, flush=True)
raise SystemExit(7)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model's folder with weights."""
    return load("tiny_models").make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(("how", "code"), [("raise", 7), ("kill", -9)])
def test_a_plain_script_needs_no_guard_and_leaves_no_process(tmp_path, model, how, code):
    """No `if __name__ == "__main__"`, no `shutdown`; it is killed, or its core is and it ends."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    made = subprocess.run(
        [sys.executable, str(path), str(model), how],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert made.returncode == code, made.stderr
    pids = [int(word) for word in made.stdout.split()]
    assert len(pids) == (1 if how == "kill" else 2)
    _, alive = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], 20)
    assert not alive
