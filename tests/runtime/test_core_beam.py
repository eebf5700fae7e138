"""Beam search in the core: the definition's answer, whatever shares pool and batch with it."""

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.lang.sampling import SamplingParams
from boughs.runtime.beams import beam_limit
from boughs.runtime.core.beam import BeamSearch
from boughs.runtime.messages import Abort, Submit

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
VOCAB, EOS, CONTEXT = pages.VOCAB, pages.EOS, pages.CONTEXT


def beams(key, prompt, width, max_new_tokens=8, *, n=None, logprobs=False, top=0, **params):
    """A submission of a beam search."""
    params = SamplingParams(
        max_new_tokens=max_new_tokens,
        beam_width=width,
        n=width if n is None else n,
        seed=0,
        **params,
    )
    return Submit(
        key=key, prompt_ids=list(prompt), params=params, logprobs=logprobs, top_logprobs=top
    )


def searched(request, most=None):
    """What a search gives by itself: the same steps on contexts that no cache has seen."""
    params, prompt = request.params, request.prompt_ids
    search = BeamSearch(
        params,
        prompt,
        frozenset({EOS, *params.stop_token_ids}),
        min(params.max_new_tokens if most is None else most, CONTEXT - len(prompt)),
        logprobs=request.logprobs,
        top=request.top_logprobs,
    )
    while not search.over:
        contexts = [tuple(prompt + beam.ids) for beam in search.beams]
        search.advance(torch.stack([context_logits(context) for context in contexts]))
    return search.best()


def room(driver, request):
    """Tokens that each beam may have in the pool of `driver`."""
    core = driver.core
    width, prompt = request.params.beam_width, len(request.prompt_ids)
    return beam_limit(width, prompt, core.limits, core._config) - prompt


def found(driver, key):
    (output,) = driver.outputs[key]
    assert output.error is None, output.error
    return output.hypotheses


def assert_found(driver, request):
    most = min(request.params.max_new_tokens, room(driver, request))
    got, expected = found(driver, request.key), searched(request, most)
    assert [h.ids for h in got] == [h.ids for h in expected]
    assert [h.score for h in got] == pytest.approx([h.score for h in expected], abs=1e-4)
    assert [(h.finish, h.matched) for h in got] == [(h.finish, h.matched) for h in expected]


@pytest.mark.parametrize("width", [2, 3, 8])
@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 23])
def test_it_finds_what_the_definition_does(width, prompt):
    request = beams(0, range(1, prompt + 1), width, 12)
    driver = Driver(num_pages=80, budget=8).run([[request]])
    assert_found(driver, request)
    assert driver.core.scheduler.is_empty


@st.composite
def loads(draw):
    """Searches and plain requests of like prompts, when each arrives, and who is aborted."""
    requests = []
    stem = draw(st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=24))
    for key in range(draw(st.integers(1, 6))):
        cut = draw(st.integers(0, len(stem)))
        tail = draw(st.lists(st.integers(1, VOCAB - 1), min_size=0 if cut else 1, max_size=6))
        prompt = stem[:cut] + tail
        most = draw(st.integers(1, 12))
        if draw(st.booleans()) or not key:
            width = draw(st.integers(1, 5))
            requests.append(beams(key, prompt, width, most, logprobs=draw(st.booleans())))
        else:
            requests.append(submit(key, prompt, most, logprobs=draw(st.booleans())))
    schedule = [[] for _ in range(16)]
    for request in requests:
        schedule[draw(st.integers(0, 15))].append(request)
    aborted = draw(st.sets(st.integers(0, len(requests) - 1), max_size=2))
    for key in aborted:
        schedule[draw(st.integers(0, 15))].append(Abort(key))
    return requests, schedule, aborted


def pages_at_least(request, page_size):
    """Pages without which a request is refused; a search's beams may end early in so few."""
    prompt, width = len(request.prompt_ids), request.params.beam_width
    if width is None:
        return -(-(prompt + request.params.max_new_tokens) // page_size)
    return prompt // page_size + 2 * width


@given(
    loads(),
    st.sampled_from([1, 3, 4, 16]),
    st.integers(0, 12),
    st.sampled_from([5, 7, 16, 64]),
    st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_random_loads_on_a_small_pool_finish_right(load, page_size, extra, budget, cold):
    """Every answer is the one alone; every page and queue is checked after each step."""
    requests, schedule, aborted = load
    driver = Driver(
        num_pages=1 + extra + max(pages_at_least(r, page_size) for r in requests),
        page_size=page_size,
        budget=budget,
        disable_radix_cache=cold,
    ).run(schedule)
    for request in requests:
        outputs = driver.outputs.get(request.key, [])
        if request.key in aborted and not (outputs and outputs[-1].finish):
            continue
        if request.params.beam_width is None:
            assert driver.ids(request.key) == alone(request)
        else:
            assert_found(driver, request)
    driver.core.check()
    assert driver.core.scheduler.is_empty
