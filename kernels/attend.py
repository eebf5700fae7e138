"""Attention of the CPU backend as calls of a program.

What a step's pieces and merges are is told by a record of words, one for each window that layers
have. This module knows no layer but by the place of its keys and values.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from .batch import AttentionBatch
from .calls import (
    Words,
    callable_by_address,
    elements_at,
    floats_at,
    heads_at,
    int_rows_at,
    ints_at,
    rows_at,
    words_at,
)
from .compiled import Callee, compiled, sources
from .elements import ELEMENTS
from .merge import merge_parts
from .paged import run_pieces
from .row_calls import (
    KEY_SCALES,
    KEYS,
    MEMORY,
    PLACES,
    PLANE,
    ROWS,
    SCALE_PLANE,
    VALUE_SCALES,
    VALUES,
)
from .weight import Floats

(
    PIECES, NUM_PIECES, STARTS, WINDOW, KV_INDPTR, NUM_INDPTR, KV_INDICES, NUM_INDICES,
    PARTS, NUM_PARTS, MERGES, NUM_MERGES, SOURCES, NUM_SOURCES, SCALE, _, ROW_ORDER,
    NUM_PAGES, PAGE_SIZE, WORDS,
) = range(20)  # fmt: skip
"""Words of a record: addresses and lengths of a step's arrays. STARTS: the first piece of each task
and the end of the last; SCALE: two floats, scale and cap; PLACES: where each row stands among those
that the pieces are about, ROW_ORDER: the opposite; both 0 where rows keep their order."""


class Cut(Protocol):
    """A batch's attention, cut for the layers with one window; as `cut.Plan` has it, in arrays."""

    window: int
    pieces: NDArray[np.int32]
    merges: NDArray[np.int32]
    sources: NDArray[np.int32]
    rows: NDArray[np.int64] | None
    parts: NDArray[np.float32]
    tasks: list[tuple[int, int]]


class Record:
    """What the calls of one window need to know of a step.

    Args:
        cut: The pieces.
        batch: The step's.
        scale: Scale and cap, as `paged.run_pieces` takes them.
        num_pages: Of the cache.

    Attributes:
        address: Of the words; valid while this object lives.
        tasks: How many tasks `attend`, `merge` and `reorder` have.
    """

    def __init__(
        self, cut: Cut, batch: AttentionBatch, scale: tuple[float, float], num_pages: int
    ) -> None:
        self.tasks = (len(cut.tasks), min(len(cut.merges), 1), int(cut.rows is not None))
        words = np.zeros(WORDS, np.int64)
        self._keep: list[Any] = [words, cut, batch]

        def put(place: int, array: NDArray[Any], *, sized: bool = True) -> None:
            self._keep.append(array)
            words[place] = array.ctypes.data
            if sized:
                words[place + 1] = len(array)

        ends = [end for _, end in cut.tasks]
        put(STARTS, np.array([0, *ends], np.int64), sized=False)
        put(SCALE, np.array(scale, np.float32), sized=False)
        put(PIECES, cut.pieces)
        put(KV_INDPTR, batch.kv_indptr)
        put(KV_INDICES, batch.kv_indices)
        put(PARTS, cut.parts)
        put(MERGES, cut.merges)
        put(SOURCES, cut.sources)
        if cut.rows is not None:
            put(PLACES, np.argsort(cut.rows), sized=False)
            put(ROW_ORDER, cut.rows, sized=False)
        words[[WINDOW, NUM_PAGES, PAGE_SIZE]] = cut.window, num_pages, batch.page_size
        self.address = words.ctypes.data


@compiled
def _result(args: Words, step: Words, record: Words) -> Floats:
    """[T, H, D] of what the pieces are about."""
    offset = args[6] if record[ROW_ORDER] else args[1]
    start = step[MEMORY] + 4 * step[ROWS] * offset
    return heads_at(start, step[ROWS], args[2], args[4])


@cache
def attend(kv_dtype: torch.dtype) -> Any:
    """Pieces of attention over a cache of that dtype.

    args: offset of the queries [T, H D]; offset of the result; H, K, D; the layer; offset of the
    result where rows are not in order; word of the step that holds the address of the record.
    """
    version, kind = sources(), ELEMENTS[kv_dtype]
    run_some = Callee(run_pieces(kv_dtype), kv_dtype)
    stored_at = Callee(elements_at(kind.stored), kv_dtype)
    scaled = int(kind.scaled)

    def run(args: Words, step: Words, task: int, tasks: int) -> None:
        version  # noqa: B018 -- see `callable_by_address`
        record = words_at(step[args[7]], WORDS)
        heads, kv_heads, dim = args[2], args[3], args[4]
        start = step[MEMORY] + 4 * step[ROWS] * args[0]
        shift, shape = args[5] * step[PLANE], (record[NUM_PAGES], record[PAGE_SIZE], kv_heads, dim)
        scales, count = args[5] * step[SCALE_PLANE], shape[0] * shape[1] * shape[2] * scaled
        starts, scale = words_at(record[STARTS], tasks + 1), floats_at(record[SCALE], 2)
        run_some(
            int_rows_at(record[PIECES], record[NUM_PIECES], 9), starts[task], starts[task + 1],
            heads_at(start, step[ROWS], heads, dim),
            stored_at(step[KEYS] + shift, shape), stored_at(step[VALUES] + shift, shape),
            floats_at(step[KEY_SCALES] + scales, count),
            floats_at(step[VALUE_SCALES] + scales, count),
            ints_at(record[KV_INDPTR], record[NUM_INDPTR]),
            ints_at(record[KV_INDICES], record[NUM_INDICES]),
            record[WINDOW], scale[0], scale[1], _result(args, step, record),
            rows_at(record[PARTS], record[NUM_PARTS], dim + 2),
        )  # fmt: skip

    return callable_by_address(run)


@cache
def merge() -> Any:
    """Parts of rows that were split, merged; args are those of `attend`."""
    version, merge_some = sources(), Callee(merge_parts())

    def run(args: Words, step: Words, task: int, tasks: int) -> None:
        version  # noqa: B018 -- see `callable_by_address`
        record = words_at(step[args[7]], WORDS)
        count = record[NUM_MERGES]
        merges = int_rows_at(record[MERGES], count, 6)
        merge_some(
            merges[count * task // tasks : count * (task + 1) // tasks],
            int_rows_at(record[SOURCES], record[NUM_SOURCES], 4),
            rows_at(record[PARTS], record[NUM_PARTS], args[4] + 2),
            args[2] // args[3], _result(args, step, record),
        )  # fmt: skip

    return callable_by_address(run)


@cache
def reorder() -> Any:
    """Rows of the result back to their order; args are those of `attend`."""
    version = sources()

    def run(args: Words, step: Words, task: int, tasks: int) -> None:
        version  # noqa: B018 -- see `callable_by_address`
        record = words_at(step[args[7]], WORDS)
        rows, width = step[ROWS], args[2] * args[4]
        order = words_at(record[ROW_ORDER], rows)
        found = rows_at(step[MEMORY] + 4 * rows * args[6], rows, width)
        out = rows_at(step[MEMORY] + 4 * rows * args[1], rows, width)
        for i in range(rows * task // tasks, rows * (task + 1) // tasks):
            for j in range(width):
                out[order[i], j] = found[i, j]

    return callable_by_address(run)
