"""Products of a few rows with a few panels, which are kept in registers.

What a row gives does not depend on the others of its block: each of its sums adds one product
after another, in the order of the inputs. This module knows no threads and no bias.
"""
# ruff: noqa: ANN201, ARG001, PLR0917 -- see `simd`
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import compiled
from .emit import LANES, ZERO, Emit
from .panels import LAYOUTS, Layout
from .simd import BLOCK
from .weight import GROUP

MOST_ROWS, FEW_ROWS = (8, 4) if BLOCK > 1 else (4, 0)
"""Rows of a block; up to how many it is twice as wide, so that enough sums are under way."""

WIDE, NARROW = (4, 2) if BLOCK > 1 else (1, 1)
"""Panels across in a block of few rows, and of many."""

LINE = 64
"""Bytes of a line of the cache."""

KINDS = tuple(LAYOUTS)

BLOCKS = sorted(
    {(rows, NARROW) for rows in range(1, MOST_ROWS + 1)}
    | {(rows, WIDE) for rows in range(1, FEW_ROWS + 1)}
)
"""(rows, panels) of all blocks that there are."""


def by_blocks(
    blocks: Iterable[tuple[int, int]],
    layout: Layout,
    emit_block: Callable[[Emit, Any, Layout, int, int], None],
) -> Callable[..., Any]:
    """What an intrinsic generates whose second and third arguments choose a block: all of them."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        rows, panels = args[1:3]
        for height, width in blocks:
            is_rows = builder.icmp_signed("==", rows, ir.Constant(rows.type, height))
            is_panels = builder.icmp_signed("==", panels, ir.Constant(panels.type, width))
            with builder.if_then(builder.and_(is_rows, is_panels)):
                emit_block(emit, args, layout, height, width)
        return context.get_dummy_value()

    return generate


@intrinsic(prefer_literal=True)
def multiply(
    typing_context: Any,
    kind: Any,
    rows: Any,
    panels: Any,
    x: Any,
    x_start: Any,
    x_stride: Any,
    packed: Any,
    packed_start: Any,
    packed_stride: Any,
    groups: Any,
    out: Any,
    out_start: Any,
    out_stride: Any,
):
    """Add products to a block of results, of a size in BLOCKS.

        out[out_start + i * out_stride + j] += sum over k < groups * GROUP of
            x[x_start + i * x_stride + k] * weight of output j and input k

    `kind` is a place in KINDS, known when this is compiled. `packed` are bytes; in them the groups
    of the first panel start at `packed_start`, and those of each next one `packed_stride` later.
    All arrays are flat, `x` and `out` float32.
    """
    intp = types.intp
    numbers = [intp] * 2
    signature = types.void(kind, *numbers, x, *numbers, packed, *numbers, intp, out, *numbers)

    layout = LAYOUTS[KINDS[kind.literal_value]]
    return signature, by_blocks(BLOCKS, layout, _multiply_block)


def _multiply_block(emit: Emit, args: Any, layout: Layout, height: int, width: int) -> None:
    """Emit `multiply` for a block of `height` rows and `width` panels."""
    builder = emit.builder
    x, packed, out = (emit.data(i) for i in (3, 6, 10))
    x_start, x_stride, packed_start, packed_stride, groups = (args[i] for i in (4, 5, 7, 8, 9))
    word = x_start.type

    def number(value: int) -> Any:
        return ir.Constant(word, value)

    rows = [emit.at(x, x_start, builder.mul(x_stride, number(i))) for i in range(height)]
    panels = [
        emit.at(packed, packed_start, builder.mul(packed_stride, number(j))) for j in range(width)
    ]
    sums = emit.registers([ZERO] * (height * width))
    # Panels of few bits are short, and a CPU follows each only when it has met some of it; so those
    # of the next block are asked for here. It follows long ones better by itself.
    ahead = builder.mul(packed_stride, number(width))
    lines = -(-layout.dtype.itemsize // LINE) if layout.parts else 0
    with cgutils.for_range(builder, groups) as group:
        start = builder.mul(group.index, number(layout.dtype.itemsize))
        places = [emit.at(panel, start) for panel in panels]
        for place in places:
            for line in range(lines):
                emit.prefetch(emit.at(place, ahead, number(line * LINE)))
        parts = [layout.open(emit, place) for place in places]
        with cgutils.for_range(builder, number(GROUP // layout.step)) as loop:
            first = builder.mul(loop.index, number(layout.step))
            k = builder.add(builder.mul(group.index, number(GROUP)), first)
            right = [
                layout.read(emit, place, part, first)
                for place, part in zip(places, parts, strict=True)
            ]
            for step in range(layout.step):
                for i, row in enumerate(rows):
                    left = emit.splat(builder.load(emit.at(row, k, number(step))))
                    for j in range(width):
                        sum_ = sums[i * width + j]
                        builder.store(emit.fma(left, right[j][step], builder.load(sum_)), sum_)
    for i in range(height):
        row = builder.mul(args[12], number(i))
        for j in range(width):
            target = emit.at(out, args[11], row, number(j * LANES))
            sum_ = builder.load(sums[i * width + j])
            emit.store(builder.fadd(emit.load(target), sum_), target)


@intrinsic(prefer_literal=True)
def dequantize(
    typing_context: Any,
    kind: Any,
    packed: Any,
    start: Any,
    groups: Any,
    out: Any,
    out_start: Any,
):
    """Write groups of a panel as those of a panel of float32.

    `kind` is a place in KINDS, known when this is compiled; `packed` are bytes and the groups begin
    at `start`; `out` is flat float32.
    """
    intp = types.intp
    signature = types.void(kind, packed, intp, intp, out, intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        layout = LAYOUTS[KINDS[kind.literal_value]]
        _, _, start, groups, _, out_start = args
        packed, out = emit.data(1), emit.data(4)

        def number(value: int) -> Any:
            return ir.Constant(start.type, value)

        with cgutils.for_range(builder, groups) as group:
            size = number(layout.dtype.itemsize)
            place = emit.at(packed, start, builder.mul(group.index, size))
            parts = layout.open(emit, place)
            with cgutils.for_range(builder, number(GROUP // layout.step)) as loop:
                first = builder.mul(loop.index, number(layout.step))
                k = builder.add(builder.mul(group.index, number(GROUP)), first)
                for step, vector in enumerate(layout.read(emit, place, parts, first)):
                    row = builder.mul(builder.add(k, number(step)), number(LANES))
                    emit.store(vector, emit.at(out, out_start, row))
        return context.get_dummy_value()

    return signature, generate


@compiled
def block_rows(left: int) -> int:
    """Rows of the next block, where `left` are to be computed: blocks of nearly equal height."""
    blocks = -(-left // MOST_ROWS)
    return -(-left // blocks)
