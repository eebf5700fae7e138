"""Logprobs on their way through the front, over a fake core."""

import asyncio
import importlib.util
import json
import math
import threading
from pathlib import Path

import msgspec
import pytest

from boughs.lang.meta import meta_info
from boughs.lang.requests import GenerateRequest, ScoreRequest
from boughs.lang.results import LOWEST, finite
from boughs.runtime.messages import Submit


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")
shared, front, log = fronts.shared, fronts.front, fronts.log
running_front, run, greedy, of_kind = (
    fronts.running_front,
    fronts.run,
    fronts.greedy,
    fronts.of_kind,
)
answers_of, chunks_of = fronts.answers_of, fronts.chunks_of

PROMPT = [70, 71, 72, 73]


def ask(**fields):
    fields = {"prompt": PROMPT, "params": greedy(), "return_logprob": True, **fields}
    return GenerateRequest(**fields)


def test_the_logprobs_of_given_tokens_stand_in_the_order_asked(front):
    request = ask(token_ids_logprob=(9, 5, 9), logprob_start_len=0, top_logprobs_num=1)
    (answer,) = answers_of(front, request)
    text_of = front.tokenizer.text_of

    def expected(at):
        return [(fake.logprob(at, id_), id_, text_of(id_)) for id_ in (9, 5, 9)]

    assert [e.given for e in answer.prompt_logprobs] == [None, *map(expected, (1, 2, 3))]
    assert [e.given for e in answer.logprobs] == [expected(4 + at) for at in range(4)]
    assert all(len(e.top) == 1 for e in answer.logprobs)


def test_without_given_tokens_there_are_none(front):
    (answer,) = answers_of(front, ask(logprob_start_len=0))
    assert {e.given for e in (*answer.logprobs, *answer.prompt_logprobs)} == {None}


@pytest.mark.parametrize("broken", [-math.inf, math.nan])
def test_what_is_no_number_of_json_is_the_lowest_logprob(monkeypatch, broken):
    monkeypatch.setattr(fake, "logprob", lambda *_: broken)
    with running_front(fake.FakeCore) as front:
        request = ask(token_ids_logprob=(5,), logprob_start_len=0, top_logprobs_num=1)
        (answer,) = answers_of(front, request)
        entries = (*answer.logprobs, *answer.prompt_logprobs[1:])
        assert {e.logprob for e in entries} == {LOWEST}
        assert {e.top[0][0] for e in entries} == {LOWEST}
        assert {e.given[0][0] for e in entries} == {LOWEST}
        info = meta_info(answer)
        assert json.loads(json.dumps(info, allow_nan=False)) == json.loads(
            msgspec.json.encode(info)
        )
        scores = run(front.score(ScoreRequest(prompt="a", choices=["b", "c"], unconditional=True)))
        assert {lp for choice in scores.choices for lp in choice.logprobs} == {LOWEST}


def test_finite():
    assert finite(-1.5) == -1.5
    assert finite(-math.inf) == finite(math.nan) == finite(-1e30) == LOWEST


# ---- of several choices ----


def test_one_choice_has_the_prompts_logprobs_computed_and_all_give_them(front, log):
    request = ask(params=greedy(n=3), logprob_start_len=1, token_ids_logprob=(5,))
    alone = answers_of(front, ask(logprob_start_len=1, token_ids_logprob=(5,)))[0]
    log.clear()
    answers = answers_of(front, request)
    assert [m.prompt_logprobs_from for m in of_kind(log, Submit)] == [1, None, None]
    assert [a.index for a in answers] == [0, 1, 2]
    for answer in answers:
        assert answer.prompt_logprobs == alone.prompt_logprobs
    assert len({tuple(a.output_ids) for a in answers}) == 3
    chunks = chunks_of(front, request)
    for index in range(3):
        own = [c for c in chunks if c.index == index]
        assert [c.prompt_logprobs is not None for c in own] == [True] + [False] * (len(own) - 1)


class Late(fake.FakeCore):
    """A core whose first choice takes its time, as one that computes what others find cached."""

    def step(self, run):
        if run.submit.prompt_logprobs_from is not None and self.made < 8:
            return fake.Output(key=run.submit.key, cached_tokens=run.cached)
        return super().step(run)


def test_choices_that_are_ahead_wait_for_the_prompts_logprobs():
    with running_front(Late) as front:
        chunks = chunks_of(front, ask(params=greedy(n=3), logprob_start_len=0))
    first = {index: next(c for c in chunks if c.index == index) for index in range(3)}
    for chunk in first.values():
        assert [e.token_id for e in chunk.prompt_logprobs] == PROMPT
    for index in range(3):
        assert sum(len(c.output_ids) for c in chunks if c.index == index) == 4
        assert [c.finish is not None for c in chunks if c.index == index][-1]


def test_an_abort_lets_waiting_choices_end():
    stuck = threading.Event()

    class Stuck(Late):
        def step(self, run):
            stuck.set()
            self.made = 0
            return super().step(run)

    with running_front(Stuck) as front:

        async def read():
            params = greedy(n=2, max_new_tokens=400)
            request = ask(params=params, logprob_start_len=0, rid="x")
            return [chunk async for chunk in front.generate(request)]

        async def both():
            reading = asyncio.create_task(read())
            await asyncio.to_thread(stuck.wait, 20)
            assert front.abort("x")
            return await reading

        chunks = run(both())
    assert {c.index for c in chunks if c.finish is not None} == {0, 1}
    for index in (0, 1):
        assert [c.finish.type for c in chunks if c.index == index and c.finish] == ["abort"]


def test_later_submissions_of_a_request_name_the_first(front, log):
    answers_of(front, ask(params=greedy(n=3)))
    first, *later = of_kind(log, Submit)
    assert first.family == 0
    assert {m.family for m in later} == {first.key}
    log.clear()
    run(front.score(ScoreRequest(prompt="a", choices=["b!x", "c!x", "d!x"])))  # a branch each
    first, *later = of_kind(log, Submit)
    assert (first.family, {m.family for m in later}) == (0, {first.key})
