"""Products of rows that are written as whole numbers, byte by byte.

A CPU that multiplies and adds 64 bytes at once need not turn weights of 4 or 8 bits into floats. A
group of a row becomes whole numbers of TOP bits times a power of two, and each of these DIGITS
signed bytes to the base 256. What bytes and weights add up to within a group is exact, so no order
matters there; sums of groups are float32 and are added one after another. So what a row gives does
not depend on the others of its block. This module knows no threads and no bias.
"""
# ruff: noqa: ANN201, ARG001, PLR0917 -- see `simd`
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .emit import FLOATS, INT32, INTEGERS, LANES, Emit
from .host import FEATURES
from .panels import LAYOUTS, Layout
from .products import LINE, by_blocks
from .weight import GROUP, Kind

AVAILABLE = {"avx512f", "avx512vnni"} <= FEATURES
"""Whether this CPU multiplies bytes so."""

KINDS: tuple[Kind, ...] = ("int8", "int4")
"""Of weights that are multiplied so."""

DIGITS = 3

TOP = 8 * DIGITS - 2
"""Bits of a whole number: the most that leaves room for the carries of signed digits."""

ENCODED = 128
"""Bytes of an encoded group: its digits, those of the highest place first; the power of two; the
sum of the numbers times it; of each digit, -128 times the sum, for weights that are kept 128 too
large."""

POWER = DIGITS * GROUP
TOTAL = POWER + 4
SHIFTS = TOTAL + 4

FEW_ROWS, MOST_ROWS = 2, 4
"""Up to how many rows a block is WIDE panels across, and rows of a block."""

BLOCKS = ((1, 4), (2, 4), (1, 2), (2, 2), (3, 2), (4, 2))
"""(rows, panels) of all blocks that there are."""


@intrinsic
def encode(typing_context: Any, x: Any, start: Any, out: Any, out_start: Any):
    """Write the group of a row whose first float is `start` as digits; `out` are bytes.

    Of a group that holds NaN or infinity the power is NaN.
    """
    intp = types.intp
    signature = types.void(x, intp, out, intp)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        emit = Emit(context, builder, signature, args)
        x, out = emit.data(0), emit.at(emit.data(2), args[3])
        word = args[1].type
        floats = [
            emit.load(emit.at(x, args[1], ir.Constant(word, i))) for i in range(0, GROUP, LANES)
        ]
        power, inverse = _powers(emit, floats)
        magic = emit.constant(12582912.0)  # leaves a whole number in the lowest bits
        low = emit.integer(0x4B400000)
        numbers = [
            builder.sub(builder.bitcast(emit.fma(v, emit.splat(power), magic), INTEGERS), low)
            for v in floats
        ]
        total = builder.sitofp(emit.sum_integers(numbers), ir.FloatType())
        emit.put(builder.fmul(total, inverse), out, TOTAL)
        emit.put(inverse, out, POWER)
        for digit in reversed(range(DIGITS)):
            digits = numbers
            if digit:
                digits = [
                    builder.ashr(builder.shl(n, emit.integer(24)), emit.integer(24))
                    for n in numbers
                ]
                numbers = [
                    builder.ashr(builder.sub(n, d), emit.integer(8))
                    for n, d in zip(numbers, digits, strict=True)
                ]
            for i, vector in enumerate(digits):
                small = builder.trunc(vector, ir.VectorType(ir.IntType(8), LANES))
                emit.put(small, out, digit * GROUP + i * LANES)
            shift = builder.mul(emit.sum_integers(digits), ir.Constant(INT32, -128))
            emit.put(shift, out, SHIFTS + 4 * digit)
        return context.get_dummy_value()

    return signature, generate


def _powers(emit: Emit, floats: list[Any]) -> tuple[Any, Any]:
    """The power of two that makes whole numbers of a group, and its inverse."""
    builder = emit.builder
    sizes = [
        builder.and_(builder.bitcast(v, INTEGERS), emit.integer((1 << 31) - 1)) for v in floats
    ]
    exponent = builder.lshr(emit.most_integer(sizes), ir.Constant(INT32, 23))
    # Groups of tiny numbers have the power whose inverse is the least normal number.
    least = ir.Constant(INT32, TOP)
    tiny = builder.icmp_unsigned("<", exponent, least)
    exponent = builder.select(tiny, least, exponent)
    bits = builder.sub(ir.Constant(INT32, 2 * 127 + TOP - 1), exponent)
    power = builder.bitcast(builder.shl(bits, ir.Constant(INT32, 23)), ir.FloatType())
    bits = builder.sub(exponent, ir.Constant(INT32, TOP - 1))
    inverse = builder.bitcast(builder.shl(bits, ir.Constant(INT32, 23)), ir.FloatType())
    finite = builder.icmp_unsigned("<", exponent, ir.Constant(INT32, 255))
    nan = ir.Constant(ir.FloatType(), float("nan"))
    return power, builder.select(finite, inverse, nan)


