"""Rows rounded on their way into the cache, compiled by numba.

In bfloat16 to the nearest, of two equally near to the even one, as torch does. In int8 a token's
elements of one head share a scale, a float32: their greatest size by 127. So what is stored is off
by at most half a scale, and rows written again are stored as they were. Rows of zeros have the
scale 0; NaN and infinity make the scale NaN, so that they show. This module knows no pages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numba import float32, int8, int64, types

from .compiled import compiled, entry_point, sources
from .tile import Bytes, Elements, Floats, Words

MOST = 127
"""The greatest value; -128 is not used, so that a row and its negative are alike."""


@cache
def store_int8() -> Callable[..., None]:
    """Compile, or load from disk, the function that writes rows as int8.

    Its arguments:
        rows: float32 [T, K, D], any strides.
        slots: int64 [T], where each row goes; all within the cache.
        stored: int8 [slots, K, D].
        scales: float32 [slots, K].
    """
    version = sources()

    def run(rows: Floats, slots: Words, stored: Bytes, scales: Floats) -> None:
        version  # noqa: B018 -- see `entry_point`
        for i in range(len(slots)):
            slot = slots[i]
            for h in range(rows.shape[1]):
                scales[slot, h] = _round_int8(rows[i, h], stored[slot, h])

    return entry_point(
        run, types.Array(float32, 3, "A"), int64[::1], int8[:, :, ::1], float32[:, ::1]
    )


@compiled
def _round_int8(row: Floats, target: Bytes) -> np.float32:
    """Write the elements of a head; their scale."""
    most = np.float32(0)
    for d in range(len(row)):
        size = abs(row[d])
        if not size <= most:  # NaN, too
            most = size
            if not size < np.inf:
                break
    if not most < np.inf:
        return np.float32(np.nan)
    scale = most / np.float32(MOST)
    factor = np.float32(MOST) / most if scale > 0 else np.float32(0)
    for d in range(len(row)):
        target[d] = np.int8(np.rint(row[d] * factor))
    return scale


@compiled
def _store_int8(row: Floats, stored: Bytes, scales: Floats, dim: int) -> None:
    for h in range(len(scales)):
        scales[h] = _round_int8(row[h * dim : (h + 1) * dim], stored[h * dim : (h + 1) * dim])


@compiled
def _store_bfloat16(row: Floats, stored: Elements, scales: Floats, dim: int) -> None:  # noqa: ARG001
    bits = row.view(np.int32)
    for d in range(len(row)):
        near = (bits[d] + 0x7FFF + ((bits[d] >> 16) & 1)) >> 16
        stored[d] = np.int16(near if row[d] == row[d] else 0x7FC0)


@compiled
def _store_float32(row: Floats, stored: Elements, scales: Floats, dim: int) -> None:  # noqa: ARG001
    for d in range(len(row)):
        stored[d] = row[d]


STORES: dict[torch.dtype, Callable[..., None]] = {
    torch.float32: _store_float32,
    torch.bfloat16: _store_bfloat16,
    torch.int8: _store_int8,
}
"""By the cache's dtype, what compiled functions call to write a token of a layer, K heads of D.

Arguments: the row, float32 [K D]; where it goes, as `elements` has it; its scales [K], none where
the dtype has none; D. All are flat and without gaps."""
