"""Masks of bits against masks of booleans."""

import numpy as np
import torch
from hypothesis import given, settings, strategies as st

from boughs.kernels.bitmask import best_allowed, expand, forbid, pack, unpack

sizes = st.sampled_from([1, 31, 32, 33, 64, 1000])


@given(st.integers(0, 2**32 - 1), sizes, st.floats(0, 1))
@settings(max_examples=80, deadline=None)
def test_forbidden_tokens_get_minus_infinity_and_others_stay(seed, vocab, share):
    draw = np.random.default_rng(seed)
    allowed = draw.random(vocab) < share
    logits = draw.standard_normal(vocab).astype(np.float32)
    made = logits.copy()
    forbid()(made, pack(allowed))
    assert (made == np.where(allowed, logits, -np.inf)).all()
    assert (unpack(pack(allowed), vocab) == allowed).all()
    both = np.stack([pack(allowed), pack(~allowed)])
    made = expand(both, vocab, torch.device("cpu")).numpy()
    assert (made == np.stack([allowed, ~allowed])).all()


@given(st.integers(0, 2**32 - 1), sizes, st.floats(0, 1), st.integers(1, 5))
@settings(max_examples=80, deadline=None)
def test_the_best_allowed_is_the_first_of_the_highest(seed, vocab, share, count):
    draw = np.random.default_rng(seed)
    logits = draw.integers(-3, 3, (6, vocab)).astype(np.float32)
    rows = draw.integers(0, 6, count)
    allowed = draw.random((count, vocab)) < share
    tokens = np.empty(count, dtype=np.int64)
    best_allowed()(logits, rows, np.stack([pack(line) for line in allowed]), tokens)
    for row, line, token in zip(rows, allowed, tokens, strict=True):
        expected = np.where(line, logits[row], -np.inf).argmax() if line.any() else -1
        assert token == expected


def test_no_token_is_best_where_all_have_minus_infinity():
    logits = np.zeros((1, 40), dtype=np.float32)
    logits[0, 7] = -np.inf
    tokens = np.empty(1, dtype=np.int64)
    only = np.arange(40) == 7
    for allowed, best in ((only, -1), (~only, 0)):
        best_allowed()(logits, np.array([0]), pack(allowed)[None], tokens)
        assert tokens[0] == best
