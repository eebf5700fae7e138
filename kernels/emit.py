"""The instructions that the loops of `simd` are made of, on vectors of 16 floats.

LLVM splits the vectors where a CPU's are shorter. NaN and infinity are kept. This module knows no
loop and no array's meaning.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils

from .host import FEATURES

LANES = 16
"""Floats in a vector."""

LOG2_E = 1.4426950408889634

_FLOAT = ir.FloatType()
FLOATS = ir.VectorType(_FLOAT, LANES)
INT32 = ir.IntType(32)
INTEGERS = ir.VectorType(INT32, LANES)
ZERO = ir.Constant(FLOATS, [0.0] * LANES)

# 2 ** x for x from -0.5 to 0.5, the highest power first; as in the Cephes library's exp2f.
_EXP2 = (
    1.535336188319500e-4,
    1.339887440266574e-3,
    9.618437357674640e-3,
    5.550332471162809e-2,
    2.402264791363012e-1,
    6.931472028550421e-1,
    1.0,
)


# tanh(x) = x + x ** 3 * (...) for x from -0.625 to 0.625, in x ** 2, the highest power first; as in
# the Cephes library's tanhf.
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)


class Emit:
    """Emits instructions into one function's body."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self.builder = builder
        self._context = context
        self._types = signature.args
        self._args = args
        self._fma = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(FLOATS, [FLOATS] * 3), f"llvm.fma.v{LANES}f32"
        )

    def data(self, index: int) -> Any:
        """Pointer to the elements of the array argument `index`."""
        array = self._context.make_array(self._types[index])
        return array(self._context, self.builder, self._args[index]).data

    def at(self, base: Any, *offsets: Any) -> Any:
        """Pointer to the element behind the sum of `offsets`."""
        total = offsets[0]
        for offset in offsets[1:]:
            total = self.builder.add(total, offset)
        return self.builder.gep(base, [total])

    def load(self, pointer: Any) -> Any:
        """The vector that starts at the float `pointer`."""
        pointer = self.builder.bitcast(pointer, FLOATS.as_pointer())
        return self.builder.load(pointer, align=4)

    def store(self, vector: Any, pointer: Any) -> None:
        """Write the vector that starts at the float `pointer`."""
        pointer = self.builder.bitcast(pointer, FLOATS.as_pointer())
        self.builder.store(vector, pointer, align=4)

    def splat(self, number: Any) -> Any:
        """A vector of the same number."""
        first = self.builder.insert_element(
            ir.Constant(FLOATS, ir.Undefined), number, ir.Constant(INT32, 0)
        )
        return self.shuffle(first, first, [0] * LANES)

    def shuffle(self, first: Any, second: Any, lanes: list[int]) -> Any:
        """Pick lanes of two vectors; those of the second are counted from LANES on."""
        mask = ir.Constant(ir.VectorType(INT32, len(lanes)), lanes)
        return self.builder.shuffle_vector(first, second, mask)

    def constant(self, number: float) -> Any:
        """A vector of a number known now, rounded to float32."""
        (rounded,) = struct.unpack("f", struct.pack("f", number))
        return ir.Constant(FLOATS, [rounded] * LANES)

    def integer(self, number: int) -> Any:
        """A vector of a whole number known now."""
        return ir.Constant(INTEGERS, [number] * LANES)

    def most(self, a: Any, b: Any) -> Any:
        """The greater of a and b, lane by lane; b where a is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", a, b), a, b)

    def across(self, vector: Any, join: Any) -> Any:
        """A vector of what all lanes of `vector` are when they are joined, by pairs."""
        for distance in (8, 4, 2, 1):
            lanes = [j ^ distance for j in range(LANES)]
            vector = join(vector, self.shuffle(vector, vector, lanes))
        return vector

    def exp2(self, exponent: Any) -> Any:
        """2 ** exponent for exponents up to 0; 0 below -126. The error is below 2e-7 of it."""
        builder = self.builder
        # Adding 1.5 * 2 ** 23 leaves the nearest whole number in the lowest bits.
        shifted = builder.fadd(exponent, self.constant(12582912.0))
        rest = builder.fsub(exponent, builder.fsub(shifted, self.constant(12582912.0)))
        power = self.constant(_EXP2[0])
        for factor in _EXP2[1:]:
            power = self.fma(power, rest, self.constant(factor))
        biased = builder.add(builder.bitcast(shifted, INTEGERS), self.integer(127))
        scale = builder.bitcast(builder.shl(biased, self.integer(23)), FLOATS)
        tiny = builder.fcmp_ordered("<", exponent, self.constant(-126.0))
        return builder.select(tiny, ZERO, builder.fmul(power, scale))

    def tanh(self, x: Any) -> Any:
        """tanh x. The error is below 2e-7 of it."""
        builder = self.builder
        square = builder.fmul(x, x)
        power = self.constant(_TANH[0])
        for factor in _TANH[1:]:
            power = self.fma(power, square, self.constant(factor))
        near = self.fma(builder.fmul(power, square), x, x)
        bits = builder.bitcast(x, INTEGERS)
        sign = builder.and_(bits, self.integer(-(1 << 31)))
        size = builder.bitcast(builder.and_(bits, self.integer((1 << 31) - 1)), FLOATS)
        # 1 - 2 / (1 + e ** 2x), without large numbers.
        small = self.exp2(builder.fmul(size, self.constant(-2 * LOG2_E)))
        one = self.constant(1.0)
        far = builder.fdiv(builder.fsub(one, small), builder.fadd(one, small))
        far = builder.bitcast(builder.or_(builder.bitcast(far, INTEGERS), sign), FLOATS)
        return builder.select(builder.fcmp_ordered("<", size, self.constant(0.625)), near, far)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """A * b + c."""
        return self.builder.call(self._fma, [a, b, c])

    def half(self, bits: Any) -> Any:
        """The numbers of a vector of finite float16, which are given as whole numbers of 16 bits.

        LLVM's own conversion calls a library on a CPU that has no instruction for it.
        """
        builder = self.builder
        if "f16c" in FEATURES:
            halves = ir.VectorType(ir.HalfType(), LANES)
            return builder.fpext(builder.bitcast(bits, halves), FLOATS)
        wide = builder.zext(bits, INTEGERS)
        sign = builder.shl(builder.and_(wide, self.integer(0x8000)), self.integer(16))
        size = builder.shl(builder.and_(wide, self.integer(0x7FFF)), self.integer(13))
        # The exponent's bias is 15 there and 127 here; the factor makes subnormals right too.
        size = builder.fmul(builder.bitcast(size, FLOATS), self.constant(2.0**112))
        return builder.bitcast(builder.or_(builder.bitcast(size, INTEGERS), sign), FLOATS)

    def prefetch(self, pointer: Any) -> None:
        """Ask for the cache line of what will be read soon; there need be nothing."""
        builder = self.builder
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, INT32, INT32, INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        read, near, data = (ir.Constant(INT32, number) for number in (0, 3, 1))
        builder.call(function, [builder.bitcast(pointer, cgutils.voidptr_t), read, near, data])

    def spread(self, number: Any) -> Any:
        """A vector of the same whole number."""
        first = self.builder.insert_element(
            ir.Constant(INTEGERS, ir.Undefined), number, ir.Constant(INT32, 0)
        )
        return self.shuffle(first, first, [0] * LANES)

    def word(self, number: int) -> Any:
        """A number of 64 bits that is known now, as loops count with."""
        return ir.Constant(ir.IntType(64), number)

    def get(self, base: Any, offset: int, kind: Any) -> Any:
        """What lies `offset` bytes behind the byte `base`."""
        pointer = self.builder.gep(base, [ir.Constant(INT32, offset)])
        return self.builder.load(self.builder.bitcast(pointer, kind.as_pointer()), align=1)

    def put(self, value: Any, base: Any, offset: int) -> None:
        """Write a value `offset` bytes behind the byte `base`."""
        pointer = self.builder.gep(base, [ir.Constant(INT32, offset)])
        self.builder.store(value, self.builder.bitcast(pointer, value.type.as_pointer()), align=1)

    def dot(self, sums: Any, unsigned: Any, signed: Any) -> Any:
        """Add the products of the four bytes of each lane; all three are whole numbers."""
        kind = ir.FunctionType(INTEGERS, [INTEGERS] * 3)
        name = "llvm.x86.avx512.vpdpbusd.512"
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [sums, unsigned, signed])

    def sum_integers(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The sums of all lanes of two vectors of whole numbers."""
        half, behind = list(range(LANES // 2)), list(range(LANES, LANES + LANES // 2))
        first = self.shuffle(a, b, half + behind)
        second = self.shuffle(a, b, [i + LANES // 2 for i in half + behind])
        both = self.builder.add(first, second)
        for distance in (4, 2, 1):
            lanes = [j ^ distance for j in range(LANES)]
            both = self.builder.add(both, self.shuffle(both, both, lanes))
        first, second = (
            self.builder.extract_element(both, ir.Constant(INT32, lane)) for lane in (0, LANES // 2)
        )
        return first, second

    def most_integer(self, vectors: list[Any]) -> Any:
        """A vector of the greatest of all lanes of whole numbers without a sign."""
        builder = self.builder

        def most(a: Any, b: Any) -> Any:
            return builder.select(builder.icmp_unsigned(">", a, b), a, b)

        found = functools.reduce(most, vectors)
        for distance in (8, 4, 2, 1):
            lanes = [j ^ distance for j in range(LANES)]
            found = most(found, self.shuffle(found, found, lanes))
        return found

    def registers(self, values: list[Any]) -> list[Any]:
        """Variables that LLVM keeps in registers."""
        variables = [cgutils.alloca_once(self.builder, value.type) for value in values]
        for variable, value in zip(variables, values, strict=True):
            self.builder.store(value, variable)
        return variables
