"""Beam search in the core: the definition's answer, whatever shares pool and batch with it."""

import importlib.util
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.lang.sampling import SamplingParams
from boughs.runtime.beams import beam_limit
from boughs.runtime.core.beam import BeamSearch
from boughs.runtime.core.sampler import RowState
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
    row = RowState(params, 0, frozenset({EOS, *params.stop_token_ids}))
    row.note_prompt(prompt)
    search = BeamSearch(
        row,
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


def widths_retracted(driver):
    """A list that will hold how many beams each retracted request had; 1 for a plain one."""
    widths, retract = [], driver.core.scheduler._retract

    def noted(request):
        widths.append(len(request.parts))
        retract(request)

    driver.core.scheduler._retract = noted
    return widths


def test_a_small_pool_retracts_the_group_and_it_finds_the_same():
    prompts = [[k, 5, 9] for k in range(1, 32)]
    prompts = [prompt for prompt in prompts if len(alone(submit(0, prompt, 40))) == 40]
    requests = [submit(k, prompt, 40) for k, prompt in enumerate(prompts[:6])]
    requests.append(beams(6, range(9, 20), 4, 24, logit_bias={EOS: -100.0}))
    driver = Driver(num_pages=45, page_size=4)
    retracted = widths_retracted(driver)
    driver.run([requests])
    assert 4 in retracted
    assert_found(driver, requests[6])
    for request in requests[:6]:
        assert driver.ids(request.key) == alone(request)


def test_a_group_that_was_retracted_finds_all_its_rows_again():
    """Every beam comes back from the tree: nothing is computed twice."""
    request = beams(0, range(1, 12), 4, 12)
    calm = Driver(num_pages=80).run([[request]])
    driver = Driver(num_pages=80)
    scheduler = driver.core.scheduler
    schedule = scheduler.schedule

    def disturbed():
        if scheduler.counters.steps in {4, 5, 8}:
            scheduler._retract(scheduler._running[0])
        return schedule()

    scheduler.schedule = disturbed
    driver.run([[request]])
    assert scheduler.counters.retractions == 3
    assert_found(driver, request)
    for name in ("prefill_tokens", "decode_tokens"):
        assert getattr(scheduler.counters, name) == getattr(calm.core.scheduler.counters, name)


def test_without_a_cache_a_group_comes_back_by_forks():
    """What its beams share is computed once, even where the tree keeps nothing."""
    request = beams(0, range(1, 22), 3, 9)
    driver = Driver(num_pages=40, budget=64, disable_radix_cache=True)
    scheduler = driver.core.scheduler
    schedule = scheduler.schedule

    def disturbed():
        if scheduler.counters.steps == 4:
            scheduler._retract(scheduler._running[0])
        return schedule()

    scheduler.schedule = disturbed
    driver.run([[request]])
    assert_found(driver, request)
    # The prompt twice, and each beam's few tokens of its own.
    assert scheduler.counters.prefill_tokens <= 2 * 21 + 3 * 3
    assert driver.core.cache.stats().cached == 0


def test_beams_share_the_prompt_and_decode_in_one_step():
    request = beams(0, range(1, 31), 4, 8)
    driver = Driver(num_pages=80, budget=64).run([[request]])
    steps = [[(start, count) for _, start, count in step] for step in driver.model.steps]
    assert steps[0] == [(0, 30)]
    assert steps[1:] == [[(at, 1)] * 4 for at in range(30, 30 + len(steps) - 1)]


def test_a_prompt_that_is_cached_is_not_computed_again():
    request, again = beams(0, range(1, 31), 4, 6), beams(1, range(1, 31), 4, 6)
    driver = Driver(num_pages=80, budget=64)
    driver.run([[request], *[[] for _ in range(12)], [again]])
    assert driver.outputs[1][0].cached_tokens == 29
    assert [h.ids for h in found(driver, 1)] == [h.ids for h in found(driver, 0)]
    assert_found(driver, again)


def test_the_next_turn_finds_the_best_output_in_the_tree():
    request = beams(0, range(1, 12), 3, 9)
    best = searched(request)[0].ids
    follow = submit(1, [*request.prompt_ids, *best, 5, 6], 1)
    driver = Driver(num_pages=80)
    driver.run([[request], *[[] for _ in range(16)], [follow]])
    assert driver.outputs[1][0].cached_tokens >= 11 + len(best) - 1


def test_logprobs_are_the_models_own():
    request = beams(0, range(1, 8), 3, 6, logprobs=True, top=4, logit_bias={3: 2.0})
    driver = Driver(num_pages=80).run([[request]])
    for hypothesis in found(driver, 0):
        context, ids = list(request.prompt_ids), hypothesis.ids
        for token, logprob, top in zip(ids, hypothesis.logprobs, hypothesis.top, strict=True):
            expected = context_logits(tuple(context)).log_softmax(-1)
            assert logprob == pytest.approx(float(expected[token]))
            assert [token_id for token_id, _ in top] == expected.topk(4).indices.tolist()
            context.append(token)


def test_prompt_logprobs_come_with_the_answer():
    plain = msgspec.structs.replace(submit(0, range(1, 20), 1), prompt_logprobs_from=0)
    request = msgspec.structs.replace(beams(1, range(1, 20), 3, 5), prompt_logprobs_from=0)
    driver = Driver(num_pages=80, budget=7).run([[plain], *[[] for _ in range(9)], [request]])
    (output,) = driver.outputs[1]
    assert output.prompt_logprobs == driver.outputs[0][0].prompt_logprobs


def test_a_pool_that_cannot_hold_prompt_and_beams_is_said():
    driver = Driver(num_pages=8, page_size=4).run([[beams(0, range(1, 18), 4)]])
    (output,) = driver.outputs[0]
    assert output.error[0] == "Unservable"
    assert "beam_width" in output.error[1]
    assert driver.core.scheduler.is_empty


def test_beams_that_fill_the_pool_end_with_length():
    request = beams(0, [1, 2, 3], 3, 100, logit_bias={EOS: -100.0})
    driver = Driver(num_pages=16, page_size=4).run([[request]])
    most = room(driver, request)
    assert 0 < most < 100
    assert_found(driver, request)
    assert [(h.finish, len(h.ids)) for h in found(driver, 0)] == [("length", most)] * 3


@pytest.mark.parametrize(
    ("config", "named"),
    [({"budget": 3}, "max_batched_tokens"), ({"max_running_requests": 3}, "max_running_requests")],
)
def test_more_beams_than_a_step_holds_are_refused(config, named):
    driver = Driver(num_pages=80, **config).run([[beams(0, [1, 2], 4)]])
    kind, message, param = driver.outputs[0][0].error
    assert (kind, param) == ("InvalidRequest", "beam_width")
    assert named in message


@pytest.mark.parametrize("left", [0, 1, 2])
@pytest.mark.parametrize("least", [1, 3])
def test_a_search_that_may_take_no_token_fails_alone(left, least):
    """Else one request kills the core; where it may take a few tokens, its beams are as many."""
    ends = tuple([token for token in range(VOCAB) if token != EOS][left:])
    request = beams(0, range(1, 10), 3, 4, min_new_tokens=least, stop_token_ids=ends)
    other = submit(1, range(20, 30), 5)
    driver = Driver(num_pages=80).run([[request, other]])
    assert driver.ids(1) == alone(other)
    assert driver.core.scheduler.is_empty
    if left:
        assert_found(driver, request)
    else:
        (output,) = driver.outputs[0]
        assert output.error[0] == "InvalidRequest"
        assert f"min_new_tokens={least} forbid all" in output.error[1]


def test_two_groups_that_want_the_pool_end_one_after_the_other():
    requests = [beams(k, range(1 + k, 9 + k), 4, 24) for k in range(2)]
    driver = Driver(num_pages=1 + 2 + 4 * 7, page_size=4).run([requests])
    for request in requests:
        assert_found(driver, request)


KINDS = {
    "beam": lambda: beams(0, range(1, 20), 4, 10),
    "beam, logprobs": lambda: msgspec.structs.replace(
        beams(0, range(1, 20), 3, 10, logprobs=True, top=2), prompt_logprobs_from=0
    ),
    "logprobs": lambda: submit(0, range(1, 20), 6, logprobs=True, prompt_logprobs_from=3),
    "plain": lambda: submit(0, range(1, 20), 6),
}


def outputs_before_abort(driver):
    """A list that will hold how many outputs request 0 had when it was aborted."""
    counts, take = [], driver.core._take

    def noted(message, outputs):
        if isinstance(message, Abort):
            counts.append(len(driver.outputs.get(0, [])))
        take(message, outputs)

    driver.core._take = noted
    return counts


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("pool", [14, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_at_any_step_loses_no_page(kind, pool, cold):
    """Before every step in turn, the request is aborted; those beside it end as they would."""
    beside = submit(1, [*range(1, 12), 30], 12)
    for at in range(1, 22):
        request = KINDS[kind]()
        schedule = [[request, beside], *[[] for _ in range(at - 1)], [Abort(0)]]
        driver = Driver(num_pages=1 + pool, page_size=4, budget=6, disable_radix_cache=cold)
        before = outputs_before_abort(driver)
        driver.run(schedule)
        assert driver.ids(1) == alone(beside)
        assert len(driver.outputs.get(0, [])) == before[0], "an output after the abort"
        driver.core.check()
        assert driver.core.scheduler.is_empty
        if cold:
            assert driver.core.cache.stats().free == pool
