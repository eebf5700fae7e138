"""The sampler: what each parameter does, alone and beside others."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.kernels.bitmask import pack
from boughs.lang.sampling import SamplingParams
from boughs.runtime.core.sampler import RowState, kept_probs, sample, top_logprobs, uniform

VOCAB = 40

logits_strategy = st.integers(0, 2**32 - 1).map(
    lambda seed: torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
)


def row(ends=(), choice=0, **params):
    return RowState(SamplingParams(**{"seed": 0, **params}), choice, frozenset(ends))


def naive_kept(logits, temperature, top_k, top_p, min_p):
    """transformers' order: temperature, top-k, top-p, min-p, in float64 and plain Python."""
    scores = [float(x) / temperature for x in logits.double()]
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    if top_k > 0:
        order = order[:top_k]
    weights = {i: math.exp(scores[i] - scores[order[0]]) for i in order}
    total = sum(weights.values())
    kept, mass = [], 0.0
    for i in order:
        if top_p < 1 and mass >= top_p * total:
            break
        kept.append(i)
        mass += weights[i]
    return {i for i in kept if weights[i] >= min_p * weights[order[0]]}


@given(
    logits_strategy,
    st.floats(0.1, 3),
    st.sampled_from([-1, 1, 2, 7, VOCAB, 1000]),
    st.floats(0.05, 1),
    st.floats(0, 0.9),
)
@settings(max_examples=200, deadline=None)
def test_filters_keep_what_a_naive_model_keeps(logits, temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    probs = kept_probs(logits.clone(), params)
    kept = set(probs.nonzero().flatten().tolist())
    expected = naive_kept(logits, temperature, top_k, top_p, min_p)
    # A token whose mass lies on a border within float32 may fall on either side.
    lenient = naive_kept(logits, temperature, top_k, min(1, top_p + 1e-5), max(0, min_p - 1e-5))
    strict = naive_kept(logits, temperature, top_k, top_p - 1e-5, min_p + 1e-5)
    assert strict <= kept <= lenient
    assert int(logits.argmax()) in kept
    if strict == lenient:
        assert kept == expected


def test_top_k_keeps_exactly_k_where_all_tie():
    probs = kept_probs(torch.zeros(VOCAB), SamplingParams(top_k=3))
    assert probs.nonzero().flatten().tolist() == [0, 1, 2]


def test_a_flat_distribution_has_its_whole_nucleus():
    """More candidates are needed than the first look takes."""
    probs = kept_probs(torch.zeros(5000), SamplingParams(top_p=0.90005))
    assert int((probs > 0).sum()) == 4501


@given(logits_strategy, st.integers(0, 2**62), st.integers(0, 8), st.integers(0, 500))
@settings(max_examples=50, deadline=None)
def test_a_draw_depends_on_seed_choice_and_index_alone(logits, seed, choice, index):
    one = sample(logits.clone(), row(seed=seed, choice=choice), index, None)
    for _ in range(3):
        assert sample(logits.clone(), row(seed=seed, choice=choice), index, None) == one


def test_draws_follow_the_distribution():
    logits = torch.tensor([0.0, 1.0, 2.0, -torch.inf])
    probs = logits.softmax(0)
    counts = np.zeros(4)
    for index in range(4000):
        counts[sample(logits.clone(), row(seed=7), index, None)] += 1
    assert counts[3] == 0
    expected = probs.numpy() * 4000
    chi2 = ((counts[:3] - expected[:3]) ** 2 / expected[:3]).sum()
    assert chi2 < 20  # 2 degrees of freedom: p < 5e-5, and the seed is fixed


def test_uniform_numbers_are_in_range_and_differ():
    draws = [uniform(1, c, i) for c in range(3) for i in range(100)]
    assert all(0 <= u < 1 for u in draws)
    assert len(set(draws)) == len(draws)
    assert len({uniform(s, 0, 0) for s in range(100)}) == 100


@given(logits_strategy)
@settings(max_examples=30, deadline=None)
def test_zero_temperature_takes_the_most_likely(logits):
    assert sample(logits.clone(), row(temperature=0.0), 0, None) == int(logits.argmax())
    assert sample(logits.clone(), row(temperature=9e-7), 3, None) == int(logits.argmax())


def test_temperature_sharpens_and_flattens():
    logits = torch.tensor([0.0, 1.0, 3.0])
    tops = [float(kept_probs(logits, SamplingParams(temperature=t)).max()) for t in (0.2, 1, 5)]
    assert all(a > b for a, b in pairwise(tops))


@pytest.mark.parametrize("name", ["frequency_penalty", "presence_penalty"])
def test_output_penalties_count_the_output_and_not_the_prompt(name):
    logits = torch.tensor([2.0, 1.9, 0.0])
    state = row(temperature=0.0, **{name: 0.5})
    state.note_prompt([0, 0, 0])
    assert sample(logits.clone(), state, 0, None) == 0
    state.note_output(0)
    assert sample(logits.clone(), state, 1, None) == 1


def test_frequency_grows_with_the_count_and_presence_does_not():
    logits = torch.tensor([2.0, 1.0])
    for name, expected in (("frequency_penalty", 1), ("presence_penalty", 0)):
        state = row(temperature=0.0, **{name: 0.6})
        state.note_output(0)
        state.note_output(0)
        assert sample(logits.clone(), state, 2, None) == expected


def test_repetition_penalty_counts_prompt_and_output_on_both_sides_of_zero():
    state = row(temperature=0.0, repetition_penalty=2.0)
    state.note_prompt([0])
    assert sample(torch.tensor([2.0, 1.1]), state, 0, None) == 1
    assert sample(torch.tensor([-1.0, -1.9]), state, 0, None) == 1  # -1 * 2 < -1.9


def test_logit_bias_moves_the_choice():
    assert sample(torch.zeros(5), row(temperature=0.0, logit_bias={3: 1.5}), 0, None) == 3
    logits = torch.tensor([9.0, 0.0])
    assert sample(logits, row(temperature=0.0, logit_bias={0: -100.0}), 0, None) == 1


def test_no_end_before_min_new_tokens():
    logits = torch.tensor([5.0, 1.0, 0.0])
    state = row(ends=[0], temperature=0.0, min_new_tokens=2)
    assert [sample(logits.clone(), state, i, None) for i in range(3)] == [1, 1, 0]


def test_min_new_tokens_yields_where_a_grammar_leaves_only_the_end():
    mask = np.array([True, False, False])
    state = row(ends=[0], temperature=0.0, min_new_tokens=2)
    assert sample(torch.zeros(3), state, 0, pack(mask)) == 0


@given(logits_strategy, st.sets(st.integers(0, VOCAB - 1), min_size=1), st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_a_mask_is_never_left(logits, allowed, seed):
    mask = np.zeros(VOCAB, dtype=bool)
    mask[list(allowed)] = True
    assert sample(logits.clone(), row(seed=seed), 0, pack(mask)) in allowed
    assert sample(logits.clone(), row(temperature=0.0), 0, pack(mask)) in allowed


def test_top_logprobs_are_sorted_and_bounded_by_the_vocabulary():
    logprobs = torch.tensor([[0.1, 0.5, 0.4]]).log()
    (best,) = top_logprobs(logprobs, 9)
    assert [token for token, _ in best] == [1, 2, 0]
    assert best[0][1] == pytest.approx(math.log(0.5))
