"""The pool's memory against arrays that do the same naively."""

import itertools
import subprocess
import sys
from collections import namedtuple

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from boughs.kernels.kv_cache import KVCache
from boughs.kernels.store import STORES

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


@settings(deadline=None)
@given(st.lists(steps(), max_size=6), st.integers(0, 2**32 - 1))
def test_writes_and_copies_in_int8(drawn, seed):
    """What is read is off by at most half a scale; written again, it is what it was."""
    generator = torch.Generator().manual_seed(seed)
    cache = KVCache(LAYERS, PAGES, ROWS, HEADS, DIM, torch.int8)
    again = KVCache(LAYERS, PAGES, ROWS, HEADS, DIM, torch.int8)
    naive = np.zeros((LAYERS, 2, PAGES, ROWS, HEADS, DIM), np.float32)
    for copies, slots in drawn:
        cache.copy_rows(copies)
        for source, destination, rows in copies:
            for row in range(rows):
                naive[:, :, destination, row] = naive[:, :, source, row].copy()
        for layer in range(LAYERS):
            size = 10.0 ** torch.randint(-6, 6, (len(slots), HEADS + 1, 1), generator=generator)
            wide = torch.randn(len(slots), HEADS + 1, 2 * DIM, generator=generator) * size
            k, v = wide[:, 1:, :DIM], wide[:, 1:, DIM:]  # with gaps, as a model gives them
            cache.write(layer, torch.tensor(slots, dtype=torch.int64), k, v)
            for i, slot in enumerate(slots):
                naive[layer, 0, slot // ROWS, slot % ROWS] = k[i]
                naive[layer, 1, slot // ROWS, slot % ROWS] = v[i]
    every = torch.arange(PAGES)
    for layer in range(LAYERS):
        found = cache.read(layer, every, torch.float64)
        for part, expected in zip(found, naive[layer].reshape(2, -1, HEADS, DIM), strict=True):
            most = np.abs(expected).max(axis=-1, keepdims=True)
            assert (np.abs(part.numpy() - expected) <= most / 127 * 0.5001).all()
        again.write(layer, torch.arange(PAGES * ROWS), *(x.float() for x in found))
        assert torch.equal(again.k(layer), cache.k(layer))
        assert torch.equal(again.v(layer), cache.v(layer))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_int8_cannot_hold_shows(bad):
    cache = KVCache(1, 2, ROWS, 2, DIM, torch.int8)
    k, v = torch.ones(1, 2, DIM), torch.ones(1, 2, DIM)
    k[0, 0, 1], v[0, 1, 2] = bad, bad
    cache.write(0, torch.tensor([5]), k, v)
    keys, values = cache.read(0, torch.tensor([1]), torch.float32)
    assert keys[1].isnan().all(dim=-1).tolist() == [True, False]
    assert values[1].isnan().all(dim=-1).tolist() == [False, True]
    assert not keys[0].any()


@settings(deadline=None, max_examples=200)
@given(st.lists(st.floats(width=32), min_size=HEADS * DIM, max_size=HEADS * DIM))
@example([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.4e38, 1e-40, -0.0])  # halfway, and at the ends
@pytest.mark.parametrize("dtype", STORES, ids=str)
def test_calls_of_a_program_round_as_a_write_does(dtype, numbers):
    row = torch.tensor(numbers).view(1, HEADS, DIM)
    cache = KVCache(1, 1, 1, HEADS, DIM, dtype)
    cache.write(0, torch.tensor([0]), row, row)
    other = KVCache(1, 1, 1, HEADS, DIM, dtype)
    stored, _, scales, _ = other.arrays(0)
    STORES[dtype](row.flatten().numpy(), stored.reshape(-1), scales, DIM)
    assert torch.equal(cache.k_scales(0).nan_to_num(-1.0), other.k_scales(0).nan_to_num(-1.0))
    expected, found = cache.k(0), other.k(0)
    if dtype.is_floating_point:
        assert torch.equal(expected.isnan(), found.isnan())
        there = ~expected.isnan()
        expected, found = expected[there], found[there]
    assert torch.equal(expected, found)


def test_bytes_of_a_page():
    shape = (3, 16, 2, 64)
    sizes = [KVCache.bytes_per_page(*shape, t) for t in (torch.float32, torch.bfloat16, torch.int8)]
    assert sizes == [2 * 3 * 16 * 2 * n for n in (256, 128, 64 + 4)]
    cache = KVCache(3, 5, 16, 2, 64, torch.int8)
    held = (cache.k(0), cache.k_scales(0))
    assert sum(x.untyped_storage().nbytes() for x in held) == 5 * sizes[2]


def test_refusals():
    row = torch.zeros(1, HEADS, DIM)
    for dtype, slot in itertools.product((torch.float32, torch.int8), (-1, PAGES * ROWS)):
        cache = KVCache(1, PAGES, ROWS, HEADS, DIM, dtype)
        with pytest.raises(IndexError):
            cache.write(0, torch.tensor([slot]), row, row)
    with pytest.raises(ValueError, match="CPU alone"):
        KVCache(1, PAGES, ROWS, HEADS, DIM, torch.int8, torch.device("meta"))
    with pytest.raises(ValueError, match="no compiled kernel"):
        KVCache(1, PAGES, ROWS, HEADS, DIM, torch.float64).arrays(0)
    with pytest.raises(ValueError, match="at least 1"):
        KVCache(1, 0, ROWS, HEADS, DIM)
    with pytest.raises(MemoryError, match="MiB"):
        KVCache(1 << 20, 1 << 20, 16, 64, 128)


def test_zero_pages_cost_no_memory():
    # In a process of its own: what a test before has left free would be counted here.
    script = """
import resource, torch
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.store import STORES
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
cache = KVCache(4, 4096, 16, 8, 128)  # 2 GiB
cache.write(3, torch.tensor([1000]), torch.ones(1, 8, 128), torch.ones(1, 8, 128))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) // 1024)
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) < 64
