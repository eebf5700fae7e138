"""The arithmetic of the CPU backend: pieces of attention over pages, compiled by numba.

A piece is a range of rows of one request, some KV heads and a range of its KV. The KV is visited
in tiles with the online softmax of FlashAttention (arXiv:2205.14135), in base 2, and read where
it lies. `_few` is for the rows of a decode and reads each byte once, in the order of memory;
`_many` is for the rows of a prefill and treats a tile as two products of matrices. This module
knows no threads, and trusts the pieces that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numba import float32, int32, int64, types

from .compiled import compiled, entry_point, sources
from .emit import LANES
from .simd import ROWS, cap_scores, dot_16, weigh_column, weigh_row
from .tile import (
    TILE,
    Floats,
    Ints,
    add_product,
    find_rows,
    prefetch_rows,
    round_up,
    whole_vectors,
)

FEW = 24
"""Query vectors of a KV head up to which `_few` is faster; it needs whole vectors in a head."""

HIDDEN = np.float32(-1e30)
"""The score of a position that a row does not see."""

LOWEST = np.float32(-1e29)
"""The greatest of no scores. Finite, and so far above HIDDEN that a hidden weight is 0."""


EVERYTHING = 1 << 40
"""A window that hides nothing."""


@cache
def run_pieces() -> Callable[..., None]:
    """Compile, or load from disk, the function that computes pieces.

    Its arguments:
        pieces: int32 [pieces, 9]: request; first row of q and the one behind the last; first KV
            head and the one behind the last; first position and the one behind the last; position
            of the first row; first part to write, -1 where the piece is all there is of its rows.
        first, end: The pieces to compute.
        q: [T, H, D], any strides.
        k, v: Of all pages, [pages, page_size, K, D].
        kv_indptr, kv_indices: Of the batch.
        window: How many positions a row sees, its own the last of them.
        scale: Of the scores, times log2 e; where there is a cap, divided by it instead.
        cap: Of the scores, times log2 e; 0 where there is none.
        out: [T, H, D]; is written by whole pieces.
        parts: [parts, D + 2]; is written by others, a part for each query vector, KV head after
            KV head: the sum of weighted values, the greatest score, the sum of weights.
    """
    version = sources()

    def run(  # noqa: PLR0917 -- numba passes arguments by place
        pieces: Ints,
        first: int,
        end: int,
        q: Floats,
        k: Floats,
        v: Floats,
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
            if is_few(len(rows) * (q.shape[1] // k.shape[2]), q.shape[2]):
                _few(piece, rows, k, v, pages, window, scale, cap, out, parts)
            else:
                _many(piece, rows, k, v, pages, window, scale, cap, out, parts)

    return entry_point(
        run,
        int32[:, ::1],
        int64,
        int64,
        types.Array(float32, 3, "A"),
        float32[:, :, :, ::1],
        float32[:, :, :, ::1],
        int32[::1],
        int32[::1],
        int64,
        float32,
        float32,
        float32[:, :, ::1],
        float32[:, ::1],
    )


@compiled
def is_few(vectors: int, dim: int) -> bool:
    """Whether a piece with so many query vectors a KV head takes the form of a decode."""
    return vectors <= FEW and dim % LANES == 0


@compiled
def _few(  # noqa: PLR0917
    piece: Ints,
    q: Floats,
    k: Floats,
    v: Floats,
    pages: Ints,
    window: int,
    scale: float,
    cap: float,
    out: Floats,
    parts: Floats,
) -> None:
    """Compute a piece with query vectors in rows. Heads take turns every LANES positions."""
    head, head_end, kv_begin, kv_end, position = piece[3:8]
    page_size, kv_heads, dim = k.shape[1:]
    group = q.shape[1] // kv_heads
    each = len(q) * group  # query vectors of a KV head
    count = each * (head_end - head)
    keys, values = k.reshape(-1), v.reshape(-1)
    offsets = np.empty(TILE, np.int64)
    ahead = np.empty(TILE, np.int64)
    rest = min(TILE, kv_end - kv_begin)
    find_rows(pages, kv_begin, rest, page_size, kv_heads * dim, ahead)
    prefetch_rows(keys, ahead, 0, rest, kv_heads * dim)
    prefetch_rows(values, ahead, 0, rest, kv_heads * dim)
    queries = np.empty(count * dim, np.float32)
    for i in range(count):
        query = q[i % each // group, (head + i // each) * group + i % group]
        for d in range(dim):
            queries[i * dim + d] = query[d] * scale
    scores = np.zeros(count * TILE, np.float32)
    score_rows = np.arange(count) * TILE
    acc = np.zeros((count, dim), np.float32)
    top = np.full(count, LOWEST)
    total = np.zeros(count, np.float32)
    for begin in range(kv_begin, kv_end, TILE):
        width = min(TILE, kv_end - begin)
        offsets, ahead = ahead, offsets
        rest = min(TILE, kv_end - begin - TILE)
        if rest > 0:
            find_rows(pages, begin + TILE, rest, page_size, kv_heads * dim, ahead)
        for j in range(0, width, LANES):
            prefetch_rows(keys, ahead, j, min(rest, j + LANES), kv_heads * dim)
            prefetch_rows(values, ahead, j, min(rest, j + LANES), kv_heads * dim)
            for i in range(count):
                shift = (head + i // each) * dim
                dot_16(queries, i * dim, keys, offsets, j, shift, dim, scores, i * TILE + j)
        if cap > 0:
            for i in range(0, count * TILE, LANES):
                cap_scores(scores, i, cap)
        for i in range(count):
            after = position + i % each // group + 1 - begin  # where what the row sees ends
            for j in range(min(width, after - window)):
                scores[i * TILE + j] = HIDDEN
            seen = max(0, min(width, after))
            for j in range(seen, TILE):
                scores[i * TILE + j] = HIDDEN
            factor = weigh_row(scores, i * TILE, top, total, i)
            for d in range(dim):
                acc[i, d] *= factor
        for h in range(head_end - head):
            start = h * each
            add_product(
                each, scores, score_rows, start, 0, 1,
                values, offsets, 0, (head + h) * dim, width, acc, start,
            )  # fmt: skip
    for h in range(head_end - head):
        mine = slice(h * each, (h + 1) * each)
        _finish(piece, head + h, group, acc[mine], top[mine], total[mine], out, parts)


@compiled
def _many(  # noqa: PLR0917
    piece: Ints,
    q: Floats,
    k: Floats,
    v: Floats,
    pages: Ints,
    window: int,
    scale: float,
    cap: float,
    out: Floats,
    parts: Floats,
) -> None:
    """Compute a piece with query vectors in columns, so that K is read without turning it."""
    head, head_end, kv_begin, kv_end, position = piece[3:8]
    page_size, kv_heads, dim = k.shape[1:]
    group = q.shape[1] // kv_heads
    each = len(q) * group
    columns = whole_vectors(each)
    width_v = whole_vectors(dim)
    keys, all_values = k.reshape(-1), v.reshape(-1)
    queries = np.zeros((dim, columns), np.float32)
    scores = np.zeros((TILE, columns), np.float32)
    flat_scores = scores.reshape(-1)
    values = np.zeros(TILE * width_v, np.float32)
    query_rows = np.arange(dim) * columns
    value_rows = np.arange(TILE) * width_v
    places = np.arange(columns)
    offsets = np.empty(TILE, np.int64)
    for h in range(head, head_end):
        for i in range(each):
            query = q[i // group, h * group + i % group]
            for d in range(dim):
                queries[d, i] = query[d] * scale
        acc = np.zeros((columns, width_v), np.float32)
        top = np.full(columns, LOWEST)
        total = np.zeros(columns, np.float32)
        for begin in range(kv_begin, kv_end, TILE):
            width = min(TILE, kv_end - begin)
            find_rows(pages, begin, width, page_size, kv_heads * dim, offsets)
            scores[:] = 0
            add_product(
                round_up(width, ROWS), keys, offsets, 0, h * dim, 1,
                queries.reshape(-1), query_rows, 0, 0, dim, scores, 0,
            )  # fmt: skip
            if cap > 0:
                for i in range(0, width * columns, LANES):
                    cap_scores(flat_scores, i, cap)
            if position < begin + width - 1:
                for j in range(width):
                    hidden = min(each, max(0, (begin + j - position) * group))
                    scores[j, :hidden] = HIDDEN
            if begin + window < position + len(q):
                for j in range(width):
                    first = max(0, (begin + j + window - position) * group)
                    scores[j, first:each] = HIDDEN
            _weigh_columns(scores, width, top, total, acc)
            for j in range(width):
                start = offsets[j] + h * dim
                for d in range(dim):
                    values[j * width_v + d] = all_values[start + d]
            add_product(
                columns, flat_scores, places, 0, 0, columns,
                values, value_rows, 0, 0, width, acc, 0,
            )  # fmt: skip
        _finish(piece, h, group, acc[:each], top[:each], total[:each], out, parts)


@compiled
def _weigh_columns(scores: Floats, width: int, tops: Floats, totals: Floats, acc: Floats) -> None:
    """Turn `width` scores of each query vector, a column, into weights."""
    columns = scores.shape[1]
    flat = scores.reshape(-1)
    old = tops.copy()
    for j in range(width):
        row = scores[j]
        for i in range(columns):
            tops[i] = max(tops[i], row[i])
    for i in range(columns):
        if tops[i] != old[i]:
            factor = np.exp2(old[i] - tops[i])
            totals[i] *= factor
            acc_row = acc[i]
            for d in range(len(acc_row)):
                acc_row[d] *= factor
    for j in range(width):
        for i in range(0, columns, LANES):
            weigh_column(flat, j * columns + i, tops, i, totals)


@compiled
def _finish(  # noqa: PLR0917
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
