"""How weights lie in memory for linear layers, and the instructions that read them.

A panel holds PANEL outputs, group of inputs after group; a group holds its scales and minima and
then, input after input, one vector of values. So a kernel reads one panel from its first byte to
its last. This module knows no loop over rows and no layer.
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
        """Inputs that are read at once: as many as share bytes."""
        return 8 // self.bits if self.bits < 8 else 1

    @property
    def dtype(self) -> np.dtype[Any]:
        """A group, as numpy sees it."""
        values = (GROUP // self.step, PANEL)
        fields = [(part, np.float16, (PANEL,)) for part in self.parts]
        return np.dtype([*fields, ("values", DTYPES[self.kind], values)])

    def pack(self, weight: Weight, panels: int) -> NDArray[Any]:
        """Groups [panels, groups] of a weight of this kind; zeros fill the last panels up."""
        groups = -(-weight.shape[1] // GROUP)
        packed = np.zeros((panels, groups), self.dtype)
        for part in self.parts:
            packed[part] = _pad(getattr(weight, part), panels, groups).swapaxes(1, 2)
        values = _pad(weight.values, panels, groups * GROUP)
        values = values.reshape(panels, PANEL, groups, GROUP // self.step, self.step)
        values = values.transpose(4, 0, 2, 3, 1)
        packed["values"] = values[0] if self.step == 1 else values[0] | values[1] << self.bits
        return packed

    def unpack(self, packed: NDArray[Any], index: NDArray[np.int64], inputs: int) -> Weight:
        """Some outputs of a weight that `pack` packed; it had `inputs`."""
        panel, lane = np.divmod(index, PANEL)
        parts = {part: packed[part][panel, :, lane] for part in self.parts}
        values = packed["values"][panel, :, :, lane]  # [T, groups, GROUP // step]
        if self.step > 1:
            values = np.stack((values & 15, values >> 4), axis=-1)
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
        bits = max(self.bits, 8)
        found = _load(emit, builder.gep(group, [place]), 0, bits)
        if self.kind == "float32":
            return [builder.bitcast(found, FLOATS)]
        if self.kind == "bfloat16":
            wide = builder.shl(builder.zext(found, INTEGERS), emit.integer(16))
            return [builder.bitcast(wide, FLOATS)]
        if self.kind == "int8":
            wide = builder.sitofp(builder.sext(found, INTEGERS), FLOATS)
            return [builder.fmul(wide, parts[0])]
        wide = builder.zext(found, INTEGERS)
        both = builder.and_(wide, emit.integer(15)), builder.lshr(wide, emit.integer(4))
        return [emit.fma(builder.sitofp(half, FLOATS), *parts) for half in both]

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
