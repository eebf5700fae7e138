"""Pieces with few query vectors, as a decode has: bound by reading, so that each byte is read once.

Keys and values are widened in registers, for all query vectors of a head at once, in the order of
memory. This module knows no request and no threads.
"""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .emit import LANES
from .parts import HIDDEN, LOWEST, finish
from .simd import ROWS, across, dot_rows
from .softmax import cap_scores, weigh_row
from .tile import TILE, Elements, Floats, Ints, Words, add_product, find_rows, prefetch_rows

AHEAD = 32
"""Positions that `_few` asks the memory for before it reads them. Requests' pages lie anywhere, so
that a CPU's own guess at what comes next fails at every page."""


@compiled
def compute_few(  # noqa: PLR0917
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
    """Compute a piece with query vectors in rows. Heads take turns every LANES positions."""
    head, head_end, kv_begin, kv_end, position = piece[3:8]
    page_size, kv_heads, dim = k.shape[1:]
    group = q.shape[1] // kv_heads
    each = len(q) * group  # query vectors of a KV head
    count = each * (head_end - head)
    keys, values = k.reshape(-1), v.reshape(-1)
    row = kv_heads * dim
    rows = np.empty(TILE + AHEAD, np.int64)
    queries = np.empty(count * dim, np.float32)
    for i in range(count):
        query = q[i % each // group, (head + i // each) * group + i % group]
        for d in range(dim):
            queries[i * dim + d] = query[d] * scale
    scores = np.zeros(count * TILE, np.float32)
    score_rows = np.arange(count) * TILE
    acc = np.zeros((count, dim), np.float32)
    flat_acc = acc.reshape(-1)
    top = np.full(count, LOWEST)
    total = np.zeros(count, np.float32)
    scales = np.empty((2, (head_end - head) * TILE), np.float32)
    scale_rows = np.empty(TILE, np.int64)
    for begin in range(kv_begin, kv_end, TILE):
        width = min(TILE, kv_end - begin)
        find_rows(pages, begin, kv_end, TILE + AHEAD, page_size, row, rows)
        _score(queries, keys, rows, head, head_end, each, width, dim, scores)
        if k_scales.size:
            find_rows(pages, begin, kv_end, TILE, page_size, kv_heads, scale_rows)
            for h in range(head_end - head):
                for j in range(TILE):
                    scales[0, h * TILE + j] = k_scales[scale_rows[j] + head + h]
                    scales[1, h * TILE + j] = v_scales[scale_rows[j] + head + h]
            _scale_rows(scores, each, scales[0])
        if cap > 0:
            for i in range(0, count * TILE, LANES):
                cap_scores(scores, i, cap)
        for i in range(count):
            after = position + i % each // group + 1 - begin  # where what the row sees ends
            for j in range(min(width, after - window)):
                scores[i * TILE + j] = HIDDEN
            for j in range(max(0, min(width, after)), TILE):
                scores[i * TILE + j] = HIDDEN
            factor = weigh_row(scores, i * TILE, top, total, i)
            if factor != 1:
                for d in range(dim):
                    acc[i, d] *= factor
        if v_scales.size:
            _scale_rows(scores, each, scales[1])
        _add(scores, score_rows, values, rows, head, head_end, each, width, dim, flat_acc)
    for h in range(head_end - head):
        mine = slice(h * each, (h + 1) * each)
        finish(piece, head + h, group, acc[mine], top[mine], total[mine], out, parts)


@compiled
def _score(  # noqa: PLR0917
    queries: Floats,
    keys: Elements,
    rows: Words,
    head: int,
    head_end: int,
    each: int,
    width: int,
    dim: int,
    scores: Floats,
) -> None:
    """Set the products of all query vectors with the keys of a tile, in the order of memory."""
    for j in range(0, width, LANES):
        for h in range(head, head_end):
            prefetch_rows(keys, rows, j + AHEAD, j + AHEAD + LANES, h * dim, dim)
            i, end = (h - head) * each, (h - head + 1) * each
            while i < end:
                height = min(ROWS, end - i)
                for at in range(j, j + LANES, across(height)):
                    dot_rows(
                        height, queries, i * dim, keys, rows, at, h * dim, dim,
                        scores, i * TILE + at, TILE,
                    )  # fmt: skip
                i += height


@compiled
def _scale_rows(scores: Floats, each: int, scales: Floats) -> None:
    """Multiply the scores or weights of a tile, TILE a vector, with the TILE scales of its head."""
    for i in range(len(scores) // TILE):
        for j in range(TILE):
            scores[i * TILE + j] *= scales[i // each * TILE + j]


@compiled
def _add(  # noqa: PLR0917
    weights: Floats,
    weight_rows: Words,
    values: Elements,
    rows: Words,
    head: int,
    head_end: int,
    each: int,
    width: int,
    dim: int,
    acc: Floats,
) -> None:
    """Add the weighted values of a tile, in the order of memory."""
    for j in range(0, width, LANES):
        for h in range(head, head_end):
            prefetch_rows(values, rows, j + AHEAD, j + AHEAD + LANES, h * dim, dim)
            start = (h - head) * each
            add_product(
                each, weights, weight_rows, start, j, 1,
                values, rows, j, h * dim, min(LANES, width - j), acc, start, dim,
            )  # fmt: skip
