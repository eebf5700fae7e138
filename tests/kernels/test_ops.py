"""The small kernels and the filters: FlashInfer's (a stand-in) as plain torch's, and both right."""

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.kernels import filters, ops
from boughs.kernels.flashinfer_ops import FlashInferFilters, FlashInferOps
from boughs.kernels.kv_cache import KVCache

_path = Path(__file__).parents[1] / "fixtures" / "fake_flashinfer.py"
_spec = importlib.util.spec_from_file_location("fake_flashinfer", _path)
fakes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fakes)

MODULE = fakes.FakeFlashInfer(fakes.FakeCuda(), (torch.float32, *fakes.HALVES))
OPS = [ops.TORCH, FlashInferOps(MODULE)]
FILTERS = [filters.TORCH, FlashInferFilters(MODULE)]
SEEDS = st.integers(0, 1 << 30)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.03, torch.float16: 0.004}
dtypes = st.sampled_from(list(TOLERANCE))


def close(a, b, dtype):
    assert a.dtype == dtype
    torch.testing.assert_close(a.double(), b.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("kind", OPS)
@given(SEEDS, dtypes, st.integers(1, 5), st.booleans())
@settings(max_examples=25, deadline=None)
def test_rms_norm(kind, seed, dtype, rows, plus_one):
    torch.manual_seed(seed)
    x, weight = torch.randn(rows, 48).to(dtype), (torch.randn(48) / 8).to(dtype)
    factor = weight.double() + plus_one
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * factor
    close(kind.rms_norm(x, weight, 1e-5, plus_one=plus_one), expected, dtype)


@pytest.mark.parametrize("kind", OPS)
@given(SEEDS, dtypes, st.integers(1, 5), st.sampled_from([64, 32]), st.sampled_from([1.0, 1.3]))
@settings(max_examples=25, deadline=None)
def test_rotate(kind, seed, dtype, rows, rotated, factor):
    """As complex numbers: elements i and i + rotated / 2 are one, turned by the i-th angle."""
    torch.manual_seed(seed)
    both = torch.randn(rows, 7, 64).to(dtype)  # queries, keys and values of a row
    radians = 6 * torch.randn(rows, rotated // 2)
    turn = torch.polar(torch.full_like(radians, factor), radians)[:, None]
    first, second, rest = both.float().split([rotated // 2, rotated // 2, 64 - rotated], dim=-1)
    made = torch.complex(first, second) * turn
    expected = torch.cat((made.real, made.imag, rest), dim=-1)
    values = both[:, 6:].clone()
    angles = kind.angles(radians, factor, dtype)
    turned = kind.rotate(both[:, :6], 4, angles).float()
    tolerance = TOLERANCE[dtype] * 4
    torch.testing.assert_close(turned, expected[:, :6], rtol=tolerance, atol=tolerance)
    assert torch.equal(both[:, 6:], values)


@pytest.mark.parametrize("kind", OPS)
@pytest.mark.parametrize("name", ops.ACTIVATIONS)
def test_gated(kind, name):
    x = 3 * torch.randn(4, 24)
    gate, up = x.double().chunk(2, dim=-1)
    close(kind.gated(name)(x), ops.ACTIVATIONS[name](gate) * up, torch.float32)


@pytest.mark.parametrize("kind", FILTERS)
@given(SEEDS, st.integers(1, 30), st.floats(0.05, 0.95))
@settings(max_examples=40, deadline=None)
def test_filters_keep_the_most_likely(kind, seed, k, p):
    torch.manual_seed(seed)
    logits = 3 * torch.randn(31)
    order = logits.argsort(descending=True)
    kept = kind.top_k(logits, k)
    assert sorted(order[:k].tolist()) == kept.isfinite().nonzero().flatten().tolist()
    assert torch.equal(kept[order[:k]], logits[order[:k]])
    probs = logits.softmax(0)
    sums = probs[order].double().cumsum(0)
    if (sums - p).abs().min() < 1e-6:
        return  # rounding decides
    count = int((sums < p).sum()) + 1
    left = kind.top_p(probs, p)
    assert sorted(order[:count].tolist()) == left.nonzero().flatten().tolist()
    torch.testing.assert_close(left / left.sum(), probs * (left > 0) / probs[order[:count]].sum())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_cache_in_float8_keeps_what_it_can_hold(dtype):
    cache = KVCache(1, 3, 4, 1, 8, dtype)
    most = torch.finfo(dtype).max
    rows = torch.tensor([0.0, 1.0, -0.5, 3 * most, -torch.inf, 0.25, 2.0, most])[None, None]
    cache.write(0, torch.tensor([5]), rows, -rows)
    expected = rows.clamp(-most, most)
    assert torch.equal(cache.k(0)[1, 1].float(), expected[0])
    assert torch.equal(cache.v(0)[1, 1].float(), -expected[0])
    assert not cache.k(0)[2].float().any()
    assert cache.k(0).stride() == cache.v(0).stride()
