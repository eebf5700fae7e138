"""What the front refuses, over a fake core: by field, and before anything runs."""

import asyncio
import importlib.util
from pathlib import Path

import pytest

from boughs.lang.errors import (
    InvalidRequest,
    Overloaded,
    Unservable,
)
from boughs.lang.requests import GenerateRequest, ScoreRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Content, Ids, Role, Text
from boughs.runtime.messages import Submit, encode


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")
shared, front, log = fronts.shared, fronts.front, fronts.log
running_front = fronts.running_front
run = fronts.run
chunks_of = fronts.chunks_of
answers_of = fronts.answers_of
Gate = fronts.Gate
greedy = fronts.greedy
of_kind = fronts.of_kind


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [Text(""), Content(""), Ids([])]}, "prompt", "empty"),
        ({"prompt": None}, "prompt", "expected a string"),
        ({"prompt": [5, "x"]}, "prompt[1]", r"prompt\[1\]"),
        ({"prompt": [True]}, "prompt[0]", r"prompt\[0\]"),
        ({"prompt": [5, 384]}, "prompt[1]", "384 is not in the vocabulary of 384"),
        ({"prompt": [-1]}, "prompt[0]", "-1 is not in the vocabulary"),
        ({"prompt": "a\ud800"}, "prompt", "surrogate"),
        ({"prompt": [Text("a"), Ids([5, 384])]}, "segments[1].ids[1]", "384"),
        ({"prompt": [Role("user", "end")]}, "segments[0]", "no message is open"),
        ({"params": greedy(stop=("a", "\ud800"))}, "stop[1]", "surrogate"),
        ({"params": greedy(stop_regex=("\udc00",))}, "stop_regex[0]", "surrogate"),
        ({"params": greedy(regex="\ud800")}, "regex", "surrogate"),
        ({"params": greedy(cache_salt="\ud800")}, "cache_salt", "surrogate"),
        ({"params": SamplingParams(temperature=-1)}, "temperature", "temperature"),
        ({"params": greedy(stop_regex=("a", "("))}, "stop_regex[1]", r"\("),
        ({"params": greedy(stop_token_ids=(1, 999))}, "stop_token_ids[1]", "999"),
        ({"params": greedy(logit_bias={-3: 1.0})}, "logit_bias.-3", "-3"),
        ({"params": greedy(allowed_token_ids=())}, "allowed_token_ids", "at least one"),
        ({"params": greedy(allowed_token_ids=(5, 384))}, "allowed_token_ids[1]", "384"),
        ({"params": greedy(allowed_token_ids=(-1,))}, "allowed_token_ids[0]", "-1"),
        ({"params": greedy(allowed_token_ids=(5,) * 385)}, "allowed_token_ids", "at most 384"),
        ({"params": greedy(stop_token_ids=(5,) * 385)}, "stop_token_ids", "at most 384"),
        ({"params": greedy(bad_words=("a", "\ud800"))}, "bad_words[1]", "surrogate"),
        ({"return_logprob": True, "token_ids_logprob": (1, 384)}, "token_ids_logprob[1]", "384"),
        ({"return_logprob": True, "token_ids_logprob": (-1,)}, "token_ids_logprob[0]", "-1"),
        (
            {"return_logprob": True, "token_ids_logprob": (5,) * 385},
            "token_ids_logprob",
            "at most 384",
        ),
        ({"token_ids_logprob": (5,)}, "token_ids_logprob", "needs return_logprob"),
        ({"params": greedy(beam_width=2, top_k=3)}, "top_k", "beam search"),
        ({"return_logprob": True, "logprob_start_len": 4}, "logprob_start_len", "past the prompt"),
        ({"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len", "at least -1"),
        ({"logprob_start_len": 0}, "logprob_start_len", "needs return_logprob"),
        ({"top_logprobs_num": 1}, "top_logprobs_num", "needs return_logprob"),
        ({"return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num", "from 0 to"),
        ({"return_logprob": True, "top_logprobs_num": 385}, "top_logprobs_num", "from 0 to 384"),
    ],
)
def test_a_wrong_request_is_refused_by_field_and_sends_nothing(front, log, fields, param, message):
    request = GenerateRequest(**{"prompt": "Hello", "params": greedy(), **fields})
    with pytest.raises(InvalidRequest, match=message) as caught:
        chunks_of(front, request)
    assert caught.value.param == param
    run(front.stats())
    assert not of_kind(log, Submit)


