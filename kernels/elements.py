"""What the cache's elements are in memory, and the instructions that read 16 of them as float32.

    float32     as they are
    bfloat16    the upper half of a float32
    int8        value * scale, one float32 scale for the head_dim elements of a token and head

This module knows no page and no loop.
"""
# ruff: noqa: ANN201, ARG001, PLR0917 -- see `simd`
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from llvmlite import ir  # type: ignore[import-untyped]
from numba import float32, int8, int16, types
from numba.core import cgutils
from numba.core.errors import RequireLiteralValue
from numba.extending import intrinsic

from .emit import FLOATS, INT32, INTEGERS, LANES, Emit

LINE = 64
"""Bytes that a CPU reads at once."""


@dataclass(frozen=True)
class Elements:
    """A number format of keys and values.

    Attributes:
        stored: As numba sees an element.
        seen: The torch dtype through which numpy sees it.
        scaled: Whether the elements of a token and head share a float32 scale.
    """

    stored: Any
    seen: torch.dtype
    scaled: bool = False


ELEMENTS = {
    torch.float32: Elements(float32, torch.float32),
    torch.bfloat16: Elements(int16, torch.int16),
    torch.int8: Elements(int8, torch.int8, scaled=True),
}
"""By the cache's dtype, what compiled kernels read."""


def read(emit: Emit, stored: Any, pointer: Any) -> Any:
    """The vector of the 16 elements from `pointer` on, without their scale."""
    if stored == float32:
        return emit.load(pointer)
    builder = emit.builder
    lanes = ir.VectorType(ir.IntType(stored.bitwidth), LANES)
    found = builder.load(builder.bitcast(pointer, lanes.as_pointer()), align=1)
    if stored == int16:
        wide = builder.shl(builder.zext(found, INTEGERS), emit.integer(16))
        return builder.bitcast(wide, FLOATS)
    assert stored == int8
    return builder.sitofp(builder.sext(found, INTEGERS), FLOATS)


@intrinsic
def widen_vector(typing_context: Any, source: Any, start: Any, scale: Any, made: Any, place: Any):
    """Read 16 elements.

        made[place + j] = element source[start + j] * scale

    `made` is flat float32.
    """
    signature = types.void(source, types.intp, types.float32, made, types.intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        vector = read(emit, signature.args[0].dtype, emit.at(emit.data(0), args[1]))
        if signature.args[0].dtype == int8:
            vector = builder.fmul(vector, emit.splat(args[2]))
        emit.store(vector, emit.at(emit.data(3), args[4]))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def widen_one(typing_context: Any, source: Any, start: Any, scale: Any):
    """One element, as a float32: element source[start] * scale."""
    signature = types.float32(source, types.intp, types.float32)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        found = builder.load(emit.at(emit.data(0), args[1]))
        if signature.args[0].dtype == int16:
            wide = builder.shl(builder.zext(found, INT32), ir.Constant(INT32, 16))
            return builder.bitcast(wide, ir.FloatType())
        if signature.args[0].dtype == int8:
            return builder.fmul(builder.sitofp(found, ir.FloatType()), args[2])
        return found

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


@intrinsic
def prefetch_streams(
    typing_context: Any, array: Any, rows: Any, row: Any, shift: Any, dim: Any, count: Any
):
    """Ask for the elements array[rows[row + j] + shift :][:dim] of `count` rows, line by line.

    `count` is known when this is compiled; `rows` are int64.
    """
    if not isinstance(count, types.IntegerLiteral):
        raise RequireLiteralValue("count")
    streams = count.literal_value
    signature = types.void(array, rows, types.intp, types.intp, types.intp, count)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        array, rows = emit.data(0), emit.data(1)
        word = args[2].type
        starts = [
            emit.at(array, builder.load(emit.at(rows, args[2], ir.Constant(word, j))), args[3])
            for j in range(streams)
        ]
        line = ir.Constant(word, LINE * 8 // signature.args[0].dtype.bitwidth)
        lines = builder.udiv(builder.add(args[4], builder.sub(line, ir.Constant(word, 1))), line)
        with cgutils.for_range(builder, lines) as loop:
            for start in starts:
                emit.prefetch(emit.at(start, builder.mul(loop.index, line)))
        return context.get_dummy_value()

    return signature, generate
