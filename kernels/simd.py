"""The inner loops as explicit vectors of 16 floats, which LLVM splits where a CPU's are shorter.

numba's own loops reach a quarter to a half of what the arithmetic units give, because LLVM keeps
no block of results in registers; these do. They take flat float32 arrays and offsets into them,
check nothing, and keep NaN and infinity. This module knows neither pages nor attention.
"""
# ruff: noqa: ANN201, ARG001, PLR0917 -- numba calls the outer functions with types, to learn the
# signature; the arguments' values are met in `generate`.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from itertools import product
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from llvmlite.binding import get_host_cpu_features  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .emit import INT32, LANES, ZERO, Emit

ROWS = 4
"""Rows of a block that `multiply_add` keeps in registers."""

BLOCK = 4 if get_host_cpu_features().get("avx512f", False) else 1
"""Vectors across in such a block: others have fewer or shorter registers than AVX-512."""

WIDTHS = tuple(width for width in (1, 2, 4) if width <= BLOCK)
"""Vectors across that a block may have."""


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
    `a`, `b` and `c` are flat float32; `a_rows` and `b_rows` are int64.
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
                _multiply_add_block(emit, args, height, width)
        return context.get_dummy_value()

    return signature, generate


def _multiply_add_block(emit: Emit, args: Any, height: int, width: int) -> None:
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
        right = [emit.load(emit.at(b, row, ir.Constant(word, j * LANES))) for j in range(width)]
        step = builder.mul(loop.index, a_step)
        for i, start in enumerate(starts):
            left = emit.splat(builder.load(emit.at(a, start, step)))
            for j in range(width):
                sum_ = sums[i * width + j]
                builder.store(emit.fma(left, right[j], builder.load(sum_)), sum_)
    for sum_, target in zip(sums, targets, strict=True):
        emit.store(builder.load(sum_), target)


@intrinsic
def dot_16(
    typing_context: Any,
    a: Any,
    a_start: Any,
    b: Any,
    b_rows: Any,
    b_row: Any,
    b_shift: Any,
    depth: Any,
    c: Any,
    c_start: Any,
):
    """Multiply one row by 16 others. `depth` is a multiple of 16.

        c[c_start + j] = sum over k < depth of a[a_start + k] * b[b_rows[b_row + j] + b_shift + k]

    `a`, `b`, `c` are flat float32, `b_rows` int64.
    """
    intp = types.intp
    signature = types.void(a, intp, b, b_rows, intp, intp, intp, c, intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        a, b, b_rows, c = (emit.data(i) for i in (0, 2, 3, 7))
        a_start, b_row, b_shift, depth, c_start = args[1], args[4], args[5], args[6], args[8]
        word = depth.type
        starts = [
            emit.at(b, builder.load(emit.at(b_rows, b_row, ir.Constant(word, j))), b_shift)
            for j in range(LANES)
        ]
        sums = emit.registers([ZERO] * LANES)
        count = builder.udiv(depth, ir.Constant(word, LANES))
        with cgutils.for_range(builder, count) as loop:
            k = builder.mul(loop.index, ir.Constant(word, LANES))
            left = emit.load(emit.at(a, a_start, k))
            for start, sum_ in zip(starts, sums, strict=True):
                right = emit.load(emit.at(start, k))
                builder.store(emit.fma(left, right, builder.load(sum_)), sum_)
        # Halve the number of vectors until lane j of the one that is left is the sum of vector j.
        even, odd = list(range(0, 2 * LANES, 2)), list(range(1, 2 * LANES, 2))
        parts = [builder.load(sum_) for sum_ in sums]
        while len(parts) > 1:
            parts = [
                builder.fadd(emit.shuffle(x, y, even), emit.shuffle(x, y, odd))
                for x, y in zip(parts[::2], parts[1::2], strict=True)
            ]
        emit.store(parts[0], emit.at(c, c_start))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def cap_scores(typing_context: Any, scores: Any, start: Any, cap: Any):
    """Cap 16 scores softly.

        scores[start + j] = cap * tanh(scores[start + j])

    `scores` are flat float32.
    """
    signature = types.void(scores, types.intp, types.float32)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        target = emit.at(emit.data(0), args[1])
        capped = builder.fmul(emit.splat(args[2]), emit.tanh(emit.load(target)))
        emit.store(capped, target)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def weigh_column(typing_context: Any, scores: Any, start: Any, tops: Any, top: Any, totals: Any):
    """Turn 16 scores into weights, and add each to a sum of its own.

        scores[start + j] = 2 ** (scores[start + j] - tops[top + j])
        totals[top + j] += scores[start + j]

    The exponents are at most 0; those below -126 give 0. All arrays are flat float32.
    """
    intp = types.intp
    signature = types.void(scores, intp, tops, intp, totals)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        target = emit.at(emit.data(0), args[1])
        tops = emit.load(emit.at(emit.data(2), args[3]))
        weight = emit.exp2(builder.fsub(emit.load(target), tops))
        emit.store(weight, target)
        total = emit.at(emit.data(4), args[3])
        emit.store(builder.fadd(emit.load(total), weight), total)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def weigh_row(typing_context: Any, scores: Any, start: Any, tops: Any, totals: Any, row: Any):
    """Turn 64 scores into weights under the greatest so far, and add them to one sum.

        old, tops[row] = tops[row], max(tops[row], scores[start : start + 64])
        factor = 2 ** (old - tops[row])
        scores[start + j] = 2 ** (scores[start + j] - tops[row])
        totals[row] = totals[row] * factor + sum of scores[start : start + 64]

    Exponents below -126 give 0. All arrays are flat float32.

    Returns:
        The factor, for what has been summed up with the older weights.
    """
    intp = types.intp
    signature = types.float32(scores, intp, tops, totals, intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        word = args[1].type
        targets = [
            emit.at(emit.data(0), args[1], ir.Constant(word, j)) for j in range(0, 64, LANES)
        ]
        scores = [emit.load(target) for target in targets]
        top, total = emit.at(emit.data(2), args[4]), emit.at(emit.data(3), args[4])
        old = emit.splat(builder.load(top))
        most = old
        for vector in scores:
            most = emit.most(most, vector)
        for distance in (8, 4, 2, 1):
            most = emit.most(most, emit.shuffle(most, most, [j ^ distance for j in range(LANES)]))
        factor = emit.exp2(builder.fsub(old, most))
        weights = [emit.exp2(builder.fsub(vector, most)) for vector in scores]
        sums = builder.fadd(
            builder.fadd(weights[0], weights[1]), builder.fadd(weights[2], weights[3])
        )
        for distance in (8, 4, 2, 1):
            lanes = [j ^ distance for j in range(LANES)]
            sums = builder.fadd(sums, emit.shuffle(sums, sums, lanes))
        for weight, target in zip(weights, targets, strict=True):
            emit.store(weight, target)
        sums = emit.fma(emit.splat(builder.load(total)), factor, sums)
        first = ir.Constant(INT32, 0)
        builder.store(builder.extract_element(most, first), top)
        builder.store(builder.extract_element(sums, first), total)
        return builder.extract_element(factor, first)

    return signature, generate


@intrinsic
def prefetch(typing_context: Any, array: Any, start: Any):
    """Ask for the cache line of an element that will be read soon."""
    signature = types.void(array, types.intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        emit.prefetch(emit.at(emit.data(0), args[1]))
        return context.get_dummy_value()

    return signature, generate
