"""The sampler against transformers' logits processors and warpers, on the same logits."""

import importlib.util
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from boughs.kernels.bitmask import pack
from boughs.lang.errors import BoughsError, InvalidRequest
from boughs.lang.sampling import SamplingParams
from boughs.runtime.core.forbidden import Forbidden
from boughs.runtime.core.sampler import RowState, adjust, kept_probs, most_likely, sample

_path = Path(__file__).parents[1] / "fixtures" / "hf_sampling.py"
_spec = importlib.util.spec_from_file_location("hf_sampling", _path)
theirs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(theirs)

VOCAB = 40
ENDS = (2, 3)

logits_strategy = st.integers(0, 2**32 - 1).map(
    lambda seed: torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
)
tokens = st.integers(0, VOCAB - 1)
ids = st.lists(tokens, max_size=12)
some = st.sets(tokens, min_size=1, max_size=VOCAB)
sequences = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=5)
options = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.floats(0.5, 2),
        "frequency_penalty": st.floats(-2, 2),
        "presence_penalty": st.floats(-2, 2),
        "logit_bias": st.dictionaries(tokens, st.floats(-100, 100, width=32), max_size=6),
        "allowed_token_ids": some.map(tuple),
        "min_new_tokens": st.integers(0, 12),
        "temperature": st.floats(0.2, 3),
        "top_k": st.sampled_from([-1, 1, 3, 9, VOCAB, 500]),
        "top_p": st.floats(0.05, 1),
        "min_p": st.floats(0, 0.9),
    },
)


def row(prompt, output, bad=(), ends=ENDS, **params):
    params = SamplingParams(**{"seed": 0, "max_new_tokens": None, **params})
    state = RowState(params, 0, frozenset(ends))
    state.note_prompt(prompt)
    if params.allowed_token_ids is not None or bad:
        state.forbidden = Forbidden(VOCAB, params.allowed_token_ids, bad)
    for token in output:
        state.note_output(token)
    return state


def is_clear(logits, params):
    """Whether no token's mass lies on a border within float32, where it may fall on either side."""

    def kept(by):
        top_p = params.top_p if params.top_p == 1 else min(1.0, params.top_p + by)
        min_p = max(0.0, params.min_p - by) if params.min_p else 0.0
        return kept_probs(logits, msgspec.structs.replace(params, top_p=top_p, min_p=min_p)) > 0

    return torch.equal(kept(1e-5), kept(-1e-5))


def check(logits, prompt, output, bad, params):
    state = row(prompt, output, bad, **params)
    got = logits.clone()
    adjust(got, state, len(output), None)
    expected = theirs.adjusted(state.params, logits, prompt, output, bad, ENDS)
    assert torch.equal(got.isneginf(), expected.isneginf())
    assert torch.allclose(got, expected, rtol=1e-6, atol=1e-5)
    if expected.isneginf().all():
        with pytest.raises(InvalidRequest, match="no token is left after"):
            sample(logits.clone(), state, len(output), None)
        return
    probs = kept_probs(got, state.params)
    wanted = theirs.warped(state.params, expected)
    if not is_clear(got, state.params):
        return
    assert torch.equal(probs > 0, wanted > 0)
    # The last filter leaves probabilities that need not sum to one.
    assert torch.allclose(probs / probs.sum(), wanted, atol=1e-5)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.5},
        {"temperature": 2.5},
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.1},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"min_p": 0.6},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"frequency_penalty": 0.7},
        {"frequency_penalty": -1.5},
        {"presence_penalty": 0.7},
        {"presence_penalty": -1.5},
        {"logit_bias": {3: 5.0, 4: -100.0, 5: 100.0}},
        {"allowed_token_ids": (1, 7, 30)},
        {"min_new_tokens": 4},
        {"min_new_tokens": 3},
    ],
    ids=lambda params: f"{params}",
)
def test_each_alone(params):
    for seed in range(30):
        logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
        check(logits, [5, 6, 6], [7, 8, 7], [], params)


@given(logits_strategy, st.lists(st.integers(0, 5), max_size=6), sequences)
@settings(max_examples=150, deadline=None)
@example(torch.zeros(VOCAB), [1, 2], [[1, 2, 3], [2, 4], [5], [2, 2]])
def test_bad_words(logits, output, bad):
    check(logits, [0, 1], output, bad, {})


@given(logits_strategy, ids, ids, sequences, options)
@settings(max_examples=300, deadline=None)
def test_together(logits, prompt, output, bad, params):
    check(logits, prompt, output, bad, params)


# ---- what transformers does not have ----


