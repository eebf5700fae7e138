"""Random requests together on an engine: each gets the answer that it gets alone.

All that a request can say is drawn, and when it arrives and is aborted; so are the pool, the pages,
the chunks and whether prefixes are kept. Logits are scaled up, so that tokens are equal; logprobs
are compared within float32's rounding.
"""

import asyncio
import importlib.util
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import boughs
from boughs.lang import loop
from boughs.lang.errors import BoughsError
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import Answer
from boughs.lang.sampling import SamplingParams

_path = Path(__file__).parents[1] / "fixtures" / "tiny_models.py"
_spec = importlib.util.spec_from_file_location("tiny_models", _path)
tiny_models = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_models)

VOCAB, EOS = 384, 2
PAGE_BYTES = 2 * 2 * 2 * 16 * 4
"""Of one token: keys and values of two layers, two heads of 16 float32 numbers."""

token = st.integers(3, VOCAB - 1)
tokens = st.lists(token, min_size=1, max_size=4)
words = st.sampled_from(["a", "the", " in", "\n", "x y", "e", "quick", "ä"])


def sometimes(strategy, default):
    return st.one_of(st.just(default), st.just(default), strategy)


@st.composite
def sampling(draw):
    most = draw(st.integers(0, 16))
    grammar = draw(sometimes(st.sampled_from(["regex", "json_schema", "ebnf"]), None))
    source = {
        "regex": "[ab]{2,5}c",
        "json_schema": '{"enum": ["x", 3, true]}',
        "ebnf": 'start: ("u" | "vw")+',
    }
    return SamplingParams(
        max_new_tokens=most,
        min_new_tokens=draw(sometimes(st.integers(0, most), 0)),
        temperature=draw(st.sampled_from([0.0, 1.0, 4.0])),
        top_p=draw(sometimes(st.floats(0.1, 1), 1.0)),
        top_k=draw(sometimes(st.integers(1, VOCAB), -1)),
        min_p=draw(sometimes(st.floats(0, 0.5), 0.0)),
        frequency_penalty=draw(sometimes(st.floats(-2, 2), 0.0)),
        presence_penalty=draw(sometimes(st.floats(-2, 2), 0.0)),
        repetition_penalty=draw(sometimes(st.floats(0.5, 2), 1.0)),
        logit_bias=draw(sometimes(st.dictionaries(token, st.floats(-90, 90), max_size=3), None)),
        allowed_token_ids=draw(
            sometimes(st.lists(st.integers(0, VOCAB - 1), min_size=90).map(tuple), None)
        ),
        bad_words=tuple(draw(sometimes(st.lists(words, max_size=3), []))),
        stop=tuple(draw(sometimes(st.lists(words, max_size=2), []))),
        stop_regex=tuple(draw(sometimes(st.just(["[aeiou]{2}"]), []))),
        stop_token_ids=tuple(draw(sometimes(tokens, []))),
        ignore_eos=draw(st.booleans()),
        no_stop_trim=draw(st.booleans()),
        skip_special_tokens=draw(st.booleans()),
        n=draw(sometimes(st.integers(2, 3), 1)),
        seed=draw(st.integers(0, 2**63 - 1)),
        priority=draw(sometimes(st.integers(-2, 2), 0)),
        cache_salt=draw(sometimes(st.just("salt"), None)),
        timeout=draw(sometimes(st.just(60.0), None)),
        **({grammar: source[grammar]} if grammar else {}),
    )


@st.composite
def requests(draw):
    prompts = [draw(st.lists(token, min_size=1, max_size=24))]
    made = []
    for at in range(draw(st.integers(2, 6))):
        base = draw(st.sampled_from(prompts))
        cut = draw(st.integers(0, len(base)))
        tail = draw(st.lists(token, min_size=0 if cut else 1, max_size=8))
        prompts.append((base[:cut] + tail)[:30])
        logprobs = draw(st.booleans())
        start = st.integers(-1, len(prompts[-1]) - 1) if logprobs else st.just(-1)
        made.append(
            GenerateRequest(
                prompt=prompts[-1],
                params=draw(sampling()),
                rid=f"r{at}",
                return_logprob=logprobs,
                logprob_start_len=draw(start),
                top_logprobs_num=draw(st.integers(0, 3)) if logprobs else 0,
                token_ids_logprob=tuple(draw(sometimes(tokens, []))) if logprobs else (),
            )
        )
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_models.make_tiny_model(tmp_path_factory.mktemp("mixed") / "tiny", logit_std=12.0)


