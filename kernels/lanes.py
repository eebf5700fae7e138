"""The loops of the small kernels, as explicit vectors. They check nothing.

This module knows no layer.
"""
# ruff: noqa: ANN201, ARG001, PLR0917 -- see `simd`
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .emit import INT32, LANES, LOG2_E, ZERO, Emit

SILU, GELU_TANH = 0, 1

_INT16 = ir.IntType(16)
_CHOSEN = ir.VectorType(ir.IntType(1), LANES)


@intrinsic
def sum_squares(typing_context: Any, x: Any, start: Any, count: Any):
    """The sum of the squares of `count` floats, a multiple of LANES, from `start` on."""
    signature = types.float32(x, types.intp, types.intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        first = emit.at(emit.data(0), args[1])
        word = args[1].type
        (sums,) = emit.registers([ZERO])
        with cgutils.for_range(builder, builder.udiv(args[2], ir.Constant(word, LANES))) as loop:
            x = emit.load(emit.at(first, builder.mul(loop.index, ir.Constant(word, LANES))))
            builder.store(emit.fma(x, x, builder.load(sums)), sums)
        total = builder.load(sums)
        for distance in (8, 4, 2, 1):
            lanes = [j ^ distance for j in range(LANES)]
            total = builder.fadd(total, emit.shuffle(total, total, lanes))
        return builder.extract_element(total, ir.Constant(INT32, 0))

    return signature, generate


@intrinsic
def activate(typing_context: Any, kind: Any, x: Any, start: Any, up: Any, out: Any, out_start: Any):
    """Gate 16 floats.

        out[out_start + j] = act(x[start + j]) * x[start + up + j]

    `kind` is SILU or GELU_TANH.
    """
    intp = types.intp
    signature = types.void(intp, x, intp, intp, out, intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        gate = emit.at(emit.data(1), args[2])
        x, up = emit.load(gate), emit.load(emit.at(gate, args[3]))
        target = emit.at(emit.data(4), args[5])
        for number, act in ((SILU, _silu), (GELU_TANH, _gelu_tanh)):
            same = builder.icmp_signed("==", args[0], ir.Constant(args[0].type, number))
            with builder.if_then(same):
                emit.store(builder.fmul(act(emit, x), up), target)
        return context.get_dummy_value()

    return signature, generate


def _silu(emit: Emit, x: Any) -> Any:
    """x / (1 + e ** -x), without large numbers."""
    builder = emit.builder
    one = emit.constant(1.0)
    negative = builder.fcmp_ordered("<", x, ZERO)
    size = builder.select(negative, x, builder.fneg(x))
    small = emit.exp2(builder.fmul(size, emit.constant(LOG2_E)))  # e ** -|x|
    part = builder.fdiv(builder.select(negative, small, one), builder.fadd(one, small))
    return builder.fmul(x, part)


def _gelu_tanh(emit: Emit, x: Any) -> Any:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x ** 3)))."""
    builder = emit.builder
    cube = builder.fmul(builder.fmul(x, x), x)
    inner = builder.fmul(emit.fma(cube, emit.constant(0.044715), x), emit.constant(0.7978845608))
    half = builder.fmul(x, emit.constant(0.5))
    return emit.fma(half, emit.tanh(inner), half)


@intrinsic
def most_allowed(typing_context: Any, x: Any, start: Any, bits: Any, first: Any, count: Any):
    """The greatest of 32 * `count` floats from `start` on, of those whose bits are set.

    Bit j % 32 of word `first` + j // 32 is that of float j. Infinity where one of them is NaN,
    minus infinity where there are none.
    """
    intp = types.intp
    signature = types.float32(x, intp, bits, intp, intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        floats, words = emit.at(emit.data(0), args[1]), emit.at(emit.data(2), args[3])
        zero = ir.Constant(_CHOSEN, [0] * LANES)
        none = emit.constant(-math.inf)
        most, odd = emit.registers([none, zero])
        with cgutils.for_range(builder, args[4]) as loop:
            word = builder.load(emit.at(words, loop.index))
            with builder.if_then(cgutils.is_not_null(builder, word)):
                place = builder.mul(loop.index, ir.Constant(loop.index.type, 2 * LANES))
                for half in (0, LANES):
                    part = builder.trunc(builder.lshr(word, ir.Constant(INT32, half)), _INT16)
                    number = emit.load(emit.at(floats, place, ir.Constant(place.type, half)))
                    number = builder.select(builder.bitcast(part, _CHOSEN), number, none)
                    builder.store(emit.most(number, builder.load(most)), most)
                    is_nan = builder.fcmp_unordered("uno", number, number)
                    builder.store(builder.or_(builder.load(odd), is_nan), odd)
        found = builder.load(most)
        for distance in (8, 4, 2, 1):
            lanes = [j ^ distance for j in range(LANES)]
            found = emit.most(found, emit.shuffle(found, found, lanes))
        is_nan = cgutils.is_not_null(builder, builder.bitcast(builder.load(odd), _INT16))
        best = builder.extract_element(found, ir.Constant(INT32, 0))
        return builder.select(is_nan, ir.Constant(best.type, math.inf), best)

    return signature, generate
