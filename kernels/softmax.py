"""Scores turned into weights, 16 at a time: the online softmax of one tile of positions.

The arithmetic is in base 2. All arrays are flat float32; NaN is kept. This module knows no
pages, and is told which positions a row sees.
"""
# ruff: noqa: ANN201, ARG001, PLR0917 -- see `simd`
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .emit import INT32, INTEGERS, LANES, ZERO, Emit
from .tile import STREAMS


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
def weigh_columns(
    typing_context: Any,
    scores: Any,
    start: Any,
    stride: Any,
    count: Any,
    tops: Any,
    top: Any,
    totals: Any,
    factors: Any,
):
    """Turn `count` scores of each of 16 columns into weights under the greatest so far.

        old, tops[top + i] = tops[top + i], max(tops[top + i], scores[start + j * stride + i])
        factors[top + i] = 2 ** (old - tops[top + i])
        scores[start + j * stride + i] = 2 ** (scores[start + j * stride + i] - tops[top + i])
        totals[top + i] = totals[top + i] * factors[top + i] + sum over j of the new scores

    Exponents below -126 give 0. `factors` are for what has been summed up with the older weights.

    Returns:
        Whether any of the 16 greatest has changed.
    """
    intp = types.intp
    signature = types.boolean(scores, intp, intp, intp, tops, intp, totals, factors)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        first = emit.at(emit.data(0), args[1])
        stride, count = args[2:4]
        top, total, factor = (emit.at(emit.data(i), args[5]) for i in (4, 6, 7))
        old = emit.load(top)
        (most,) = emit.registers([old])
        with cgutils.for_range(builder, count) as loop:
            score = emit.load(emit.at(first, builder.mul(loop.index, stride)))
            builder.store(emit.most(builder.load(most), score), most)
        now = builder.load(most)
        changed = builder.fcmp_unordered("!=", old, now)
        grown = emit.exp2(builder.fsub(old, now))
        (sums,) = emit.registers([builder.fmul(emit.load(total), grown)])
        with cgutils.for_range(builder, count) as loop:
            target = emit.at(first, builder.mul(loop.index, stride))
            weight = emit.exp2(builder.fsub(emit.load(target), now))
            emit.store(weight, target)
            builder.store(builder.fadd(builder.load(sums), weight), sums)
        emit.store(now, top)
        emit.store(grown, factor)
        emit.store(builder.load(sums), total)
        bits = builder.bitcast(changed, ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return signature, generate


@intrinsic
def hide_scores(
    typing_context: Any,
    scores: Any,
    start: Any,
    step: Any,
    length: Any,
    first: Any,
    end: Any,
    hidden: Any,
):
    """Hide those of 16 scores whose positions a row does not see.

        scores[start + j] = hidden, unless first <= j % 8 * length + step + j // 8 < end

    The order of positions is that of `tile.find_streams`.
    """
    intp = types.intp
    signature = types.void(scores, intp, intp, intp, intp, intp, types.float32)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        target = emit.at(emit.data(0), args[1])
        step, length, first, end = (
            emit.spread(builder.trunc(number, INT32)) for number in args[2:6]
        )
        runs = ir.Constant(INTEGERS, [j % STREAMS for j in range(LANES)])
        steps = ir.Constant(INTEGERS, [j // STREAMS for j in range(LANES)])
        at = builder.add(builder.mul(runs, length), builder.add(step, steps))
        seen = builder.and_(builder.icmp_signed(">=", at, first), builder.icmp_signed("<", at, end))
        emit.store(builder.select(seen, emit.load(target), emit.splat(args[6])), target)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def weigh_row(
    typing_context: Any, scores: Any, start: Any, count: Any, tops: Any, totals: Any, row: Any
):
    """Turn scores into weights under the greatest so far, and add them to one sum.

        old, tops[row] = tops[row], max(tops[row], scores[start : start + count])
        factor = 2 ** (old - tops[row])
        scores[start + j] = 2 ** (scores[start + j] - tops[row])
        totals[row] = totals[row] * factor + sum of scores[start : start + count]

    `count` is a multiple of 16. Exponents below -126 give 0. All arrays are flat float32.

    Returns:
        The factor, for what has been summed up with the older weights.
    """
    intp = types.intp
    signature = types.float32(scores, intp, intp, tops, totals, intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        lanes = ir.Constant(args[2].type, LANES)
        first, vectors = emit.at(emit.data(0), args[1]), builder.udiv(args[2], lanes)
        top, total = emit.at(emit.data(3), args[5]), emit.at(emit.data(4), args[5])
        old = emit.splat(builder.load(top))
        most, sums = emit.registers([old, ZERO])
        with cgutils.for_range(builder, vectors) as loop:
            score = emit.load(emit.at(first, builder.mul(loop.index, lanes)))
            builder.store(emit.most(builder.load(most), score), most)
        now = emit.across(builder.load(most), emit.most)
        factor = emit.exp2(builder.fsub(old, now))
        with cgutils.for_range(builder, vectors) as loop:
            target = emit.at(first, builder.mul(loop.index, lanes))
            weight = emit.exp2(builder.fsub(emit.load(target), now))
            emit.store(weight, target)
            builder.store(builder.fadd(builder.load(sums), weight), sums)
        sum_ = emit.across(builder.load(sums), builder.fadd)
        sum_ = emit.fma(emit.splat(builder.load(total)), factor, sum_)
        zero = ir.Constant(INT32, 0)
        builder.store(builder.extract_element(now, zero), top)
        builder.store(builder.extract_element(sum_, zero), total)
        return builder.extract_element(factor, zero)

    return signature, generate
