"""Products as explicit vectors of 16 floats, which LLVM splits where a CPU's are shorter.

numba's own loops reach a quarter to a half of what the arithmetic units give, because LLVM keeps
no block of results in registers; these do. They take flat arrays and offsets into them, check
nothing, and keep NaN and infinity. The factor that lies in the cache may be of any of `elements`,
and is worked out in registers; scales are the caller's. This module knows neither pages nor
softmax.
"""
# ruff: noqa: ANN201, ARG001, PLR0917 -- numba calls the outer functions with types, to learn the
# signature; the arguments' values are met in `generate`.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from itertools import product
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import compiled
from .elements import read
from .emit import LANES, ZERO, Emit
from .host import FEATURES

ROWS = 4
"""Rows of a block that `multiply_add` keeps in registers."""

BLOCK = 4 if "avx512f" in FEATURES else 1
"""Vectors across in such a block: others have fewer or shorter registers than AVX-512."""

WIDTHS = tuple(width for width in (1, 2, 4) if width <= BLOCK)
"""Vectors across that a block may have."""

_BOTH, _FOUR = (0, LANES), range(0, LANES, 4)
_ROUNDS = (
    [[q + i + x for q in _FOUR for i in half for x in _BOTH] for half in ((0, 1), (2, 3))],
    [[q + x + i for q in _FOUR for x in _BOTH for i in half] for half in ((0, 1), (2, 3))],
    *2
    * [[[x + q + i for x in _BOTH for q in half for i in range(4)] for half in ((0, 8), (4, 12))]],
)
"""Of each round of `_lane_sums`, the lanes of two vectors that are added to one another."""

ACROSS = (8, 8, 8, 4) if BLOCK > 1 else (4, 2, 2, 1)
"""Rows of b in a block of `dot_rows` with 1, 2, 3 and 4 rows of a, as registers allow."""


@intrinsic
def multiply_add(
    typing_context: Any,
    rows: Any,
    vectors: Any,
    a: Any,
    a_rows: Any,
    a_row: Any,
    a_shift: Any,
    a_step: Any,
    b: Any,
    b_rows: Any,
    b_row: Any,
    b_shift: Any,
    depth: Any,
    c: Any,
    c_start: Any,
    c_stride: Any,
):
    """Add a product to a block of 1 to ROWS rows and vectors as in WIDTHS, kept in registers.

        c[c_start + i * c_stride + j] += sum over k < depth of
            a[a_rows[a_row + i] + a_shift + k * a_step] * b[b_rows[b_row + k] + b_shift + j]

    The terms are added one by one, in the order of k: cutting the sum in two changes no bit.
    `a` and `c` are flat float32, `b` flat of any of `elements`; `a_rows` and `b_rows` are int64.
    """
    intp = types.intp
    numbers = [intp] * 3
    signature = types.void(
        intp, intp, a, a_rows, *numbers, b, b_rows, *numbers, c, intp, intp
    )  # fmt: skip

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        rows, vectors = args[:2]
        for height, width in product(range(1, ROWS + 1), WIDTHS):
            is_rows = builder.icmp_signed("==", rows, ir.Constant(rows.type, height))
            is_vectors = builder.icmp_signed("==", vectors, ir.Constant(rows.type, width))
            with builder.if_then(builder.and_(is_rows, is_vectors)):
                _multiply_add_block(emit, signature.args[7].dtype, args, height, width)
        return context.get_dummy_value()

    return signature, generate


def _multiply_add_block(emit: Emit, stored: Any, args: Any, height: int, width: int) -> None:
    """Emit `multiply_add` for a block of `height` rows and `width` vectors."""
    builder = emit.builder
    a, a_rows, b, b_rows, c = (emit.data(i) for i in (2, 3, 7, 8, 12))
    a_row, a_shift, a_step = args[4:7]
    b_row, b_shift, depth = args[9:12]
    c_start, c_stride = args[13:15]
    word = depth.type
    starts = [
        builder.add(builder.load(emit.at(a_rows, a_row, ir.Constant(word, i))), a_shift)
        for i in range(height)
    ]
    targets = [
        emit.at(
            c, c_start, builder.mul(c_stride, ir.Constant(word, i)), ir.Constant(word, j * LANES)
        )
        for i in range(height)
        for j in range(width)
    ]
    sums = emit.registers([emit.load(target) for target in targets])
    with cgutils.for_range(builder, depth) as loop:
        row = builder.add(builder.load(emit.at(b_rows, b_row, loop.index)), b_shift)
        right = [
            read(emit, stored, emit.at(b, row, ir.Constant(word, j * LANES))) for j in range(width)
        ]
        step = builder.mul(loop.index, a_step)
        for i, start in enumerate(starts):
            left = emit.splat(builder.load(emit.at(a, start, step)))
            for j in range(width):
                sum_ = sums[i * width + j]
                builder.store(emit.fma(left, right[j], builder.load(sum_)), sum_)
    for sum_, target in zip(sums, targets, strict=True):
        emit.store(builder.load(sum_), target)


