"""Blocks of GGUF files against what the gguf package makes of them, bit for bit."""

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st

from boughs.runtime.models.gguf_blocks import read_blocks

KINDS = {"Q4_0": "int4", "Q4_1": "int4", "Q8_0": "int8", "BF16": "bfloat16"}


def theirs(rows, kind):
    return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind])


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.integers(1, 5),
    st.integers(1, 4),
    st.sampled_from([1e-6, 0.03, 1.0, 900.0]),
    st.integers(0, 2**32 - 1),
)
def test_numbers_that_were_quantized(kind, rows, blocks, size, seed):
    array = np.random.default_rng(seed).normal(size=(rows, 32 * blocks)).astype(np.float32) * size
    data = gguf.quants.quantize(array, gguf.GGMLQuantizationType[kind])
    weight = read_blocks(kind, data)
    assert weight.kind == KINDS[kind]
    np.testing.assert_array_equal(weight.dequantize(), theirs(data, kind))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["Q4_0", "Q4_1", "Q8_0"]), st.integers(0, 2**32 - 1))
@example("Q4_0", 23012597)
def test_any_bytes(kind, seed):
    """What a converter writes is one thing, what a file may hold another."""
    size = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}[kind]
    data = np.random.default_rng(seed).integers(0, 256, (3, 2 * size), dtype=np.uint8)
    weight = read_blocks(kind, data)
    with np.errstate(invalid="ignore"):
        expected = theirs(data, kind)
    if weight is None:  # only where a float16 does not hold a scale, or 8 of Q4_0's
        scales = np.ascontiguousarray(data.reshape(-1, size)[:, :2]).view(np.float16)
        most = abs(scales.astype(np.float32)).max(initial=0, where=np.isfinite(scales)) * 8
        assert not np.isfinite(expected).all() or (kind == "Q4_0" and most > 65504)
    else:
        np.testing.assert_array_equal(weight.dequantize(), expected)


@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q5_1", "F16", "F32"])
def test_other_formats_are_worked_out_elsewhere(kind):
    assert read_blocks(kind, np.zeros((2, 18), np.uint8)) is None