def test_where_nothing_is_left_the_error_names_what_forbids():
    state = row([], [], [[5]], allowed_token_ids=(2, 5), min_new_tokens=3)
    with pytest.raises(InvalidRequest) as caught:
        sample(torch.zeros(VOCAB), state, 0, None)
    for name in ("allowed_token_ids", "bad_words", "min_new_tokens=3", "after 0 output tokens"):
        assert name in str(caught.value)
    assert "grammar" not in str(caught.value)
    # Behind the minimum the end is free again, and bias cannot bring back what is forbidden.
    assert sample(torch.zeros(VOCAB), state, 3, None) == 2
    state = row([], [], allowed_token_ids=(7,), logit_bias={7: -100.0, 8: 100.0})
    assert sample(torch.zeros(VOCAB), state, 0, None) == 7


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_and_a_list_without_a_common_token_leave_nothing(temperature):
    mask = np.zeros(VOCAB, dtype=bool)
    mask[[4, 5]] = True
    state = row([], [], allowed_token_ids=(6,), temperature=temperature)
    with pytest.raises(InvalidRequest, match="allowed_token_ids and the grammar"):
        sample(torch.zeros(VOCAB), state, 0, pack(mask))
    state = row([], [], allowed_token_ids=(5, 6), temperature=temperature)
    assert sample(torch.zeros(VOCAB), state, 0, pack(mask)) == 5


def test_the_minimum_yields_to_a_grammar_that_must_end_and_to_nothing_else():
    mask = np.zeros(VOCAB, dtype=bool)
    mask[list(ENDS)] = True
    state = row([], [], min_new_tokens=3, temperature=0.0)
    assert sample(torch.zeros(VOCAB), state, 0, pack(mask)) in ENDS
    mask[9] = True
    assert sample(torch.zeros(VOCAB), state, 0, pack(mask)) == 9
    state = row([], [], min_new_tokens=3, allowed_token_ids=ENDS)
    with pytest.raises(InvalidRequest, match="min_new_tokens=3"):
        sample(torch.zeros(VOCAB), state, 0, pack(mask))


def test_an_end_that_does_not_end_may_stand_before_the_minimum():
    """Under `ignore_eos` the model's EOS is a token like any other."""
    logits = torch.zeros(VOCAB)
    logits[2] = 5
    assert sample(logits.clone(), row([], [], ends=(), min_new_tokens=3), 0, None) == 2


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_an_error(temperature, broken):
    logits = torch.zeros(3, VOCAB)
    logits[1, 7] = broken
    states = [row([], [], temperature=temperature) for _ in range(3)]
    likely = most_likely(logits, [state.is_plain(0) for state in states], [None] * 3)
    assert (likely == [0, None, 0]) == (temperature == 0)
    with pytest.raises(BoughsError, match=r"best logit is (nan|inf)"):
        sample(logits[1].clone(), states[1], 0, None)


# ---- at once ----


@given(st.integers(0, 2**32 - 1), st.lists(st.booleans(), min_size=1, max_size=9), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_most_likely_of_many_rows_are_those_of_each(seed, plain, ties):
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(plain), 5000, generator=draw)
    if ties:
        logits = logits.round()
    states = [row([], [], temperature=0.0) for _ in plain]
    each = [
        sample(line.clone(), state, 0, None) for line, state in zip(logits, states, strict=True)
    ]
    kept = logits.clone()
    assert most_likely(logits, plain, [None] * len(plain)) == [
        t if p else None for t, p in zip(each, plain, strict=True)
    ]
    assert torch.equal(logits, kept)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 31, 32, 33, 700]),
    st.lists(st.sampled_from([None, 0.0, 0.02, 0.5, 1.0]), min_size=1, max_size=7),
    st.sampled_from([None, math.inf, -math.inf, math.nan]),
)
@settings(max_examples=100, deadline=None)
def test_the_most_likely_under_masks_are_those_of_each(seed, vocab, shares, odd):
    """Where a row allows nothing, or is not all numbers, `sample` is left to say what is so."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(shares), vocab, generator=draw).round()
    if odd is not None:
        logits[0, vocab // 2] = odd
    masks = [
        None if share is None else pack((torch.rand(vocab, generator=draw) < share).numpy())
        for share in shares
    ]
    state, kept = row([], [], temperature=0.0), logits.clone()
    made = most_likely(logits, [True] * len(shares), masks)
    assert torch.equal(logits.nan_to_num(), kept.nan_to_num())
    for line, mask, token in zip(logits, masks, made, strict=True):
        if token is not None:
            assert sample(line.clone(), state, 0, mask) == token
        elif line.max().isfinite():
            with pytest.raises(BoughsError):
                sample(line.clone(), state, 0, mask)


@pytest.mark.parametrize(
    ("params", "plain"),
    [
        ({"temperature": 0.0}, True),
        ({"temperature": 0.0, "top_k": 3, "top_p": 0.5, "min_p": 0.5, "seed": 4}, True),
        ({"temperature": 0.5}, False),
        ({"temperature": 0.0, "repetition_penalty": 1.1}, False),
        ({"temperature": 0.0, "frequency_penalty": 0.1}, False),
        ({"temperature": 0.0, "presence_penalty": 0.1}, False),
        ({"temperature": 0.0, "logit_bias": {1: 1.0}}, False),
        ({"temperature": 0.0, "allowed_token_ids": (1,)}, False),
        ({"temperature": 0.0, "min_new_tokens": 3}, False),
        ({"temperature": 0.0, "min_new_tokens": 2}, True),
    ],
)
def test_a_row_is_plain_where_nothing_moves_its_most_likely_token(params, plain):
    assert row([1], [4, 5], **params).is_plain(2) == plain
    assert not row([1], [4, 5], bad=[[1, 2]], **params).is_plain(2)
