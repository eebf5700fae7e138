"""Requests whose grammar is being compiled, in a core whose pages are checked after every step."""

import importlib.util
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.sampling import SamplingParams
from boughs.runtime.messages import Abort, Call, Submit


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages, rote = load("page_model"), load("rote_grammars")
Driver, alone, submit = pages.Driver, pages.alone, pages.submit
context_logits = pages.context_logits


def bound(key, prompt, source, max_new_tokens=6, **kwargs):
    params = SamplingParams(temperature=0.0, max_new_tokens=max_new_tokens, seed=0, regex=source)
    return Submit(key=key, prompt_ids=list(prompt), params=params, **kwargs)


class When:
    """A schedule that also finishes grammars before steps: `{step: [(source, error)]}`."""

    def __init__(self, grammars, at, schedule):
        self.grammars, self.at, self.schedule = grammars, at, list(schedule)
        self.step = -1

    def __bool__(self):
        return bool(self.schedule) or self.step < max(self.at, default=-1)

    def pop(self, _):
        self.step += 1
        for source, error in self.at.get(self.step, ()):
            self.grammars.finish(source, error)
        return self.schedule.pop(0) if self.schedule else []


def run(grammars, at, schedule, **kwargs):
    driver = Driver(grammars=grammars, **kwargs).run(When(grammars, at, schedule))
    driver.core.check()
    assert driver.core.scheduler.is_empty
    return driver


def first_step(driver, key):
    return next(n for n, step in enumerate(driver.model.steps) if any(k == key for k, _, _ in step))


@pytest.mark.parametrize("policy", ["lpm", "dfs", "fcfs", "priority"])
def test_one_that_waits_for_its_grammar_blocks_nobody(policy):
    grammars = rote.RoteGrammars()
    prompt = list(range(1, 20))
    requests = [bound(0, prompt, "5 6 7"), *[submit(k, prompt, 9) for k in (1, 2, 3)]]
    driver = run(
        grammars,
        {90: [("5 6 7", None)]},
        [requests],
        max_running_requests=1,
        schedule_policy=policy,
    )
    for request in requests[1:]:
        assert driver.ids(request.key) == alone(request)
    assert driver.ids(0) == [5, 6, 7]
    assert driver.finish(0) == "stop"
    assert first_step(driver, 0) > max(first_step(driver, key) for key in (1, 2, 3))


def test_one_that_waits_for_its_grammar_is_not_waited_for():
    """Its prompt's followers are prefilled without it, also where it came first."""
    grammars = rote.RoteGrammars()
    prompt = list(range(1, 31))
    driver = run(
        grammars, {30: [("5", None)]}, [[bound(0, prompt, "5"), submit(1, [*prompt, 3], 2)]]
    )
    assert first_step(driver, 1) == 0
    assert driver.outputs[0][0].cached_tokens == 29


def test_a_grammar_that_fails_fails_its_requests_alone():
    grammars = rote.RoteGrammars()
    requests = [bound(0, [1, 2], "5"), bound(1, [1, 2], "5"), submit(2, [1, 2, 3], 4)]
    driver = run(grammars, {2: [("5", "regex: no")]}, [requests])
    for key in (0, 1):
        assert [output.error for output in driver.outputs[key]] == [
            ("GrammarError", "regex: no", None)
        ]
    assert driver.ids(2) == alone(requests[2])


def test_it_may_be_aborted_while_it_waits():
    grammars = rote.RoteGrammars()
    requests = [bound(0, [1, 2], "5"), submit(1, [1, 2, 3], 4)]
    driver = run(grammars, {5: [("5", None)]}, [requests, [Abort(0)]])
    assert 0 not in driver.outputs
    assert driver.core.scheduler.counters.aborted == 1


def test_a_flush_need_not_wait_for_it():
    grammars = rote.RoteGrammars()
    first = submit(1, [1, 2, 3], 2)
    call = Call(7, "flush", {"wait": 60.0})
    driver = run(grammars, {20: [("5", None)]}, [[bound(0, [1, 2], "5"), first], [], [], [call]])
    (reply,) = driver.replies
    assert reply.error is None
    assert driver.ids(0) == [5]


def test_output_of_a_core_before_it_advances_the_grammar():
    grammars = rote.RoteGrammars()
    late = bound(0, [1, 2], "5 6 7", output_ids=[5, 6])
    driver = run(grammars, {4: [("5 6 7", None)]}, [[late], *[[]] * 6])
    assert driver.ids(0) == [7]
    at_once = rote.RoteGrammars("5 6 7")
    assert run(at_once, {}, [[late]]).ids(0) == [7]


def test_a_mask_beyond_its_budget_fails_its_request_alone():
    grammars = rote.RoteGrammars("5 99 5")
    requests = [bound(0, [1, 2], "5 99 5"), submit(1, [1, 2, 3], 6)]
    driver = run(grammars, {}, [requests])
    assert driver.outputs[0][-1].error == ("GrammarError", "regex: too complex", "regex")
    assert driver.ids(0) == [5]
    assert driver.ids(1) == alone(requests[1])


def test_forced_tokens_take_one_step_together():
    source = "5,6 7 8 9 10 11,12 13 14 15"
    requests = [bound(0, [1, 2, 3], source, 20), submit(1, [1, 2, 4], 20)]
    jumping = run(rote.RoteGrammars(source, jumps=True), {}, [requests])
    walking = run(rote.RoteGrammars(source), {}, [requests])
    assert jumping.ids(0) == walking.ids(0)
    assert [len(output.ids) for output in jumping.outputs[0]] == [5, 4]
    assert [output.forced for output in jumping.outputs[0]] == [4, 3]
    own = [(start, count) for step in jumping.model.steps for k, start, count in step if k == 0]
    assert own == [(0, 3), (3, 5)]
    assert jumping.ids(1) == walking.ids(1) == alone(requests[1])


