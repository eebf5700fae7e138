"""Number formats of weights: how near they come, and that bytes of others keep their meaning."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as arrays

from boughs.kernels.weight import DTYPES, GROUP, Weight, concatenate, quantize

KINDS = sorted(DTYPES)
matrices = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 5), st.integers(1, 80)),
    elements=st.floats(-1000, 1000, width=32),
)


def groups(array):
    """[outputs, groups, GROUP] with NaN behind the last input."""
    short = -array.shape[1] % GROUP
    padded = np.pad(array, ((0, 0), (0, short)), constant_values=np.nan)
    return padded.reshape(len(array), -1, GROUP)


@settings(max_examples=200, deadline=None)
@given(matrices, st.sampled_from(["int8", "int4"]))
def test_no_number_is_further_off_than_half_a_step(array, kind):
    weight = quantize(array, kind)
    parts = groups(array)
    if kind == "int8":
        step = np.nanmax(abs(parts), axis=2) / 127
    else:
        step = (np.nanmax(parts, axis=2) - np.nanmin(parts, axis=2)) / 15
    # A float16 holds 11 bits, and nothing between its least number and 0.
    size = np.nanmax(abs(parts), axis=2)
    bound = step / 2 + 20 * size * 2.0**-11 + 1e-5
    assert np.nanmax(abs(groups(weight.dequantize()) - parts) - bound[:, :, None]) <= 0


@settings(max_examples=200, deadline=None)
@given(arrays.arrays(np.float32, (3, 5), elements=st.floats(width=32)))
def test_bfloat16_is_torchs(array):
    weight = quantize(array, "bfloat16")
    expected = torch.from_numpy(array).bfloat16()
    found = torch.from_numpy(weight.values).view(torch.bfloat16)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())
    assert np.array_equal(weight.dequantize(), expected.float().numpy(), equal_nan=True)


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_again_changes_nothing(kind):
    array = np.random.default_rng(0).normal(size=(6, 96)).astype(np.float32)
    once = quantize(array, kind).dequantize()
    if kind == "int4":  # its greatest number need not be among those that are left
        assert abs(quantize(once, kind).dequantize() - once).max() < 0.01
    else:
        np.testing.assert_allclose(quantize(once, kind).dequantize(), once, rtol=1e-3, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_matrices_are_put_together(kind):
    rng = np.random.default_rng(1)
    parts = [quantize(rng.normal(size=(n, 50)).astype(np.float32), kind) for n in (3, 1, 4)]
    whole = concatenate(parts)
    assert whole.shape == (8, 50)
    expected = np.concatenate([part.dequantize() for part in parts])
    assert np.array_equal(whole.dequantize(), expected)
    index = np.array([7, 0, 0, 3])
    assert np.array_equal(whole.rows(index).dequantize(), expected[index])


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3e38])
def test_what_a_scale_cannot_hold_is_refused(kind, wrong):
    array = np.zeros((2, 64), np.float32)
    array[1, 40] = wrong
    with pytest.raises(ValueError, match=f"numbers that {kind} cannot"):
        quantize(array, kind)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_equal_numbers_are_kept(kind):
    weight = quantize(np.full((1, 40), 0.5, np.float32), kind)
    np.testing.assert_allclose(weight.dequantize(), 0.5, rtol=1e-3)
    assert not quantize(np.zeros((2, 33), np.float32), kind).dequantize().any()


def test_parts_must_fit():
    values = np.zeros((2, 64), np.int8)
    for scales in (None, np.zeros((2, 1), np.float16), np.zeros((2, 2), np.float32)):
        with pytest.raises(AssertionError):
            Weight("int8", values, scales)
