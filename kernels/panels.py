"""How weights lie in memory for linear layers, and the instructions that read them.

A panel holds PANEL outputs, group of inputs after group; a group holds its scales and minima and
then its values. Those of float32 and bfloat16 are a vector for each input. Of int8, four inputs of
an output lie side by side, as a CPU multiplies bytes; of int4 eight, the first four of them in the
lower halves of four bytes. So a kernel reads one panel from its first byte to its last. This module
knows no loop over rows and no layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numpy.typing import NDArray

from .emit import FLOATS, INT32, INTEGERS, LANES, Emit
from .weight import DTYPES, GROUP, Kind, Weight

PANEL = LANES
"""Outputs of a panel."""

PARTS = ("scales", "minima")


@dataclass(frozen=True)
class Layout:
    """A group of a panel.

    Attributes:
        kind: The number format.
        parts: The numbers of the format that a group has beside its values.
        bits: Of a value in memory.
    """

    kind: Kind
    parts: tuple[str, ...]
    bits: int

    @property
    def step(self) -> int:
        """Inputs that are read at once: as many as share the bytes of a vector's lane."""
        return 32 // self.bits if self.bits <= 8 else 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """A group, as numpy sees it."""
        across = (PANEL, 4) if self.step > 1 else (PANEL,)
        fields = [(part, np.float16, (PANEL,)) for part in self.parts]
        return np.dtype([*fields, ("values", DTYPES[self.kind], (GROUP // self.step, *across))])

    def pack(self, weight: Weight, panels: int) -> NDArray[Any]:
        """Groups [panels, groups] of a weight of this kind; zeros fill the last panels up."""
        groups = -(-weight.shape[1] // GROUP)
        packed = np.zeros((panels, groups), self.dtype)
        for part in self.parts:
            packed[part] = _pad(getattr(weight, part), panels, groups).swapaxes(1, 2)
        values = _pad(weight.values, panels, groups * GROUP)
        if self.step == 1:
            values = values.reshape(panels, PANEL, groups, GROUP)
            packed["values"] = values.transpose(0, 2, 3, 1)
        else:
            values = values.reshape(panels, PANEL, groups, GROUP // self.step, -1, 4)
            values = values.transpose(4, 0, 2, 3, 1, 5)
            packed["values"] = values[0] if self.bits == 8 else values[0] | values[1] << 4
        return packed

    def unpack(self, packed: NDArray[Any], index: NDArray[np.int64], inputs: int) -> Weight:
        """Some outputs of a weight that `pack` packed; it had `inputs`."""
        panel, lane = np.divmod(index, PANEL)
        parts = {part: packed[part][panel, :, lane] for part in self.parts}
        values = packed["values"][panel, :, :, lane]  # [T, groups, GROUP // step, ...]
        if self.bits == 4:
            values = np.stack((values & 15, values >> 4), axis=3)
        values = np.ascontiguousarray(
            values.reshape(len(index), packed.shape[1] * GROUP)[:, :inputs]
        )
        return Weight(self.kind, values, **parts)

    # ---- instructions ----

    def open(self, emit: Emit, group: Any) -> list[Any]:
        """Vectors of the numbers that a group has beside its values; `group` points to it."""
        return [emit.half(_load(emit, group, self._offset(part), 16)) for part in self.parts]

    def read(self, emit: Emit, group: Any, parts: list[Any], first: Any) -> list[Any]:
        """Vectors of the weights of `step` inputs, from the group's input `first` on."""
        builder, width = emit.builder, PANEL * self.bits // 8
        place = builder.mul(first, ir.Constant(first.type, width))
        place = builder.add(place, ir.Constant(place.type, self._offset("values")))
        bits = max(self.bits, 16) if self.step == 1 else 32
        found = _load(emit, builder.gep(group, [place]), 0, bits)
        if self.kind == "float32":
            return [builder.bitcast(found, FLOATS)]
        if self.kind == "bfloat16":
            wide = builder.shl(builder.zext(found, INTEGERS), emit.integer(16))
            return [builder.bitcast(wide, FLOATS)]
        if self.kind == "int8":
            shifted = [builder.shl(found, emit.integer(24 - 8 * i)) for i in range(4)]
            bytes_ = [builder.ashr(lane, emit.integer(24)) for lane in shifted]
            return [builder.fmul(builder.sitofp(byte, FLOATS), parts[0]) for byte in bytes_]
        shifted = [builder.lshr(found, emit.integer(8 * i + j)) for j in (0, 4) for i in range(4)]
        halves = [builder.and_(lane, emit.integer(15)) for lane in shifted]
        return [emit.fma(builder.sitofp(half, FLOATS), *parts) for half in halves]

    def read_bytes(self, emit: Emit, group: Any, first: int) -> list[Any]:
        """The values of `step` inputs as bytes without a sign, four inputs a vector.

        Those of int8 are 128 too large.
        """
        builder = emit.builder
        found = _load(emit, group, self._offset("values") + first * PANEL * self.bits // 8, 32)
        if self.kind == "int8":
            return [builder.xor(found, emit.integer(-0x7F7F7F80))]  # 0x80 in each byte
        low = emit.integer(0x0F0F0F0F)
        return [builder.and_(found, low), builder.and_(builder.lshr(found, emit.integer(4)), low)]

    def _offset(self, field: str) -> int:
        fields = self.dtype.fields
        assert fields is not None
        return int(fields[field][1])


LAYOUTS: dict[Kind, Layout] = {
    layout.kind: layout
    for layout in (
        Layout("float32", (), 32),
        Layout("bfloat16", (), 16),
        Layout("int8", ("scales",), 8),
        Layout("int4", ("scales", "minima"), 4),
    )
}


def _load(emit: Emit, base: Any, offset: int, bits: int) -> Any:
    """The vector of whole numbers `offset` bytes behind `base`."""
    builder = emit.builder
    pointer = builder.gep(base, [ir.Constant(INT32, offset)])
    kind = ir.VectorType(ir.IntType(bits), LANES)
    return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=1)


def _pad(array: NDArray[Any], panels: int, width: int) -> NDArray[Any]:
    """[panels, PANEL, width] of [outputs, at most width]."""
    outputs, inputs = array.shape
    short = panels * PANEL - outputs, width - inputs
    if any(short):
        array = np.pad(array, [(0, n) for n in short])
    return array.reshape(panels, PANEL, width)
