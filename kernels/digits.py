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

from itertools import product
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .compiled import compiled
from .emit import FLOATS, INT32, INTEGERS, LANES, Emit
from .host import FEATURES
from .panels import LAYOUTS, Layout
from .products import LINE, NARROW, WIDE, by_blocks
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
sum of the numbers times it; -128 times the sum of all digits but the last, read as one number, and
-128 times that of the last, for weights that are kept 128 too large."""

POWER = DIGITS * GROUP
TOTAL = POWER + 4
SHIFT = TOTAL + 4

MAGIC = 0x4B400000
"""The bits of the float 1.5 * 2 ** 23."""

MOST_ROWS = 4
"""Rows of a block. Twelve to eighteen sums keep the units that multiply busy; with many more there
is no room to begin a group before the last one has ended."""

STEP = 8
"""Inputs that are multiplied in one go."""

BLOCKS = [
    (1, WIDE),
    *((rows, NARROW) for rows in range(1, MOST_ROWS + 1)),
]
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
        raised = [builder.bitcast(emit.fma(v, power, magic), INTEGERS) for v in floats]
        # With 128 at each place, bytes without a sign are digits that are 128 too large.
        middle = sum(128 << 8 * digit for digit in range(DIGITS))
        digits = [
            builder.xor(builder.add(v, emit.integer(middle - MAGIC)), emit.integer(middle))
            for v in raised
        ]
        _put_digits(emit, digits, out)
        numbers = builder.sub(builder.add(*raised), emit.integer(2 * MAGIC - (1 << 32)))
        lowest = emit.integer(0)
        for vector in digits:
            lowest = emit.dot(lowest, emit.integer(1), vector)
        total, lowest = emit.sum_integers(numbers, lowest)
        high = builder.ashr(builder.sub(total, lowest), ir.Constant(INT32, 8))
        for place, sum_ in ((SHIFT, high), (SHIFT + 4, lowest)):
            emit.put(builder.mul(sum_, ir.Constant(INT32, -128)), out, place)
        emit.put(builder.fmul(builder.sitofp(total, ir.FloatType()), inverse), out, TOTAL)
        emit.put(inverse, out, POWER)
        return context.get_dummy_value()

    return signature, generate


def _put_digits(emit: Emit, digits: list[Any], out: Any) -> None:
    """Write the bytes of whole numbers, those of the highest place of all numbers first."""
    builder, bytes_ = emit.builder, ir.VectorType(ir.IntType(8), 4 * LANES)
    first, second = (builder.bitcast(vector, bytes_) for vector in digits)
    for digit in range(DIGITS):
        places = [4 * i + DIGITS - 1 - digit for i in range(GROUP)]
        mask = ir.Constant(ir.VectorType(INT32, GROUP), places)
        emit.put(builder.shuffle_vector(first, second, mask), out, digit * GROUP)


def _powers(emit: Emit, floats: list[Any]) -> tuple[Any, Any]:
    """The power of two that makes whole numbers of a group, as a vector, and its inverse."""
    builder = emit.builder
    sizes = [
        builder.and_(builder.bitcast(v, INTEGERS), emit.integer((1 << 31) - 1)) for v in floats
    ]
    exponent = builder.lshr(emit.most_integer(sizes), emit.integer(23))
    # Groups of tiny numbers have the power whose inverse is the least normal number.
    least = emit.integer(TOP)
    tiny = builder.icmp_unsigned("<", exponent, least)
    exponent = builder.select(tiny, least, exponent)
    bits = builder.sub(emit.integer(2 * 127 + TOP - 1), exponent)
    power = builder.bitcast(builder.shl(bits, emit.integer(23)), FLOATS)
    exponent = builder.extract_element(exponent, ir.Constant(INT32, 0))
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
    bias: Any,
    bias_start: Any,
    out: Any,
    out_start: Any,
    out_stride: Any,
):
    """Write a block of results, of a size in BLOCKS.

        out[out_start + i * out_stride + j] = bias[bias_start + j] + sum over k < groups * GROUP of
            input k of row i * weight of output j and input k

    `kind` is a place in KINDS, known when this is compiled. `x` are bytes: the first group of row i
    lies i encoded groups behind `x_start`, each next one `x_stride` bytes further. `packed` are
    bytes, as in `products.multiply`; `bias` and `out` are flat float32.
    """
    intp = types.intp
    numbers = [intp] * 2
    signature = types.void(
        kind, *numbers, x, *numbers, packed, *numbers, intp, bias, intp, out, *numbers
    )

    layout = LAYOUTS[KINDS[kind.literal_value]]
    return signature, by_blocks(BLOCKS, layout, _multiply_block)


def _multiply_block(emit: Emit, args: Any, layout: Layout, height: int, width: int) -> None:
    """Emit `multiply_digits` for a block of `height` rows and `width` panels."""
    builder = emit.builder
    x, packed, bias, out = (emit.data(i) for i in (3, 6, 10, 12))
    x_start, x_stride, packed_start, packed_stride, groups = (args[i] for i in (4, 5, 7, 8, 9))
    first = emit.at(x, x_start)
    panels = [
        emit.at(packed, packed_start, builder.mul(packed_stride, emit.word(j)))
        for j in range(width)
    ]
    targets = [
        emit.at(out, args[13], builder.mul(args[14], emit.word(i)), emit.word(j * LANES))
        for i in range(height)
        for j in range(width)
    ]
    biases = [emit.load(emit.at(bias, args[11], emit.word(j * LANES))) for j in range(width)]
    sums = emit.registers(biases * height)
    ahead = builder.mul(packed_stride, emit.word(width))
    with cgutils.for_range(builder, groups) as group:
        left = emit.at(first, builder.mul(group.index, x_stride))
        size = emit.word(layout.dtype.itemsize)
        right = [emit.at(panel, builder.mul(group.index, size)) for panel in panels]
        for place in right:  # as in `products`
            for line in range(0, layout.dtype.itemsize, LINE):
                emit.prefetch(emit.at(place, ahead, emit.word(line)))
        found = _multiply_group(emit, layout, left, right, height)
        parts = [layout.open(emit, place) for place in right]
        for place, sum_ in enumerate(sums):
            i, j = divmod(place, width)
            power, total = (
                emit.splat(emit.get(left, i * ENCODED + field, ir.FloatType()))
                for field in (POWER, TOTAL)
            )
            scale, *minimum = parts[j]
            made = emit.fma(found[place], builder.fmul(scale, power), builder.load(sum_))
            for part in minimum:
                made = emit.fma(total, part, made)
            builder.store(made, sum_)
    for sum_, target in zip(sums, targets, strict=True):
        emit.store(builder.load(sum_), target)


def _multiply_group(
    emit: Emit, layout: Layout, left: Any, right: list[Any], height: int
) -> list[Any]:
    """Products of one group of all rows with all panels, as floats without scales and powers."""
    builder, width = emit.builder, len(right)
    # [rows, panels, digits]
    sums = emit.registers([emit.integer(0)] * (height * width * DIGITS))
    with cgutils.for_range(builder, emit.word(GROUP // STEP)) as loop:
        start = builder.mul(loop.index, emit.word(STEP * LANES * layout.bits // 8))
        vectors = []
        for panel in right:
            firsts = range(0, STEP, layout.step)
            read = [layout.read_bytes(emit, emit.at(panel, start), first) for first in firsts]
            vectors.append([vector for some in read for vector in some])
        inputs = emit.at(left, builder.mul(loop.index, emit.word(STEP)))
        for k in range(STEP // 4):
            for row, digit in product(range(height), range(DIGITS)):
                place = row * ENCODED + digit * GROUP + 4 * k
                four = emit.spread(emit.get(inputs, place, INT32))
                for panel in range(width):
                    sum_ = sums[(row * width + panel) * DIGITS + digit]
                    builder.store(emit.dot(builder.load(sum_), vectors[panel][k], four), sum_)
    found = []
    for row, panel in product(range(height), range(width)):
        first = (row * width + panel) * DIGITS
        digits = [builder.load(sum_) for sum_ in sums[first : first + DIGITS]]
        shifts = emit.at(left, emit.word(row * ENCODED))
        found.append(_join(emit, digits, shifts if layout.kind == "int8" else None))
    return found


def _join(emit: Emit, digits: list[Any], shifts: Any) -> Any:
    """The float that digits stand for, which may be larger than a byte.

    `shifts` points to the encoded group of a row whose shifts are to be added.
    """
    builder = emit.builder
    *high, low = digits
    whole, *rest = high
    for digit in rest:
        whole = builder.add(builder.shl(whole, emit.integer(8)), digit)
    if shifts is None:  # weights of 4 bits leave room for all of it
        return builder.sitofp(builder.add(builder.shl(whole, emit.integer(8)), low), FLOATS)
    whole, low = (
        builder.sitofp(builder.add(part, emit.spread(emit.get(shifts, place, INT32))), FLOATS)
        for part, place in ((whole, SHIFT), (low, SHIFT + 4))
    )
    return emit.fma(whole, emit.constant(256.0), low)


@compiled
def block_rows(left: int) -> int:
    """Rows of the next block, where `left` are to be computed: three as far as that goes."""
    blocks = max(1, (left + 1) // 3)
    return -(-left // blocks)