@pytest.mark.parametrize("most", range(1, 9))
def test_forced_tokens_are_cut_at_the_limit(most):
    source = "5,6 7 8 9 10 11,12 13"
    driver = run(rote.RoteGrammars(source, jumps=True), {}, [[bound(0, [1, 2], source, most)]])
    assert driver.ids(0)[1:5] == [7, 8, 9, 10][: most - 1]
    assert len(driver.ids(0)) == min(most, 7)
    assert driver.finish(0) == ("length" if most < 7 else "stop")
    assert driver.outputs[0][-1].incomplete == (most < 7)


def test_a_forced_stop_token_ends_the_output():
    source = "5,6 7 8 9 10"
    params = SamplingParams(
        temperature=0.0, max_new_tokens=9, seed=0, regex=source, stop_token_ids=(8,)
    )
    request = Submit(key=0, prompt_ids=[1, 2], params=params)
    driver = run(rote.RoteGrammars(source, jumps=True), {}, [[request]])
    assert driver.ids(0)[1:] == [7, 8]
    assert (driver.finish(0), driver.outputs[0][-1].matched) == ("stop", 8)


def test_what_needs_a_step_for_each_token_gets_it():
    """What a request's own lists forbid is the sampler's to refuse."""
    source = "5,6 7 8"
    lists = SamplingParams(temperature=0.0, seed=0, regex=source, allowed_token_ids=(5, 6, 7))
    request = Submit(key=0, prompt_ids=[1, 2], params=lists)
    driver = run(rote.RoteGrammars(source, jumps=True), {}, [[request]])
    assert "the grammar forbid all" in driver.outputs[0][-1].error[1]


def logprobs_of(request, ids):
    """What the model itself says of an output."""
    context = list(request.prompt_ids)
    made = []
    for token in ids:
        made.append(float(context_logits(context).log_softmax(-1)[token]))
        context.append(token)
    return made


def test_forced_tokens_with_logprobs_are_told_with_those_of_their_chunk():
    source = "5,6 7 8 9 10 11,12 13 14 15"
    request = bound(0, [1, 2, 3], source, 20, logprobs=True, top_logprobs=2)
    driver = run(rote.RoteGrammars(source, jumps=True), {}, [[request]])
    outputs = driver.outputs[0]
    # What ends the output has a step of its own: nothing is computed behind it.
    assert [len(output.ids) for output in outputs] == [1, 4, 1, 2, 1]
    assert [output.forced for output in outputs] == [0, 4, 0, 2, 0]
    own = [(start, count) for step in driver.model.steps for _, start, count in step]
    assert own == [(0, 3), (3, 5), (8, 3)]
    found = [logprob for output in outputs for logprob in output.logprobs]
    assert found == pytest.approx(logprobs_of(request, driver.ids(0)))
    assert [len(top) for output in outputs for top in output.top] == [2] * 9


@st.composite
def loads(draw):
    """Requests, some of them constrained; when each comes, and when its grammar does."""
    requests, grammars = [], {}
    schedule = [[] for _ in range(12)]
    for key in range(draw(st.integers(1, 7))):
        prompt = draw(st.lists(st.integers(1, 3), min_size=1, max_size=14))
        source = draw(
            st.none() | st.sampled_from(["5 6 7", "5,6 7,8 9 10", "5,6 7 8 9 10,11 12 13", "11"])
        )
        made = submit(key, prompt, draw(st.integers(1, 9)))
        if source is not None:
            params = msgspec.structs.replace(made.params, regex=source)
            made = msgspec.structs.replace(made, params=params, logprobs=draw(st.booleans()))
            grammars.setdefault(source, draw(st.integers(0, 30)))
        requests.append(made)
        schedule[draw(st.integers(0, 11))].append(made)
        if draw(st.booleans()) and draw(st.booleans()):
            schedule[draw(st.integers(0, 11))].append(Abort(key))
    at = {}
    for source, step in grammars.items():
        at.setdefault(step, []).append((source, None))
    return requests, schedule, at


@given(
    loads(),
    st.integers(0, 4),
    st.sampled_from([1, 3, 16]),
    st.sampled_from(["lpm", "fcfs"]),
    st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_random_loads_keep_the_page_equation_and_their_grammars(load, extra, budget, policy, jumps):
    requests, schedule, at = load
    aborted = {m.key for messages in schedule for m in messages if isinstance(m, Abort)}
    longest = max(len(r.prompt_ids) + r.params.max_new_tokens for r in requests)
    driver = run(
        rote.RoteGrammars(jumps=jumps),
        at,
        schedule,
        num_pages=1 + extra + -(-longest // 4),
        budget=budget,
        schedule_policy=policy,
    )
    for request in requests:
        if request.key in aborted:
            continue
        source = request.params.regex
        if source is None:
            assert driver.ids(request.key) == alone(request)
            continue
        sets = [set(map(int, part.split(","))) for part in source.split()]
        made = driver.ids(request.key)
        whole = len(sets) <= request.params.max_new_tokens
        assert len(made) == min(len(sets), request.params.max_new_tokens)
        if request.logprobs:
            found = [lp for output in driver.outputs[request.key] for lp in output.logprobs]
            assert found == pytest.approx(logprobs_of(request, made), abs=1e-5)
        assert all(token in allowed for token, allowed in zip(made, sets, strict=False))
        assert driver.finish(request.key) == ("stop" if whole else "length")