@intrinsic(prefer_literal=True)
def multiply_digits(
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
    """Add products to a block of results, of a size in BLOCKS, as `products.multiply` does.

    `kind` is a place in KINDS, known when this is compiled. `x` are bytes: encoded rows, the next
    one `x_stride` bytes behind.
    """
    intp = types.intp
    numbers = [intp] * 2
    signature = types.void(kind, *numbers, x, *numbers, packed, *numbers, intp, out, *numbers)

    layout = LAYOUTS[KINDS[kind.literal_value]]
    return signature, by_blocks(BLOCKS, layout, _multiply_block)


def _multiply_block(emit: Emit, args: Any, layout: Layout, height: int, width: int) -> None:
    """Emit `multiply_digits` for a block of `height` rows and `width` panels."""
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
    targets = [
        emit.at(out, args[11], builder.mul(args[12], number(i)), number(j * LANES))
        for i in range(height)
        for j in range(width)
    ]
    sums = emit.registers([emit.load(target) for target in targets])
    ahead = builder.mul(packed_stride, number(width))
    with cgutils.for_range(builder, groups) as group:
        left = [emit.at(row, builder.mul(group.index, number(ENCODED))) for row in rows]
        size = number(layout.dtype.itemsize)
        right = [emit.at(panel, builder.mul(group.index, size)) for panel in panels]
        for place in right:  # as in `products`
            for line in range(0, layout.dtype.itemsize, LINE):
                emit.prefetch(emit.at(place, ahead, number(line)))
        found = _multiply_group(emit, layout, left, right)
        for j, place in enumerate(right):
            scale, *minimum = layout.open(emit, place)
            for i, row in enumerate(left):
                sum_ = sums[i * width + j]
                made = emit.fma(found[i][j], scale, builder.load(sum_))
                for part in minimum:
                    made = emit.fma(emit.splat(emit.get(row, TOTAL, ir.FloatType())), part, made)
                builder.store(made, sum_)
    for sum_, target in zip(sums, targets, strict=True):
        emit.store(builder.load(sum_), target)


def _multiply_group(
    emit: Emit, layout: Layout, left: list[Any], right: list[Any]
) -> list[list[Any]]:
    """Products of one group of each row and each panel, without the weights' scales."""
    builder = emit.builder
    sums: list[list[list[Any]]] = [
        [
            [
                emit.spread(emit.get(row, SHIFTS + 4 * digit, INT32))
                if layout.kind == "int8"
                else emit.integer(0)
                for digit in range(DIGITS)
            ]
            for _ in right
        ]
        for row in left
    ]
    for first in range(0, GROUP, layout.step):
        vectors = [layout.read_bytes(emit, place, first) for place in right]
        for k in range(layout.step // 4):
            for i, row in enumerate(left):
                for digit in range(DIGITS):
                    place = digit * GROUP + first + 4 * k
                    four = emit.spread(emit.get(row, place, INT32))
                    for j in range(len(right)):
                        sums[i][j][digit] = emit.dot(sums[i][j][digit], vectors[j][k], four)
    powers = [emit.splat(emit.get(row, POWER, ir.FloatType())) for row in left]
    return [
        [builder.fmul(_join(emit, digits), power) for digits in per_row]
        for per_row, power in zip(sums, powers, strict=True)
    ]


def _join(emit: Emit, digits: list[Any]) -> Any:
    """The float that digits stand for, which may be larger than a byte."""
    builder = emit.builder
    *high, low = digits
    base = emit.constant(256.0)
    if not high:
        return builder.sitofp(low, FLOATS)
    first, *rest = high
    for digit in rest:
        first = builder.add(builder.shl(first, emit.integer(8)), digit)
    return emit.fma(builder.sitofp(first, FLOATS), base, builder.sitofp(low, FLOATS))
