"""Prompts as vectors, through the front over a fake core, and `Engine.encode`'s forms of call."""

import asyncio
import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from boughs.lang.backend import Encoding
from boughs.lang.errors import InvalidRequest, RequestAborted, RequestTimeout, Unservable
from boughs.lang.requests import EncodeRequest
from boughs.lang.segments import Content, Ids, Text
from boughs.runtime import engine as engines
from boughs.runtime.engine import Engine
from boughs.runtime.front.embed import normalized
from boughs.runtime.front.link import ThreadLink
from boughs.runtime.messages import Abort, Submit


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")
shared, front, log = fronts.shared, fronts.front, fronts.log
run, running_front, of_kind, Gate = fronts.run, fronts.running_front, fronts.of_kind, fronts.Gate


def encoded(front, prompt="Hello", **fields):
    return run(front.encode(EncodeRequest(prompt=prompt, **fields)))


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_vector_is_what_the_core_pooled(front, log, pooling):
    ids = front.tokenizer.encode("Hello", "start")
    plain = encoded(front, pooling=pooling, normalize=False, rid="r", priority=2, cache_salt="s")
    assert plain.rid == "r"
    assert plain.vector == fake.vector(ids, pooling)
    assert plain.prompt_tokens == len(ids)
    (message,) = of_kind(log, Submit)
    assert (message.pooling, message.params.priority, message.namespace) == (pooling, 2, "s")
    assert message.params.max_new_tokens == 0
    unit = encoded(front, pooling=pooling).vector
    assert math.hypot(*unit) == pytest.approx(1)
    assert unit == pytest.approx(np.array(plain.vector) / math.hypot(*plain.vector))


def test_a_vector_of_zeros_stays_one():
    assert normalized(np.zeros(3, np.float32)).tolist() == [0, 0, 0]


def test_a_prompt_has_any_form(front, log):
    front_ids = front.tokenizer.encode
    encoded(front, [Text("a"), Content("<|im_end|>"), Ids([70])])
    encoded(front, [70, 71])
    assert [message.prompt_ids for message in of_kind(log, Submit)] == [
        [*front_ids("a", "start"), *front_ids("<|im_end|>", "ids"), 70],
        [70, 71],
    ]


def test_a_prompt_may_be_as_long_as_the_context(front):
    """Nothing is generated behind it."""
    longest = front.limits.context_length
    assert encoded(front, [70] * longest).prompt_tokens == longest
    with pytest.raises(Unservable, match=rf"prompt: {longest + 1} tokens do not fit the context"):
        encoded(front, [70] * (longest + 1))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": [384]}, "prompt[0]"),
        ({"pooling": "cls"}, "pooling"),
        ({"pooling": None}, "pooling"),
        ({"normalize": 1}, "normalize"),
        ({"priority": "high"}, "priority"),
        ({"priority": 2**40}, "priority"),
        ({"priority": None}, "priority"),  # it would kill the core, which sorts by it
        ({"cache_salt": 5}, "cache_salt"),
        ({"cache_salt": "\ud800"}, "cache_salt"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
    ],
)
def test_a_wrong_field_is_named(front, log, fields, param):
    with pytest.raises(InvalidRequest) as caught:
        encoded(front, **{"prompt": "Hello", **fields})
    assert caught.value.param == param
    assert not of_kind(log, Submit)