@pytest.mark.parametrize("name", SamplingParams.__struct_fields__)
@pytest.mark.parametrize("value", [2**31, 2**63, 2**64, 10**30, 10**400])
def test_no_number_is_too_large_to_be_sent(front, log, name, value):
    """It is refused, or what becomes of it reaches a core: else its request waits for ever."""
    # The fake makes one token after the other, so that one is its last.
    given = {"max_new_tokens": None, "stop_token_ids": [3], name: value}
    try:
        params = SamplingParams.from_mapping(given)
        answers_of(front, GenerateRequest(prompt="Hello", params=params))
    except InvalidRequest as error:
        assert name in str(error)  # noqa: PT017 -- or it runs
    for message in log:
        encode(message)


@pytest.mark.parametrize(
    ("limits", "length", "fits"),
    [
        ({"context": 64}, 63, True),
        ({"context": 64}, 64, False),
        ({"context": 512, "pool": 96}, 95, True),
        ({"context": 512, "pool": 96}, 96, False),
        ({"context": 512, "pool": 96}, 5000, False),
    ],
)
def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers(limits, length, fits):
    with running_front(lambda: fake.FakeCore(**limits)) as front:
        request = GenerateRequest(prompt=[5] * length, params=greedy())
        score = ScoreRequest(prompt=[5] * length, choices=["a"])  # nothing comes behind it
        if fits:
            answers_of(front, request)
            run(front.score(score))
            return
        with pytest.raises(Unservable, match=rf"{length}.*{min(limits.values())}"):
            answers_of(front, request)
        with pytest.raises(Unservable, match=rf"choices\[0\].*{length + 1}|prompt.*{length}"):
            run(front.score(score))


def test_two_running_requests_cannot_share_an_id():
    gate = Gate()
    with running_front(lambda: fake.FakeCore(pause=gate)) as front:
        request = GenerateRequest(prompt="Hello", params=greedy(max_new_tokens=50), rid="a")

        async def both():
            gate.open.clear()
            first = asyncio.create_task(collect(front.generate(request)))
            await asyncio.sleep(0)
            with pytest.raises(InvalidRequest, match="'a' runs already") as caught:
                await collect(front.generate(request))
            assert caught.value.param == "rid"
            with pytest.raises(InvalidRequest, match="runs already"):
                await front.score(ScoreRequest(prompt="Hello", choices=["x"], rid="a"))
            gate.open.set()
            return await first

        assert run(both())[0].completion_tokens == 50
        assert answers_of(front, request)[0].completion_tokens == 50


def test_more_than_may_wait_are_told_to_try_again():
    gate = Gate()
    limits = {"max_running_requests": 2, "max_queued_requests": 3}
    with running_front(lambda: fake.FakeCore(pause=gate), **limits) as front:

        async def crowd():
            gate.open.clear()
            tasks = [
                asyncio.create_task(
                    collect(front.generate(GenerateRequest(prompt="Hello", params=greedy())))
                )
                for _ in range(8)
            ]
            await asyncio.sleep(0.05)
            gate.open.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

        results = run(crowd())
        assert sum(isinstance(result, Overloaded) for result in results) == 3
        assert sum(isinstance(result, list) for result in results) == 5
        with pytest.raises(Overloaded):
            chunks_of(front, GenerateRequest(prompt="Hello", params=greedy(n=6)))
        chunks_of(front, GenerateRequest(prompt="Hello", params=greedy(n=5)))
