"""The arithmetic of the CPU backend: pieces of attention over pages, compiled by numba.

A piece is a range of rows of one request, some KV heads and a range of its KV. The KV is visited
in tiles with the online softmax of FlashAttention (arXiv:2205.14135), in base 2, and read where
it lies. `few` is for the rows of a decode, `many` for those of a prefill. This module knows no
threads, and trusts the pieces that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from numba import float32, int32, int64, types

from .compiled import compiled, entry_point, sources
from .elements import ELEMENTS
from .emit import LANES
from .few import compute_few
from .many import compute_many
from .tile import Elements, Floats, Ints

FEW = 48
"""Query vectors of a KV head up to which `few` is faster; it needs whole vectors in a head."""

EVERYTHING = 1 << 40
"""A window that hides nothing."""


def is_few(vectors: int, dim: int) -> bool:
    """Whether a piece with so many query vectors a KV head takes the form of a decode."""
    return vectors <= FEW and dim % LANES == 0


_is_few = compiled(is_few)  # a plan calls the one above: to call this compiles it


@cache
def run_pieces(dtype: torch.dtype) -> Callable[..., None]:
    """Compile, or load from disk, the function that computes pieces over a cache of this dtype.

    Its arguments:
        pieces: int32 [pieces, 9]: request; first row of q and the one behind the last; first KV
            head and the one behind the last; first position and the one behind the last; position
            of the first row; first part to write, -1 where the piece is all there is of its rows.
        first, end: The pieces to compute.
        q: [T, H, D], any strides.
        k, v: Of all pages, [pages, page_size, K, D], as `elements` has them.
        k_scales, v_scales: Of all pages, flat [pages * page_size * K]; empty where there are none.
        kv_indptr, kv_indices: Of the batch.
        window: How many positions a row sees, its own the last of them.
        scale: Of the scores, times log2 e; where there is a cap, divided by it instead.
        cap: Of the scores, times log2 e; 0 where there is none.
        out: [T, H, D]; is written by whole pieces.
        parts: [parts, D + 2]; is written by others, a part for each query vector, KV head after
            KV head: the sum of weighted values, the greatest score, the sum of weights.
    """
    version = sources()
    stored = ELEMENTS[dtype].stored

    def run(  # noqa: PLR0917 -- numba passes arguments by place
        pieces: Ints,
        first: int,
        end: int,
        q: Floats,
        k: Elements,
        v: Elements,
        k_scales: Floats,
        v_scales: Floats,
        kv_indptr: Ints,
        kv_indices: Ints,
        window: int,
        scale: float,
        cap: float,
        out: Floats,
        parts: Floats,
    ) -> None:
        version  # noqa: B018 -- see `entry_point`
        for index in range(first, end):
            piece = pieces[index]
            pages = kv_indices[kv_indptr[piece[0]] : kv_indptr[piece[0] + 1]]
            rows = q[piece[1] : piece[2]]
            if _is_few(len(rows) * (q.shape[1] // k.shape[2]), q.shape[2]):
                compute_few(
                    piece, rows, k, v, k_scales, v_scales, pages, window, scale, cap, out, parts
                )
            else:
                compute_many(
                    piece, rows, k, v, k_scales, v_scales, pages, window, scale, cap, out, parts
                )

    return entry_point(
        run,
        int32[:, ::1],
        int64,
        int64,
        types.Array(float32, 3, "A"),
        stored[:, :, :, ::1],
        stored[:, :, :, ::1],
        float32[::1],
        float32[::1],
        int32[::1],
        int32[::1],
        int64,
        float32,
        float32,
        float32[:, :, ::1],
        float32[:, ::1],
    )
