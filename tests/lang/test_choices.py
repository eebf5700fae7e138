"""Choice methods against naive computations, and what a select leaves behind."""

import math
from statistics import fmean

import pytest
from hypothesis import assume, given, strategies as st

import boughs
from boughs.lang.choices import (
    ChoicesDecision,
    ChoicesSamplingMethod,
    decide,
    greedy_token_selection,
    probabilities,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from boughs.lang.errors import BackendError, InvalidRequest, RequestTimeout
from boughs.lang.results import ChoiceScore, Scores
from boughs.testing import MockBackend

logprob = st.floats(-20, 0)


@st.composite
def scored(draw):
    lists = draw(st.lists(st.lists(logprob, min_size=1, max_size=5), min_size=1, max_size=5))
    choices = [
        ChoiceScore(
            token_ids=list(range(len(given))),
            logprobs=given,
            unconditional=draw(st.lists(logprob, min_size=len(given), max_size=len(given))),
        )
        for given in lists
    ]
    names = [f"choice {i}" for i in range(len(lists))]
    return names, Scores(choices=choices, prompt_tokens=3, cached_tokens=0)


@given(scored())
def test_length_normalized_takes_the_best_mean(case):
    names, scores = case
    means = [fmean(s.logprobs) for s in scores.choices]
    decision = decide(token_length_normalized, names, scores)
    assert decision.decision == names[means.index(max(means))]
    assert decision.meta_info["normalized_prompt_logprobs"] == means
    assert [len(e) for e in decision.meta_info["input_token_logprobs"]] == [
        len(s.logprobs) for s in scores.choices
    ]
    assert decision.meta_info["output_token_logprobs"] == [[] for _ in names]


@given(scored())
def test_unconditional_takes_the_best_mean_gain(case):
    names, scores = case
    gains = [
        fmean(a - b for a, b in zip(s.logprobs, s.unconditional, strict=True))
        for s in scores.choices
    ]
    decision = decide(unconditional_likelihood_normalized, names, scores)
    assert decision.decision == names[gains.index(max(gains))]
    assert decision.meta_info["normalized_unconditional_prompt_logprobs"] == gains
    assert len(decision.meta_info["unconditional_token_logprobs"]) == len(names)


@given(scored())
def test_greedy_walks_token_by_token(case):
    names, scores = case
    rows = [list(s.logprobs) for s in scores.choices]
    width = max(map(len, rows))
    rows = [row + [fmean(row)] * (width - len(row)) for row in rows]
    decision = decide(greedy_token_selection, names, scores)
    assert decision.decision == names[rows.index(max(rows))]  # the first of the lexicographic best
    assert decision.meta_info["greedy_logprob_matrix"] == rows


@given(scored())
def test_probabilities_are_a_distribution_over_whole_choices(case):
    names, scores = case
    probs = probabilities(names, scores)
    assert math.isclose(sum(probs.values()), 1.0)
    weights = {n: math.exp(sum(s.logprobs)) for n, s in zip(names, scores.choices, strict=True)}
    assume(sum(weights.values()) > 0)
    for name in names:
        assert math.isclose(probs[name], weights[name] / sum(weights.values()), rel_tol=1e-6)


def test_probabilities_of_very_unlikely_choices():
    scores = Scores(
        choices=[ChoiceScore(token_ids=[1], logprobs=[-1e5]) for _ in range(2)],
        prompt_tokens=1,
        cached_tokens=0,
    )
    assert probabilities(["a", "b"], scores) == {"a": 0.5, "b": 0.5}


def test_scores_that_do_not_belong_are_an_error():
    one = ChoiceScore(token_ids=[1], logprobs=[-1.0])
    none = ChoiceScore(token_ids=[], logprobs=[])
    for choices in ([one], [one, none]):
        scores = Scores(choices=choices, prompt_tokens=1, cached_tokens=0)
        with pytest.raises(BackendError):
            decide(token_length_normalized, ["a", "b"], scores)
    scores = Scores(choices=[one, one], prompt_tokens=1, cached_tokens=0)
    with pytest.raises(BackendError, match="unconditional"):
        decide(unconditional_likelihood_normalized, ["a", "b"], scores)
    with pytest.raises(InvalidRequest, match="unconditional"):
        unconditional_likelihood_normalized(
            choices=["a"],
            normalized_prompt_logprobs=[0],
            input_token_logprobs=[[(0, 1, None)]],
            output_token_logprobs=[[]],
        )


class Shortest(ChoicesSamplingMethod):
    """A method of a user's own, written for SGLang's interface."""

    def __call__(
        self,
        *,
        choices,
        normalized_prompt_logprobs,
        input_token_logprobs,
        output_token_logprobs,
        unconditional_token_logprobs=None,
    ):
        assert unconditional_token_logprobs is None
        return ChoicesDecision(min(choices, key=len), {"mine": len(input_token_logprobs)})


METHODS = (
    token_length_normalized,
    greedy_token_selection,
    unconditional_likelihood_normalized,
    Shortest(),
)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("prompt", ["", "a", "so so ", "Well\n\n", "x" * 50])
@pytest.mark.parametrize("as_gen", [False, True])
def test_a_select_in_a_program(method, prompt, as_gen):
    @boughs.function
    def program(s):
        s += prompt
        choices = ["yes", "no", "not at all"]
        if as_gen:
            s += boughs.gen("x", choices=choices, choices_method=method)
        else:
            s += boughs.select("x", choices=choices, choices_method=method)
        s += "." + boughs.gen("y")

    backend = MockBackend(lambda c: "end" if c.choices is None else [-2.0, -1.0, -3.0])
    state = program.run(backend=backend)
    assert state["x"] == "no"
    assert state.text() == prompt + "no.end"
    info = state.get_meta_info("x")
    assert info["prompt_tokens"] == len(prompt)
    if isinstance(method, Shortest):
        assert info["mine"] == 3
    else:
        assert info["normalized_prompt_logprobs"] == [-2.0, -1.0, -3.0]
    probs = state.choice_probs("x")
    assert math.isclose(sum(probs.values()), 1)
    assert max(probs, key=probs.get) == "no"
    with pytest.raises(InvalidRequest, match="no select"):
        state.choice_probs("y")
    asked = backend.calls[0].request
    assert asked.unconditional == method.requires_unconditional_logprobs


def test_a_selects_usage_and_salt_count():
    @boughs.function
    def program(s):
        s += (
            "abc" + boughs.select("x", choices=["a"]) + boughs.select(choices=["b"], cache_salt="t")
        )

    backend = MockBackend()
    state = program.run(backend=backend, cache_salt="u", priority=4)
    assert (state.usage.requests, state.usage.prompt_tokens) == (2, 3 + 4)
    assert [call.request.cache_salt for call in backend.calls] == ["u", "t"]
    assert [call.request.priority for call in backend.calls] == [4, 4]


def test_the_runs_limit_of_time_holds_for_a_select():
    @boughs.function
    def program(s):
        s += "abc" + boughs.select("x", choices=["a"])

    with pytest.raises(RequestTimeout, match=r"variable 'x'.*no decision within 0\.05 s"):
        program.run(backend=MockBackend(delay=30), timeout=0.05)
