"""Rows rounded to int8 on their way into the cache, compiled by numba.

A token's elements of one head share a scale, a float32: their greatest size by 127. So what is
stored is off by at most half a scale, and rows written again are stored as they were. Rows of
zeros have the scale 0; NaN and infinity make the scale NaN, so that they show. This module knows
no pages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import float32, int8, int64, types

from .compiled import entry_point, sources
from .tile import Bytes, Floats, Words

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
        heads, dim = rows.shape[1:]
        for i in range(len(slots)):
            slot = slots[i]
            for h in range(heads):
                row, target = rows[i, h], stored[slot, h]
                most = np.float32(0)
                for d in range(dim):
                    size = abs(row[d])
                    if not size <= most:  # NaN, too
                        most = size
                        if not size < np.inf:
                            break
                if not most < np.inf:
                    scales[slot, h] = np.nan
                    continue
                scale = most / np.float32(MOST)
                scales[slot, h] = scale
                factor = np.float32(MOST) / most if scale > 0 else np.float32(0)
                for d in range(dim):
                    target[d] = np.int8(np.rint(row[d] * factor))

    return entry_point(
        run, types.Array(float32, 3, "A"), int64[::1], int8[:, :, ::1], float32[:, ::1]
    )
