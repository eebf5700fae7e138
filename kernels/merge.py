"""Attention of rows whose KV was split among pieces: the parts merged by their weights.

The arithmetic is that of FlashDecoding. This module knows neither pages nor threads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import float32, int32, int64

from .compiled import entry_point, sources
from .parts import LOWEST
from .tile import Floats, Ints


@cache
def merge_parts() -> Callable[..., None]:
    """Compile, or load from disk, the function that merges the parts of rows that were split.

    Its arguments:
        merges: int32 [merges, 6]: first row and the one behind the last; first KV head and the
            one behind the last; first source and the one behind the last.
        sources: int32 [sources, 4]: of a piece that wrote parts of these rows (and of others,
            maybe), its first row, its number of rows, its first KV head and its first part.
        parts: As in `run_pieces`.
        group: Query heads a KV head.
        out: [T, H, D].
    """
    version = sources()

    def run(merges: Ints, sources: Ints, parts: Floats, group: int, out: Floats) -> None:
        version  # noqa: B018 -- see `entry_point`
        dim = out.shape[2]
        for row, row_end, head, head_end, begin, end in merges:
            places = np.empty(end - begin, np.int64)
            for r in range(row, row_end):
                for i in range(head * group, head_end * group):
                    top = LOWEST
                    for p in range(end - begin):
                        first, rows, first_head, part = sources[begin + p]
                        vector = ((i // group - first_head) * rows + r - first) * group + i % group
                        places[p] = part + vector
                        top = max(top, parts[part + vector, dim])
                    target = out[r, i]
                    target[:] = 0
                    total = np.float32(0)
                    for place in places:
                        mine = parts[place]
                        weight = np.exp2(mine[dim] - top)
                        total += weight * mine[dim + 1]
                        for d in range(dim):
                            target[d] += weight * mine[d]
                    for d in range(dim):
                        target[d] /= total

    return entry_point(
        run, int32[:, ::1], int32[:, ::1], float32[:, ::1], int64, float32[:, :, ::1]
    )
