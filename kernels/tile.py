"""A tile of positions: where its rows lie in the pages, and products of matrices over them.

Compiled into the pieces of `paged`. This module knows no query, no score and no request.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .compiled import compiled
from .emit import LANES
from .simd import BLOCK, ROWS, multiply_add, prefetch

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Words = NDArray[np.int64]

TILE = 64
"""Positions of KV that are scored at once; `simd.weigh_row` takes 64."""


@compiled
def prefetch_rows(array: Floats, rows: Words, first: int, end: int, row: int) -> None:
    """Ask for rows that the next tile reads."""
    for j in range(first, end):
        for d in range(0, row, LANES):
            prefetch(array, rows[j] + d)


@compiled
def find_rows(  # noqa: PLR0917
    pages: Ints, begin: int, width: int, page_size: int, row: int, offsets: Words
) -> None:
    """Set where the rows of `width` positions start, the last one repeated to the tile's end."""
    for j in range(TILE):
        position = begin + min(j, width - 1)
        page = np.int64(pages[position // page_size])
        offsets[j] = (page * page_size + position % page_size) * row


@compiled
def add_product(  # noqa: PLR0917
    count: int,
    a: Floats,
    a_rows: Words,
    a_row: int,
    a_shift: int,
    a_step: int,
    b: Floats,
    b_rows: Words,
    b_row: int,
    b_shift: int,
    depth: int,
    c: Floats,
    c_row: int,
) -> None:
    """Add a product to `count` rows of c, of whole vectors each; see `multiply_add`."""
    width = c.shape[1]
    flat = c.reshape(-1)
    first = 0
    while first < width:  # columns outside: a block of b stays in the cache for all rows
        vectors = BLOCK
        while vectors * LANES > width - first:
            vectors //= 2
        for row in range(0, count, ROWS):
            multiply_add(
                min(ROWS, count - row), vectors, a, a_rows, a_row + row, a_shift, a_step,
                b, b_rows, b_row, b_shift + first, depth,
                flat, (c_row + row) * width + first, width,
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
