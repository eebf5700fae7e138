"""Choices scored by the core, over a model that checks what it reads: how many steps and rows."""

import asyncio
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.requests import ScoreRequest
from boughs.runtime.front.score import WORTH_A_STEP, ScorePlan, score

_path = Path(__file__).parents[1] / "fixtures" / "page_model.py"
_spec = importlib.util.spec_from_file_location("page_model", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

Driver, alone, context_logits, submit = (
    pages.Driver,
    pages.alone,
    pages.context_logits,
    pages.submit,
)
VOCAB = pages.VOCAB

PROMPT = [*range(1, 31), *range(9, 20)]
CITIES = [[5, 6], [5, 7, 8], [5, 7, 9], [5, 13, 14], [3], [4], [5], [10, 11, 12], []]
"""As " New York", " New Jersey City" and so on: of one token, with common beginnings, and none."""

BRANCHES = 2 + 2 + 2
"""Their rows: 5 and 7, 5 and 13, 10 and 11."""


class Run:
    """Gives a driver what is submitted, all at once, and its outputs back."""

    def __init__(self, driver, before):
        self.driver, self.before, self.first = driver, before, len(driver.outputs) + 1000
        self.messages, self.events = [], None

    def submit(self, message):
        message.key = self.first + len(self.messages)
        if self.messages:
            message.family = self.first
        self.messages.append(message)

    async def next(self):
        if self.events is None:
            self.driver.model.steps.clear()
            self.driver.run([*self.before, self.messages])
            self.events = [
                (at, *self.driver.outputs[message.key]) for at, message in enumerate(self.messages)
            ]
        at, output = self.events.pop()
        return at, output, output.cached_tokens


def scored(driver, prompt, tails, before, **fields):
    """The scores of tails; the driver's model has only this call's steps."""
    request = ScoreRequest(prompt="", choices=[], **fields)
    plan = ScorePlan(prompt, tails, len(prompt), [])
    driver.model.steps.clear()
    return asyncio.run(score(Run(driver, before), plan, request))


def expected(head, tail):
    """The logprobs of a tail's tokens, from their definition."""
    return [
        float(context_logits((*head, *tail[:at])).log_softmax(-1)[token]) if head or at else 0.0
        for at, token in enumerate(tail)
    ]


def rows(driver):
    return sum(count for step in driver.model.steps for _, _, count in step)


def check(driver, prompt, tails, before=(), **fields):
    scores = scored(driver, prompt, tails, before, **fields)
    for tail, choice in zip(tails, scores.choices, strict=True):
        assert choice.token_ids == tail
        assert choice.logprobs == pytest.approx(expected(prompt, tail), abs=1e-5)
        if fields.get("unconditional"):
            assert choice.unconditional == pytest.approx(expected([], tail), abs=1e-5)
    assert driver.core.scheduler.is_empty
    return scores


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("unconditional", [False, True])
def test_choices_behind_a_cached_prompt_are_one_step(page_size, unconditional):
    driver = Driver(num_pages=400, page_size=page_size, budget=64)
    driver.run([[submit(0, PROMPT, 2)]])
    scores = check(driver, PROMPT, CITIES, unconditional=unconditional)
    assert scores.cached_tokens == len(PROMPT) - 1
    assert len(driver.model.steps) == 1
    # The prompt's last token; 5 and 7; 5 again and 13; 10 and 11.
    assert rows(driver) == 1 + BRANCHES + (BRANCHES if unconditional else 0)


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("unconditional", [False, True])
@pytest.mark.parametrize("cold", [False, True])
def test_choices_behind_a_new_prompt_are_two_steps(page_size, unconditional, cold):
    """The first branch has the prompt computed, with what stands alone beside it; then the rest.

    Also where the tree keeps no prefix of what has ended: as long as branches wait, it does.
    """
    driver = Driver(num_pages=400, page_size=page_size, budget=64, disable_radix_cache=cold)
    scores = check(driver, PROMPT, CITIES, unconditional=unconditional)
    assert scores.cached_tokens == 0
    assert len(driver.model.steps) == 2
    in_prompt = [
        position
        for step in driver.model.steps
        for key, start, count in step
        for position in range(start, start + count)
        if position < len(PROMPT) and (not unconditional or key < 1000 + 3)
    ]
    assert sorted(in_prompt) == list(range(len(PROMPT)))
    assert not cold or driver.core.cache.stats().cached == 0


@pytest.mark.parametrize("cached", [len(PROMPT) - 1, len(PROMPT) - 5, 7])
@pytest.mark.parametrize("page_size", [1, 16])
def test_what_is_new_of_a_prompt_is_computed_once(page_size, cached):
    driver = Driver(num_pages=400, page_size=page_size, budget=64)
    driver.run([[submit(0, PROMPT[:cached], 0)]])
    scores = check(driver, PROMPT, CITIES)
    assert scores.cached_tokens == cached
    assert len(driver.model.steps) == 2
    assert rows(driver) <= len(PROMPT) - cached + BRANCHES


def test_three_hundred_choices_of_one_token_are_one_row():
    driver = Driver(num_pages=400, budget=64)
    driver.run([[submit(0, PROMPT, 1)]])
    check(driver, PROMPT, [[at % (VOCAB - 1) + 1] for at in range(300)])
    assert driver.model.steps == [[(1001, len(PROMPT) - 1, 1)]]


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_long_beginning_of_choices_is_not_computed_by_each(page_size):
    """It is worth a step of its own, where a short one is not."""
    common = [*range(1, 9), *range(20, 20 + WORTH_A_STEP - 8)]
    assert len(common) == WORTH_A_STEP
    driver = Driver(num_pages=400, page_size=page_size, budget=128)
    driver.run([[submit(0, PROMPT, 1)]])
    check(driver, PROMPT, [[*common, at, at] for at in range(1, 21)])
    assert len(driver.model.steps) == 2
    # Twice, as the branch that reads the prompt's last row has the shorter match and comes last.
    assert rows(driver) <= 1 + 2 * len(common) + 20


def test_a_retraction_amid_the_chunks_scores_nothing_twice():
    """A decode that needs pages takes those of the branch, which then computes rows again."""
    decodes = (submit(0, range(first, first + 8), 40) for first in range(1, 20))
    decode = next(one for one in decodes if len(alone(one)) == 40)
    driver = Driver(num_pages=16, page_size=4, budget=4)
    tail = PROMPT[:2:-1]
    check(driver, [21, 22, 23, 24, 25, 26], [tail], before=[[decode], []])
    assert driver.core.scheduler.counters.retractions > 0
    (key,) = set(driver.outputs) - {0}
    ran = [at for at, step in enumerate(driver.model.steps) for k, *_ in step if k == key]
    assert ran != [*range(ran[0], ran[-1] + 1)], "it was not running when it was retracted"
    assert rows(driver) > 8 + 39 + 6 + len(tail) - 1, "nothing was computed again"
    assert driver.ids(0) == alone(decode)


@given(
    st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=40),
    st.lists(st.lists(st.integers(1, 4), max_size=7), min_size=1, max_size=12),
    st.integers(0, 40),
    st.sampled_from([1, 3, 16]),
    st.sampled_from([1, 2, 7, 64]),
    st.integers(0, 12),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_scores_are_right_however_they_are_cut_and_cached(
    prompt, tails, cached, page_size, budget, extra, unconditional, cold
):
    """On small pools, where branches are retracted, and beside requests that generate."""
    longest = len(prompt) + 7
    driver = Driver(
        num_pages=1 + extra + -(-longest // page_size),
        page_size=page_size,
        budget=budget,
        disable_radix_cache=cold,
    )
    if prompt[:cached]:
        driver.run([[submit(0, prompt[:cached], 1)]])
    decode = submit(1, tails[0] or [3], longest - 7)
    check(driver, prompt, tails, before=[[decode], []], unconditional=unconditional)
    assert not any(tails) or driver.ids(1) == alone(decode)
    driver.core.check()
