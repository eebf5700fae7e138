"""The arithmetic of the CPU backend: attention of one piece of work, compiled by numba.

A piece is a range of rows of one request against a range of its KV, all heads. KV is visited in
tiles of `TILE` positions, with the online softmax of FlashAttention (https://arxiv.org/abs/2205.14135)
in base 2, and read where it lies; only tiles that many rows share are brought into another order
first. Every loop that matters runs over neighbouring floats, so that LLVM makes vectors of it.
This module knows no threads, and trusts the pieces that it is given.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

TILE = 64
"""Positions of KV that are scored at once."""

FAR = np.float32(-1e30)
"""The maximum of no scores: finite, so that differences of two of them are numbers."""

_FAST = {"reassoc", "contract", "nsz", "arcp", "afn"}  # not nnan and ninf: NaN must stay NaN

_OPTIONS = {"nogil": True, "fastmath": _FAST, "error_model": "numpy", "cache": True}


@njit(**_OPTIONS)
def attend(  # noqa: PLR0917 -- numba takes no keywords
    q: Floats,
    k: Floats,
    v: Floats,
    pages: Ints,
    start: int,
    kv_begin: int,
    kv_end: int,
    scale: float,
    acc: Floats,
    top: Floats,
    total: Floats,
    scores: Floats,
) -> None:
    """Softmax parts of rows against the positions kv_begin to kv_end.

    Args:
        q: [n, H, D] float32, any strides.
        k: [pages, page_size, K, D] float32, without gaps.
        v: As k.
        pages: int32, the request's page table.
        start: Position of the first row.
        kv_begin: First position to see.
        kv_end: Position behind the last one.
        scale: Of the scores, times the logarithm of e to base 2.
        acc: [K, n G, D], is set to the sum of weighted values.
        top: [K, n G], is set to the greatest score (base 2).
        total: [K, n G], is set to the sum of weights.
        scores: [n G, TILE] scratch.
    """
    n = q.shape[0]
    kv_heads = k.shape[2]
    dim = k.shape[3]
    group = q.shape[1] // kv_heads
    page_size = k.shape[1]
    qs = np.empty((kv_heads, n * group, dim), np.float32)
    for i in range(n):
        for h in range(kv_heads):
            for g in range(group):
                for d in range(dim):
                    qs[h, i * group + g, d] = q[i, h * group + g, d] * scale
    acc[:] = 0
    top[:] = FAR
    total[:] = 0
    for t0 in range(kv_begin, kv_end, TILE):
        t1 = min(t0 + TILE, kv_end)
        for h in range(kv_heads):
            j0 = t0
            while j0 < t1:
                page = pages[j0 // page_size]
                row = j0 % page_size
                run = min(page_size - row, t1 - j0)
                keys = k[page, row : row + run, h]
                for j in range(run):
                    for i in range(n * group):
                        s = np.float32(0)
                        for d in range(dim):
                            s += qs[h, i, d] * keys[j, d]
                        scores[i, j0 - t0 + j] = s
                j0 += run
            for i in range(n * group):
                seen = min(t1, start + i // group + 1) - t0
                if seen <= 0:
                    for j in range(t1 - t0):
                        scores[i, j] = 0
                    continue
                m = top[h, i]
                for j in range(seen):
                    m = max(m, scores[i, j])
                c = np.exp2(top[h, i] - m)
                top[h, i] = m
                s = np.float32(0)
                for j in range(seen):
                    scores[i, j] = np.exp2(scores[i, j] - m)
                    s += scores[i, j]
                for j in range(seen, t1 - t0):
                    scores[i, j] = 0
                total[h, i] = total[h, i] * c + s
                for d in range(dim):
                    acc[h, i, d] *= c
            j0 = t0
            while j0 < t1:
                page = pages[j0 // page_size]
                row = j0 % page_size
                run = min(page_size - row, t1 - j0)
                values = v[page, row : row + run, h]
                for i in range(n * group):
                    for j in range(run):
                        p = scores[i, j0 - t0 + j]
                        for d in range(dim):
                            acc[h, i, d] += p * values[j, d]
                j0 += run
