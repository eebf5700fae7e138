"""What a piece leaves: rows of the output, or parts of rows that others have more of.

This module knows no keys and no values.
"""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .tile import Floats, Ints

HIDDEN = np.float32(-1e30)
"""The score of a position that a row does not see."""

LOWEST = np.float32(-1e29)
"""The greatest of no scores. Finite, and so far above HIDDEN that a hidden weight is 0."""


@compiled
def finish(  # noqa: PLR0917
    piece: Ints,
    head: int,
    group: int,
    acc: Floats,
    top: Floats,
    total: Floats,
    out: Floats,
    parts: Floats,
) -> None:
    """Write what a piece found for one KV head: rows of the output, or parts of them."""
    dim = out.shape[2]
    if piece[8] < 0:
        for i in range(len(acc)):
            target = out[piece[1] + i // group, head * group + i % group]
            for d in range(dim):
                target[d] = acc[i, d] / total[i]
    else:
        first = piece[8] + (head - piece[3]) * len(acc)
        for i in range(len(acc)):
            part = parts[first + i]
            for d in range(dim):  # a slice would take seconds to compile
                part[d] = acc[i, d]
            part[dim] = top[i]
            part[dim + 1] = total[i]
