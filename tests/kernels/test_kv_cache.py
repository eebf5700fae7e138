"""The pool's memory against arrays that do the same naively."""

import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.kernels.kv_cache import KVCache

Order = namedtuple("Order", ["source", "destination", "rows"])

LAYERS, PAGES, ROWS, HEADS, DIM = 2, 5, 4, 2, 3


def test_shape_and_strides():
    cache = KVCache(LAYERS, PAGES, ROWS, HEADS, DIM)
    for layer in range(LAYERS):
        k, v = cache.k(layer), cache.v(layer)
        assert k.shape == v.shape == (PAGES, ROWS, HEADS, DIM)
        assert k.stride() == v.stride()
        assert k.is_contiguous()
        assert k.untyped_storage().data_ptr() == v.untyped_storage().data_ptr()
        assert not k.any()
        assert not v.any()
    assert cache.k(0).untyped_storage().nbytes() == PAGES * KVCache.bytes_per_page(
        LAYERS, ROWS, HEADS, DIM, torch.float32
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    cache = KVCache(1, 2, 4, 1, 8, dtype)
    cache.write(
        0, torch.tensor([5]), torch.ones(1, 1, 8, dtype=dtype), torch.ones(1, 1, 8).to(dtype)
    )
    assert cache.k(0).dtype == dtype
    assert cache.k(0)[1, 1].sum() == 8
    assert cache.k(0).sum() == 8


@st.composite
def steps(draw):
    page = st.integers(0, PAGES - 1)
    copies = draw(st.lists(st.builds(Order, page, page, st.integers(0, ROWS)), max_size=3))
    slots = draw(st.lists(st.integers(0, PAGES * ROWS - 1), unique=True, max_size=6))
    return copies, slots


@settings(deadline=None)
@given(st.lists(steps(), max_size=6), st.integers(0, 2**32 - 1))
def test_writes_and_copies(drawn, seed):
    generator = torch.Generator().manual_seed(seed)
    cache = KVCache(LAYERS, PAGES, ROWS, HEADS, DIM)
    naive = np.zeros((LAYERS, 2, PAGES, ROWS, HEADS, DIM), np.float32)
    for copies, slots in drawn:
        cache.copy_rows(copies)
        for source, destination, rows in copies:
            for row in range(rows):
                naive[:, :, destination, row] = naive[:, :, source, row].copy()
        for layer in range(LAYERS):
            wide = torch.randn(len(slots), HEADS + 1, 2 * DIM, generator=generator)
            k, v = wide[:, 1:, :DIM], wide[:, 1:, DIM:]  # with gaps, as a model gives them
            cache.write(layer, torch.tensor(slots, dtype=torch.int64), k, v)
            for i, slot in enumerate(slots):
                naive[layer, 0, slot // ROWS, slot % ROWS] = k[i]
                naive[layer, 1, slot // ROWS, slot % ROWS] = v[i]
    for layer in range(LAYERS):
        assert np.array_equal(cache.k(layer), naive[layer, 0])
        assert np.array_equal(cache.v(layer), naive[layer, 1])


def test_refusals():
    cache = KVCache(1, PAGES, ROWS, HEADS, DIM)
    row = torch.zeros(1, HEADS, DIM)
    for slot in (-1, PAGES * ROWS):
        with pytest.raises(IndexError):
            cache.write(0, torch.tensor([slot]), row, row)
    with pytest.raises(ValueError, match="at least 1"):
        KVCache(1, 0, ROWS, HEADS, DIM)
    with pytest.raises(MemoryError, match="MiB"):
        KVCache(1 << 20, 1 << 20, 16, 64, 128)


def test_zero_pages_cost_no_memory():
    # In a process of its own: what a test before has left free would be counted here.
    script = """
import resource, torch
from boughs.kernels.kv_cache import KVCache
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
cache = KVCache(4, 4096, 16, 8, 128)  # 2 GiB
cache.write(3, torch.tensor([1000]), torch.ones(1, 8, 128), torch.ones(1, 8, 128))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) // 1024)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 64
