"""A tile of positions: where its rows lie in the pages, and products of matrices over them.

Compiled into the pieces of `paged`. This module knows no query, no score and no request.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled
from .elements import LINE, prefetch, widen_one, widen_vector
from .emit import LANES
from .simd import BLOCK, ROWS, multiply_add

Elements = NDArray[np.float32 | np.int16 | np.int8]
Bytes = NDArray[np.int8]
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Words = NDArray[np.int64]

TILE = 64
"""Positions of KV that `many` scores at once, and of which pieces are multiples."""

STREAMS = 8
"""Runs of positions that are read side by side. Pages mostly begin at multiples of what a core's
first cache is folded at, so that more would push one another out of it."""


@compiled
def prefetch_rows(array: Elements, rows: Words, first: int, end: int, shift: int, dim: int) -> None:  # noqa: PLR0917
    """Ask for `dim` elements of rows that will be read soon, from `shift` on."""
    line = LINE // array.itemsize
    for j in range(first, end):
        for d in range(0, dim, line):
            prefetch(array, rows[j] + shift + d)


@compiled
def find_rows(  # noqa: PLR0917
    pages: Ints, begin: int, end: int, count: int, page_size: int, row: int, offsets: Words
) -> None:
    """Set where `count` rows from position `begin` on start; the one before `end` is repeated."""
    at, inside = begin // page_size, begin % page_size
    for j in range(min(count, end - begin)):
        offsets[j] = (np.int64(pages[at]) * page_size + inside) * row
        inside += 1
        if inside == page_size:
            at, inside = at + 1, 0
    for j in range(end - begin, count):
        offsets[j] = offsets[end - begin - 1]


@compiled
def find_streams(  # noqa: PLR0917
    pages: Ints, begin: int, width: int, page_size: int, row: int, offsets: Words, place: int
) -> int:
    """Set where the rows of `width` positions from `begin` on start, in STREAMS runs side by side.

        offsets[place + r * STREAMS + j] = that of position begin + j * length + r

    The last is repeated until all runs have the same length, which is even.

    Returns:
        How many offsets there are.
    """
    length = round_up(width, 2 * STREAMS) // STREAMS
    at, inside = begin // page_size, begin % page_size
    last = np.int64(0)
    for j in range(STREAMS):
        for r in range(length):
            if j * length + r < width:
                last = (np.int64(pages[at]) * page_size + inside) * row
                inside += 1
                if inside == page_size:
                    at, inside = at + 1, 0
            offsets[place + r * STREAMS + j] = last
    return length * STREAMS


@compiled
def widen_rows(  # noqa: PLR0917
    array: Elements, rows: Words, count: int, shift: int, dim: int, scales: Floats, made: Floats
) -> None:
    """Write `count` rows as float32, in whole vectors, from the beginning of `made` on."""
    stride = whole_vectors(dim)
    whole = dim // LANES * LANES
    for j in range(count):
        for d in range(0, whole, LANES):
            widen_vector(array, rows[j] + shift + d, scales[j], made, j * stride + d)
        for d in range(whole, dim):
            made[j * stride + d] = widen_one(array, rows[j] + shift + d, scales[j])


@compiled
def add_product(  # noqa: PLR0917
    count: int,
    a: Floats,
    a_rows: Words,
    a_row: int,
    a_shift: int,
    a_step: int,
    b: Elements,
    b_rows: Words,
    b_row: int,
    b_shift: int,
    depth: int,
    c: Floats,
    c_row: int,
    width: int,
) -> None:
    """Add a product to `count` rows of c, of whole vectors and `width` each; see `multiply_add`.

    All arrays are flat: to make one so in here would take as long as a small product.
    """
    first = 0
    while first < width:  # columns outside: a block of b stays in the cache for all rows
        vectors = BLOCK
        while vectors * LANES > width - first:
            vectors //= 2
        for row in range(0, count, ROWS):
            multiply_add(
                min(ROWS, count - row), vectors, a, a_rows, a_row + row, a_shift, a_step,
                b, b_rows, b_row, b_shift + first, depth,
                c, (c_row + row) * width + first, width,
            )  # fmt: skip
        first += vectors * LANES


@compiled
def round_up(number: int, to: int) -> int:
    """The next multiple of `to`."""
    return -(-number // to) * to


@compiled
def whole_vectors(number: int) -> int:
    """Floats in the vectors that hold `number` of them."""
    return round_up(number, LANES)
