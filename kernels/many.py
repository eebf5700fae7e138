"""Pieces with many query vectors, as a prefill or a shared prefix has: bound by arithmetic.

A tile of a head is widened into the core's own cache and is one factor of two products of matrices;
the scores of a query vector are a column, so that nothing is ever added up across a vector. This
module knows no request and no threads.
"""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .emit import LANES
from .parts import HIDDEN, LOWEST, finish
from .simd import ROWS
from .softmax import cap_scores, weigh_columns
from .tile import (
    TILE,
    Elements,
    Floats,
    Ints,
    add_product,
    find_rows,
    prefetch_rows,
    whole_vectors,
    widen_rows,
)


@compiled
def compute_many(  # noqa: PLR0917
    piece: Ints,
    q: Floats,
    k: Elements,
    v: Elements,
    k_scales: Floats,
    v_scales: Floats,
    pages: Ints,
    window: int,
    scale: float,
    cap: float,
    out: Floats,
    parts: Floats,
) -> None:
    """Compute a piece with query vectors in columns; a tile of a head is widened into the cache."""
    head, head_end, kv_begin, kv_end, position = piece[3:8]
    page_size, kv_heads, dim = k.shape[1:]
    group = q.shape[1] // kv_heads
    each = len(q) * group
    columns = whole_vectors(each)
    width_v = whole_vectors(dim)
    row = kv_heads * dim
    keys, values = k.reshape(-1), v.reshape(-1)
    queries = np.zeros((dim, columns), np.float32)
    flat_queries = queries.reshape(-1)
    scores = np.zeros((TILE, columns), np.float32)
    flat_scores = scores.reshape(-1)
    made = np.zeros(TILE * width_v, np.float32)
    made_rows = np.arange(TILE) * width_v
    query_rows = np.arange(dim) * columns
    places = np.arange(columns)
    rows = np.empty(2 * TILE, np.int64)
    scales = np.ones((2, TILE), np.float32)
    scale_rows = np.empty(TILE, np.int64)
    factors = np.empty(columns, np.float32)
    for h in range(head, head_end):
        for i in range(each):
            query = q[i // group, h * group + i % group]
            for d in range(dim):
                queries[d, i] = query[d] * scale
        acc = np.zeros((columns, width_v), np.float32)
        flat_acc = acc.reshape(-1)
        top = np.full(columns, LOWEST)
        total = np.zeros(columns, np.float32)
        for begin in range(kv_begin, kv_end, TILE):
            width = min(TILE, kv_end - begin)
            find_rows(pages, begin, kv_end, 2 * TILE, page_size, row, rows)
            if k_scales.size:
                find_rows(pages, begin, kv_end, TILE, page_size, kv_heads, scale_rows)
                for j in range(width):
                    scales[0, j] = k_scales[scale_rows[j] + h]
                    scales[1, j] = v_scales[scale_rows[j] + h]
            widen_rows(keys, rows, width, h * dim, dim, scales[0], made)
            scores[:] = 0
            for j in range(0, width, ROWS):
                prefetch_rows(keys, rows, TILE + j, TILE + j + ROWS, h * dim, dim)
                prefetch_rows(values, rows, TILE + j, TILE + j + ROWS, h * dim, dim)
                add_product(
                    ROWS, made, made_rows, j, 0, 1,
                    flat_queries, query_rows, 0, 0, dim, flat_scores, j, columns,
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
            for i in range(0, columns, LANES):
                if weigh_columns(flat_scores, i, columns, width, top, i, total, factors):
                    for x in range(i, i + LANES):
                        for d in range(width_v):
                            acc[x, d] *= factors[x]
            widen_rows(values, rows, width, h * dim, dim, scales[1], made)
            add_product(
                columns, flat_scores, places, 0, 0, columns,
                made, made_rows, 0, 0, width, flat_acc, 0, width_v,
            )  # fmt: skip
        finish(piece, h, group, acc[:each], top[:each], total[:each], out, parts)
