"""Attention of rows whose KV was split among pieces: the parts merged by their weights.

The arithmetic is that of FlashDecoding. This module knows neither pages nor threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import float32, int32, int64

from .compiled import entry_point, sources
from .paged import LOWEST
from .tile import Floats, Ints


@cache
def merge_parts() -> Callable[..., None]:
    """Compile, or load from disk, the function that merges the parts of rows that were split.

    Its arguments:
        merges: int32 [merges, 6]: first row and the one behind the last; first KV head and the
            one behind the last; first part; how many pieces wrote parts of these rows.
        parts: As in `run_pieces`; the pieces' parts follow one another.
        group: Query heads a KV head.
        out: [T, H, D].
    """
    version = sources()

    def run(merges: Ints, parts: Floats, group: int, out: Floats) -> None:
        version  # noqa: B018 -- see `entry_point`
        dim = out.shape[2]
        for row, row_end, head, head_end, part, pieces in merges:
            each = (row_end - row) * group
            count = each * (head_end - head)
            for i in range(count):
                mine = parts[part + i : part + pieces * count : count]
                top = LOWEST
                for p in range(pieces):
                    top = max(top, mine[p, dim])
                target = out[row + i % each // group, (head + i // each) * group + i % group]
                target[:] = 0
                total = np.float32(0)
                for p in range(pieces):
                    weight = np.exp2(mine[p, dim] - top)
                    total += weight * mine[p, dim + 1]
                    for d in range(dim):
                        target[d] += weight * mine[p, d]
                for d in range(dim):
                    target[d] /= total

    return entry_point(run, int32[:, ::1], float32[:, ::1], int64, float32[:, :, ::1])
