"""Rows as whole numbers: how near they come, and that the bytes say what they are to say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from boughs.kernels import digits, team
from boughs.kernels.digits import DIGITS, ENCODED, POWER, SHIFT, TOP, TOTAL
from boughs.kernels.linear import Linear, encode_call
from boughs.kernels.team import run_calls
from boughs.kernels.weight import GROUP, quantize
from boughs.kernels.workers import Workers

WORKERS, THREADS = Workers(1), Workers(3)

pytestmark = pytest.mark.skipif(not digits.AVAILABLE, reason="no such CPU")

groups = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.sampled_from([GROUP, 3 * GROUP])),
    elements=st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-1, 1, width=32),
)


def encode(x):
    """Bytes [rows, groups, ENCODED]."""
    rows, width = x.shape
    memory = np.concatenate([x.reshape(-1), np.full(x.size, np.nan, np.float32)])
    args = np.array([0, width, width])
    calls = np.array([[encode_call().address, args.ctypes.data]])
    step = np.array([rows, memory.ctypes.data])
    run_calls(WORKERS, calls, np.array([1]), step)
    made = memory[x.size :].view(np.uint8).reshape(width // GROUP, rows, ENCODED)
    return made.swapaxes(0, 1)


def field(encoded, place, dtype, count=1):
    size = np.dtype(dtype).itemsize * count
    return np.ascontiguousarray(encoded[..., place : place + size]).view(dtype)


@settings(max_examples=200, deadline=None)
@given(groups)
def test_numbers_are_as_near_as_their_bits_allow(x):
    encoded = encode(x)
    bytes_ = field(encoded, 0, np.int8, POWER).reshape(*encoded.shape[:2], DIGITS, GROUP)
    places = 256.0 ** np.arange(DIGITS)[::-1, None]
    numbers = (bytes_ * places).sum(axis=2)
    power = field(encoded, POWER, np.float32).astype(np.float64)
    parts = x.reshape(*encoded.shape[:2], GROUP).astype(np.float64)
    size = abs(parts).max(axis=2, keepdims=True)
    assert (abs(numbers) <= 2**TOP).all()
    assert (abs(numbers * power - parts) <= size * 2.0**-TOP + 1e-37).all()
    total = (numbers * power).sum(axis=2, keepdims=True)
    slack = 1e-6 * abs(total) + 1e-37
    assert (abs(field(encoded, TOTAL, np.float32) - total) <= slack).all()
    sums = bytes_.astype(np.int32).sum(axis=3)
    high = sums[:, :, :-1] @ 256 ** np.arange(DIGITS - 1)[::-1]
    shifts = -128 * np.stack((high, sums[:, :, -1]), axis=2)
    assert np.array_equal(field(encoded, SHIFT, np.int32, 2), shifts)


@pytest.mark.parametrize("number", [1.0, -1.0, 0.5, 3.0, -127.0, 2.0**-90, -(2.0**90)])
def test_a_number_of_few_bits_stays_itself(number):
    x = np.zeros((1, GROUP), np.float32)
    x[0, 5] = number
    encoded = encode(x)
    bytes_ = field(encoded, 0, np.int8, POWER).reshape(DIGITS, GROUP).astype(np.int64)
    numbers = (bytes_ * (256 ** np.arange(DIGITS)[::-1, None])).sum(axis=0)
    assert np.array_equal(numbers * float(field(encoded, POWER, np.float32)[0, 0, 0]), x[0])


@pytest.mark.parametrize("kind", digits.KINDS)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows(kind, number):
    x = torch.ones(2, 64)
    x[1, 40] = number
    found = Linear(quantize(np.ones((3, 64), np.float32), kind), None, WORKERS)(x)
    assert found[0].isfinite().all()
    assert found[1].isnan().all()


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(digits.KINDS),
    st.integers(1, 70) | st.sampled_from([95, 96, 97, 98, 99, 100, 193]),
    st.integers(1, 200),
    st.integers(1, 5),
    st.integers(0, 2**31),
)
def test_blocks_of_all_sizes(kind, rows, outputs, groups, seed):
    """Rows of any size, some of them not finite, each as exact as, and the same as, alone."""
    random = np.random.default_rng(seed)
    matrix = random.standard_normal((outputs, groups * GROUP)).astype(np.float32)
    matrix *= 10.0 ** random.integers(-3, 3, (outputs, 1))
    weight = quantize(matrix, kind)
    x = random.standard_normal((rows, groups * GROUP)).astype(np.float32)
    x *= 2.0 ** random.integers(-80, 80, (rows, 1))
    x *= random.random(x.shape) < random.random()
    broken = random.random(rows) < 0.1
    places = random.integers(0, groups * GROUP, rows)
    x[broken, places[broken]] = random.choice([np.nan, np.inf, -np.inf], broken.sum())
    layer = Linear(weight, None, THREADS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(team, "LEAST", 1.0)  # else these are too small for threads
        found = layer(torch.from_numpy(x)).numpy()
    assert np.isnan(found[broken]).all()
    good, exact = ~broken, weight.dequantize().astype(np.float64)
    sizes = abs(x[good]).max(axis=1, initial=0, keepdims=True) * abs(exact).sum(axis=1)
    expected = x[good].astype(np.float64) @ exact.T
    assert (abs(found[good] - expected) <= 1e-6 * sizes).all()
    alone = random.integers(0, rows)
    assert np.array_equal(
        layer(torch.from_numpy(x[alone : alone + 1])).numpy()[0], found[alone], equal_nan=True
    )


@pytest.mark.parametrize("kind", digits.KINDS)
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e30])
def test_rows_of_any_size(kind, size):
    """The greatest bytes that there are, in rows far from 1."""
    matrix = np.linspace(-2, 2, 3 * 64, dtype=np.float32).reshape(3, 64)
    weight = quantize(matrix, kind)
    x = np.full((1, 64), size, np.float32) * np.where(np.arange(64) % 2, -1, 1).astype(np.float32)
    found = Linear(weight, None, WORKERS)(torch.from_numpy(x)).numpy()
    exact = x.astype(np.float64) @ weight.dequantize().astype(np.float64).T
    assert (abs(found - exact) <= 1e-5 * size * 64 + 1e-36).all()