@intrinsic
def dot_rows(
    typing_context: Any,
    rows: Any,
    a: Any,
    a_start: Any,
    b: Any,
    b_rows: Any,
    b_row: Any,
    b_shift: Any,
    depth: Any,
    c: Any,
    c_start: Any,
    c_stride: Any,
):
    """Multiply 1 to ROWS rows with `across(rows)` others. `depth` is a multiple of 16.

        c[c_start + i * c_stride + j] = sum over k < depth of
            a[a_start + i * depth + k] * b[b_rows[b_row + j] + b_shift + k]

    `a` and `c` are flat float32, `b` flat of any of `elements`; `b_rows` is int64.
    """
    intp = types.intp
    signature = types.void(intp, a, intp, b, b_rows, intp, intp, intp, c, intp, intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        for height, width in enumerate(ACROSS, 1):
            is_rows = builder.icmp_signed("==", args[0], ir.Constant(args[0].type, height))
            with builder.if_then(is_rows):
                _dot_block(emit, signature.args[3].dtype, args, height, width)
        return context.get_dummy_value()

    return signature, generate


def _dot_block(emit: Emit, stored: Any, args: Any, height: int, width: int) -> None:
    """Emit `dot_rows` for `height` rows of a and `width` rows of b."""
    builder = emit.builder
    a, b, b_rows, c = (emit.data(i) for i in (1, 3, 4, 8))
    a_start, b_row, b_shift, depth, c_start, c_stride = (args[i] for i in (2, 5, 6, 7, 9, 10))
    word = depth.type

    def number(value: int) -> Any:
        return ir.Constant(word, value)

    starts = [
        emit.at(b, builder.load(emit.at(b_rows, b_row, number(j))), b_shift) for j in range(width)
    ]
    lefts = [emit.at(a, a_start, builder.mul(depth, number(i))) for i in range(height)]
    sums = emit.registers([ZERO] * (height * width))
    with cgutils.for_range(builder, builder.udiv(depth, number(LANES))) as loop:
        k = builder.mul(loop.index, number(LANES))
        left = [emit.load(emit.at(start, k)) for start in lefts]
        for j, start in enumerate(starts):
            right = read(emit, stored, emit.at(start, k))
            for i in range(height):
                sum_ = sums[i * width + j]
                builder.store(emit.fma(left[i], right, builder.load(sum_)), sum_)
    found = _lane_sums(emit, [builder.load(sum_) for sum_ in sums])
    for i in range(height):
        vector, lane = found[i * width // LANES], i * width % LANES
        mine = emit.shuffle(vector, vector, list(range(lane, lane + width)))
        target = emit.at(c, c_start, builder.mul(c_stride, number(i)))
        builder.store(mine, builder.bitcast(target, mine.type.as_pointer()), align=4)


def _lane_sums(emit: Emit, vectors: list[Any]) -> list[Any]:
    """The sums of vectors: lane j % 16 of vector j // 16 is that of `vectors[j]`.

    Four rounds, each of which halves the number of vectors. The first two stay within four lanes,
    which is one instruction a shuffle.
    """
    vectors = vectors + [ZERO] * (-len(vectors) % LANES)
    for low, high in _ROUNDS:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [
            emit.builder.fadd(emit.shuffle(x, y, low), emit.shuffle(x, y, high)) for x, y in pairs
        ]
    return vectors


@compiled
def across(rows: int) -> int:
    """Rows of b in a block of `dot_rows` with so many rows of a."""
    return ACROSS[rows - 1]
