"""Pieces with few query vectors, as a decode has: bound by reading, so that each byte is read once.

Keys and values are widened in registers, for all query vectors of a head at once. A tile of
positions is read as STREAMS runs side by side, keys first and then values: pages lie anywhere, and
a core guesses what comes next only within one, so it waits at the beginning of each that it reads
alone. Of several at once it guesses enough to wait little, and is asked for the rest. This module
knows no request and no threads.
"""

from __future__ import annotations

import numpy as np

from .compiled import compiled
from .elements import prefetch_streams
from .emit import LANES
from .parts import HIDDEN, LOWEST, finish
from .simd import ROWS, across, dot_rows
from .softmax import cap_scores, hide_scores, weigh_row
from .tile import (
    STREAMS,
    Elements,
    Floats,
    Ints,
    Words,
    add_product,
    find_streams,
)

SPAN = 128
"""Positions of a tile: with pages of 16, a page for each of the STREAMS."""

AHEAD = 1024
"""Bytes of each run that the memory is asked for before they are read."""


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
    """Compute a piece with query vectors in rows; see `_score` for the order of positions."""
    head, head_end, kv_begin, kv_end, position = piece[3:8]
    page_size, kv_heads, dim = k.shape[1:]
    group = q.shape[1] // kv_heads
    heads = head_end - head
    each = len(q) * group  # query vectors of a KV head
    count = each * heads
    keys, values = k.reshape(-1), v.reshape(-1)
    row = kv_heads * dim
    rows = np.empty(2 * SPAN, np.int64)  # of this tile and of the next, which take turns
    queries = np.empty(count * dim, np.float32)
    for i in range(count):
        query = q[i % each // group, (head + i // each) * group + i % group]
        for d in range(dim):
            queries[i * dim + d] = query[d] * scale
    scores = np.empty(count * SPAN, np.float32)
    score_rows = np.arange(count) * SPAN
    acc = np.zeros((count, dim), np.float32)
    flat_acc = acc.reshape(-1)
    top = np.full(count, LOWEST)
    total = np.zeros(count, np.float32)
    scales = np.empty((2, heads * SPAN), np.float32)
    scale_rows = np.empty(SPAN, np.int64)
    now = 0
    size = find_streams(pages, kv_begin, min(SPAN, kv_end - kv_begin), page_size, row, rows, now)
    for begin in range(kv_begin, kv_end, SPAN):
        after = begin + SPAN
        next_size = 0
        if after < kv_end:
            next_size = find_streams(
                pages, after, min(SPAN, kv_end - after), page_size, row, rows, SPAN - now
            )
        width = min(SPAN, kv_end - begin)
        _score(queries, keys, values, rows, now, size, head, heads, each, dim, scores)
        if k_scales.size:
            find_streams(pages, begin, width, page_size, kv_heads, scale_rows, 0)
            for h in range(heads):
                for j in range(size):
                    scales[0, h * SPAN + j] = k_scales[scale_rows[j] + head + h]
                    scales[1, h * SPAN + j] = v_scales[scale_rows[j] + head + h]
            _scale_rows(scores, each, size, scales[0])
        seen = position + 1 - begin  # positions of the tile and before that the first row may see
        _weigh(scores, size, width, seen, window, each, group, cap, top, total, flat_acc)
        if v_scales.size:
            _scale_rows(scores, each, size, scales[1])
        _add(
            scores, score_rows, keys, values, rows, now, size, next_size, head, heads, each, dim,
            flat_acc,
        )  # fmt: skip
        now, size = SPAN - now, next_size
    for h in range(heads):
        mine = slice(h * each, (h + 1) * each)
        finish(piece, head + h, group, acc[mine], top[mine], total[mine], out, parts)


@compiled
def _score(  # noqa: PLR0917
    queries: Floats,
    keys: Elements,
    values: Elements,
    rows: Words,
    now: int,
    size: int,
    head: int,
    heads: int,
    each: int,
    dim: int,
    scores: Floats,
) -> None:
    """Set the products of all query vectors with the keys of a tile, one of each run by turn.

    Behind the last keys, it is the first values that are asked for.
    """
    ahead = max(1, AHEAD // (dim * keys.itemsize))
    far, far_head = ahead // heads * STREAMS, head + ahead % heads
    for j in range(0, size, STREAMS):
        for h in range(heads):
            if far < size:
                prefetch_streams(keys, rows, now + far, far_head * dim, dim, STREAMS)
            elif far < 2 * size:
                prefetch_streams(values, rows, now + far - size, far_head * dim, dim, STREAMS)
            far_head += 1
            if far_head == head + heads:
                far, far_head = far + STREAMS, head
            i, end = h * each, (h + 1) * each
            while i < end:
                height = min(ROWS, end - i)
                for at in range(j, j + STREAMS, across(height)):
                    dot_rows(
                        height, queries, i * dim, keys, rows, now + at, (head + h) * dim, dim,
                        scores, i * SPAN + at, SPAN,
                    )  # fmt: skip
                i += height


@compiled
def _weigh(  # noqa: PLR0917
    scores: Floats,
    size: int,
    width: int,
    seen: int,
    window: int,
    each: int,
    group: int,
    cap: float,
    top: Floats,
    total: Floats,
    acc: Floats,
) -> None:
    """Turn the scores of a tile of `width` positions into weights; each row sees one more."""
    count = len(top)
    dim = len(acc) // count
    length = size // STREAMS
    for i in range(count):
        end = seen + i % each // group
        first, end = max(0, end - window), min(width, end)
        for x in range(0, size, LANES):
            if cap > 0:
                cap_scores(scores, i * SPAN + x, cap)
            if first > 0 or end < size:
                hide_scores(scores, i * SPAN + x, x // STREAMS, length, first, end, HIDDEN)
        factor = weigh_row(scores, i * SPAN, size, top, total, i)
        if factor != 1:
            for d in range(i * dim, (i + 1) * dim):
                acc[d] *= factor


@compiled
def _scale_rows(scores: Floats, each: int, size: int, scales: Floats) -> None:
    """Multiply the scores or weights of a tile, SPAN a vector, with the scales of its head."""
    for i in range(len(scores) // SPAN):
        for j in range(size):
            scores[i * SPAN + j] *= scales[i // each * SPAN + j]


@compiled
def _add(  # noqa: PLR0917
    weights: Floats,
    weight_rows: Words,
    keys: Elements,
    values: Elements,
    rows: Words,
    now: int,
    size: int,
    next_size: int,
    head: int,
    heads: int,
    each: int,
    dim: int,
    acc: Floats,
) -> None:
    """Add the weighted values of a tile, as `_score` goes; behind them are the next keys."""
    ahead = max(1, AHEAD // (dim * keys.itemsize))
    far, far_head = ahead // heads * STREAMS, head + ahead % heads
    for j in range(0, size, STREAMS):
        for h in range(heads):
            if far < size:
                prefetch_streams(values, rows, now + far, far_head * dim, dim, STREAMS)
            elif far - size < next_size:
                prefetch_streams(keys, rows, SPAN - now + far - size, far_head * dim, dim, STREAMS)
            far_head += 1
            if far_head == head + heads:
                far, far_head = far + STREAMS, head
            add_product(
                each, weights, weight_rows, h * each, j, 1,
                values, rows, now + j, (head + h) * dim, STREAMS, acc, h * each, dim,
            )  # fmt: skip