@pytest.fixture(scope="module")
def roomy(folder):
    with boughs.Engine(
        model_path=folder, in_process=True, kv_memory="16M", max_batched_tokens=4096
    ) as engine:
        yield engine


async def answered(front, request, delay=0.0, chunks_before_abort=None):
    """The answers as plain data, or the error as its class and message."""
    await asyncio.sleep(delay)
    answers, count = {}, 0
    try:
        async for chunk in front.generate(request):
            answer = answers.setdefault(chunk.index, Answer.empty(chunk.rid, chunk.index))
            answer.add(chunk)
            count += 1
            if count == chunks_before_abort:
                front.abort(request.rid)
    except BoughsError as error:
        return type(error).__name__, str(error)
    return [answers[index] for index in sorted(answers)]


def near(got, expected):
    if expected is None or got is None:
        return got is expected
    return got == pytest.approx(expected, abs=2e-3, rel=1e-4)


def same_entries(got, expected):
    if expected is None:
        return got is None
    assert [e.token_id for e in got] == [e.token_id for e in expected]
    assert [e.text for e in got] == [e.text for e in expected]
    for mine, theirs in zip(got, expected, strict=True):
        assert near(mine.logprob, theirs.logprob)
        for a, b in ((mine.top, theirs.top), (mine.given, theirs.given)):
            assert [t for _, t, _ in a or ()] == [t for _, t, _ in b or ()]
            assert near([lp for lp, _, _ in a or ()], [lp for lp, _, _ in b or ()])
    return True


def check(got, expected, *, aborted):
    if isinstance(expected, tuple):  # an error comes alike, unless the abort came first
        assert got == expected or aborted
        return
    assert not isinstance(got, tuple), got
    assert len(got) == len(expected) or aborted
    for mine in got:
        full = expected[mine.index]
        if mine.finish.type == "abort":
            assert aborted
            assert full.output_ids[: len(mine.output_ids)] == mine.output_ids
            cut = mine.text.rstrip("\ufffd")  # with it comes what a stop might have taken
            assert full.text.startswith(cut) or cut.startswith(full.text)
            continue
        assert mine.output_ids == full.output_ids
        assert (mine.text, mine.finish, mine.segments) == (full.text, full.finish, full.segments)
        assert mine.prompt_tokens == full.prompt_tokens
        assert mine.completion_tokens == full.completion_tokens
        assert same_entries(mine.logprobs, full.logprobs)
        assert same_entries(mine.prompt_logprobs, full.prompt_logprobs)


@given(
    requests(),
    st.data(),
    st.sampled_from([1, 4, 16]),
    st.integers(0, 20),
    st.sampled_from([1, 5, 16, 256]),
    st.booleans(),
)
@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_together_is_as_alone(folder, roomy, made, data, page_size, extra, budget, cold):
    longest = max(len(r.prompt) + r.params.max_new_tokens for r in made)
    pages = 2 + extra + -(-longest // page_size)
    delays = [data.draw(st.sampled_from([0.0, 0.0, 0.003, 0.01])) for _ in made]
    aborts = [data.draw(sometimes(st.integers(1, 6), None)) for _ in made]
    with boughs.Engine(
        model_path=folder,
        in_process=True,
        page_size=page_size,
        kv_memory=str(pages * page_size * PAGE_BYTES),
        max_batched_tokens=budget,
        disable_radix_cache=cold,
        check_invariants=True,
    ) as engine:

        async def together():
            calls = zip(made, delays, aborts, strict=True)
            return await asyncio.gather(*(answered(engine.endpoint, *call) for call in calls))

        answers = loop.run(together(), 60)
        assert engine.stats()["running"] == 0
    for request, got, abort in zip(made, answers, aborts, strict=True):
        roomy.flush_cache()
        expected = loop.run(answered(roomy.endpoint, request), 60)
        check(got, expected, aborted=abort is not None)