def test_a_request_that_is_aborted_or_late_or_left_is_ended_in_the_core():
    gate, log = Gate(), []
    core = fake.FakeCore(pause=gate, log=log)

    async def ends(front):
        gate.open.clear()
        task = asyncio.create_task(front.encode(EncodeRequest(prompt="Hello", rid="r")))
        await asyncio.sleep(0)
        assert front.abort("r")
        with pytest.raises(RequestAborted):
            await task
        with pytest.raises(RequestTimeout, match=r"timeout=0\.01"):
            await front.encode(EncodeRequest(prompt="Hello", timeout=0.01))
        task = asyncio.create_task(front.encode(EncodeRequest(prompt="Hello")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        gate.open.set()
        await front.check()
        ended = (await front.stats())["ended"]
        assert (ended["aborted"], ended["timed_out"], ended["disconnected"]) == (1, 1, 1)

    with running_front(lambda: core) as front:
        run(ends(front))
    keys = [message.key for message in of_kind(log, Submit)]
    assert [message.key for message in of_kind(log, Abort)] == keys
    assert len(keys) == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_request_outlives_its_core():
    """The next core begins it anew."""
    made = []

    def make_core():
        made.append(fake.FakeCore(die_on=None if made else 300))
        return made[-1]

    with running_front(make_core) as front:
        answer = encoded(front, [70, 300], normalize=False)
    assert answer.vector == fake.vector([70, 300], "last")
    assert len(made) == 2


# ---- the Python interface ----


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = load("tiny_models").make_tiny_tokenizer(tmp_path_factory.mktemp("model"))
    (folder / "config.json").write_text("{}")
    patch = pytest.MonkeyPatch()
    patch.setattr(engines, "process_link", lambda _: ThreadLink(fake.FakeCore().run))
    with Engine(model_path=folder) as made:
        yield made
        assert made.stats()["in_flight"] == 0
    patch.undo()


def want(engine, prompt, pooling="last"):
    ids = engine.endpoint.tokenizer.encode(prompt, "start") if isinstance(prompt, str) else prompt
    return fake.vector(ids, pooling)


def test_one_prompt_gives_one_vector(engine):
    answer = engine.encode("Hello", normalize=False, rid="r1")
    assert set(answer) == {"embedding", "meta_info"}
    assert answer["embedding"] == want(engine, "Hello")
    info = answer["meta_info"]
    assert set(info) == {"id", "prompt_tokens", "cached_tokens", "e2e_latency"}
    assert (info["id"], info["prompt_tokens"]) == ("r1", 4)
    assert info["e2e_latency"] >= 0
    assert engine.encode(input_ids=[70, 71], normalize=False)["embedding"] == want(engine, [70, 71])
    assert isinstance(engine.endpoint, Encoding)


def test_lists_give_lists_in_order(engine):
    prompts = ["Hello", "my world", "a"] * 50
    answers = engine.encode(prompts, pooling="mean", normalize=False, rid="r")
    assert [a["embedding"] for a in answers] == [want(engine, p, "mean") for p in prompts]
    assert [a["meta_info"]["id"] for a in answers] == [f"r-{at}" for at in range(150)]
    answers = engine.encode(input_ids=[[70], [71, 72]], rid=["x", "y"])
    assert [a["meta_info"]["id"] for a in answers] == ["x", "y"]
    assert len(engine.encode(["Hello"])) == 1
    assert engine.encode([]) == []


def test_it_can_be_awaited_on_any_loop(engine):
    async def both():
        return await asyncio.gather(
            engine.async_encode("Hello", normalize=False), engine.async_encode(["Hello"])
        )

    one, many = asyncio.run(both())
    assert one["embedding"] == want(engine, "Hello")
    assert len(many) == 1


@pytest.mark.parametrize(
    ("arguments", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "input_ids": [1]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt[1]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [1.5]}, "input_ids[0]"),
        ({"prompt": "a", "rid": 5}, "rid"),
        ({"prompt": ["a", "b"], "rid": ["x"]}, "rid"),
        ({"prompt": ["a", "b"], "rid": ["x", "x"]}, "rid"),
        ({"prompt": "a", "pooling": "max"}, "pooling"),
        ({"prompt": [], "pooling": "max"}, "pooling"),
        ({"prompt": "a", "normalize": "no"}, "normalize"),
        ({"prompt": "a", "timeout": -1}, "timeout"),
    ],
)
def test_a_wrong_argument_is_named(engine, arguments, param):
    with pytest.raises(InvalidRequest) as caught:
        engine.encode(**arguments)
    assert caught.value.param == param
    assert param in str(caught.value)
