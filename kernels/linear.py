"""Linear layers from packed weights, for any number of rows.

Few rows are multiplied with weights that are worked out in registers, many with some hundred inputs
of a few outputs at a time that are worked out into a core's own cache. Either way each weight is
the same float32 number, and the products are added in the same order: what a row gives depends
neither on the rows beside it nor on the number of threads, to the last bit. Rows are never rounded.
This module knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numba import float32, int64, uint8
from numpy.typing import NDArray
from torch import Tensor

from .calls import Words, bytes_at, callable_by_address, floats_at
from .compiled import entry_point, sources
from .panels import LAYOUTS, PANEL
from .products import FEW_ROWS, KINDS, NARROW, WIDE, block_rows, dequantize, multiply
from .row_calls import buffer_at
from .team import run_calls, share
from .weight import GROUP, Floats, Kind, Weight
from .workers import Workers

Bytes = NDArray[np.uint8]

DEPTH = 16
"""Groups whose products are summed up one by one before the sum is added to those before: for
accuracy, and so that NARROW panels of so many fit a core's first cache."""

FEW = 24
"""Rows up to which working weights out again for each block is cheaper than keeping them."""

FLOAT32 = KINDS.index("float32")

READ, COMPUTE = 0.035, 0.009
"""Nanoseconds that reading a weight takes, and multiplying a row's input with it, about."""


class Linear:
    """y = x W^T + b.

    Args:
        weight: W, [out, in]. It is copied; the caller may drop it.
        bias: b, float32 [out].
        workers: The threads that compute.

    Attributes:
        shape: (out, in).
        kind: The number format of the weight.
        nbytes: Of the weight.
        workers: As given.
        columns: Outputs, those that fill the last panels up included.
        cost: Nanoseconds, about: of reading the weight, and of each row.
        words: What `linear_call` needs of it: addresses, which live as long as the layer.

    Raises:
        ValueError: A bias that does not fit.
    """

    def __init__(self, weight: Weight, bias: Tensor | None, workers: Workers) -> None:
        outputs, inputs = weight.shape
        if bias is not None and (bias.dtype, bias.shape) != (torch.float32, (outputs,)):
            raise ValueError(f"a bias of {bias.dtype} {list(bias.shape)} for {outputs} outputs")
        self.shape = (outputs, inputs)
        self.kind = weight.kind
        self.workers = workers
        self._layout = LAYOUTS[weight.kind]
        panels = -(-outputs // (PANEL * NARROW)) * NARROW
        self._packed = self._layout.pack(weight, panels)  # [panels, groups]
        self._bytes: Bytes = self._packed.reshape(-1).view(np.uint8)
        self._bias: Floats = np.zeros(panels * PANEL, np.float32)
        if bias is not None:
            self._bias[:outputs] = bias.numpy()
        self._call = linear_call(weight.kind)
        self.nbytes = self._packed.nbytes
        self.columns = len(self._bias)
        size = self._packed.size * PANEL * GROUP
        self.cost = READ * size, COMPUTE * size
        self.words = (
            self._bytes.ctypes.data, self._bytes.nbytes, self._bias.ctypes.data, panels
        )  # fmt: skip

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [T, out] for rows [T, in], float32.

        Raises:
            ValueError: Rows of another dtype or width.
        """
        outputs, inputs = self.shape
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != inputs:
            raise ValueError(f"rows are float32 [T, {inputs}], not {x.dtype} {list(x.shape)}")
        rows, padded = len(x), -(-inputs // GROUP) * GROUP
        memory = np.empty(rows * (padded + self.columns), np.float32)
        read, out = memory[: rows * padded].reshape(rows, padded), memory[rows * padded :]
        read[:, :inputs] = x.numpy()
        read[:, inputs:] = 0
        args = np.array([0, padded, padded, self.columns, *self.words])
        calls = np.array([[self._call.address, args.ctypes.data]])
        step = np.array([rows, memory.ctypes.data])
        fixed, per_row = self.cost
        tasks = share(np.array([fixed + rows * per_row]), self.workers.threads)
        run_calls(self.workers, calls, tasks, step)
        return torch.from_numpy(out.reshape(rows, self.columns))[:, :outputs]

    def rows(self, index: Tensor) -> Tensor:
        """Rows [T, in] of the weight in float32, as an embedding reads them; index is int64 [T]."""
        weight = self._layout.unpack(self._packed, index.numpy(), self.shape[1])
        return torch.from_numpy(weight.dequantize())


@cache
def multiply_rows(kind: Kind) -> Callable[..., None]:
    """Compile, or load from disk, the product of rows with some panels of a weight of a kind.

    Its arguments:
        x: [T, groups * GROUP].
        packed: The bytes of all panels.
        bias: [panels * PANEL].
        first, end: The panels to multiply with; whole blocks, but for the last of all.
        out: [T, panels * PANEL].
    """
    version = sources()
    place = KINDS.index(kind)
    layout = LAYOUTS[kind]
    group, float_group = layout.dtype.itemsize, LAYOUTS["float32"].dtype.itemsize
    few = FEW if kind != "float32" else 1 << 62  # nothing to work out

    def run(x: Floats, packed: Bytes, bias: Floats, first: int, end: int, out: Floats) -> None:  # noqa: PLR0917
        version  # noqa: B018 -- see `entry_point`
        count, inputs = x.shape
        columns, groups = out.shape[1], inputs // GROUP
        flat_x, flat_out = x.reshape(-1), out.reshape(-1)
        across = WIDE if count <= FEW_ROWS else NARROW
        made = np.empty(NARROW * DEPTH * GROUP * PANEL if count > few else 0, np.float32)
        made_bytes, made_stride = made.view(np.uint8), DEPTH * float_group
        for panel in range(first, end, across):
            width = min(across, end - panel)
            for i in range(count):
                for j in range(panel * PANEL, (panel + width) * PANEL):
                    out[i, j] = bias[j]
            for begin in range(0, groups, DEPTH):
                depth = min(DEPTH, groups - begin)
                start = (panel * groups + begin) * group
                if count > few:
                    for j in range(width):
                        dequantize(
                            place, packed, start + j * groups * group, depth,
                            made, j * DEPTH * GROUP * PANEL,
                        )  # fmt: skip
                i = 0
                while i < count:
                    height = block_rows(count - i)
                    x_start, out_start = i * inputs + begin * GROUP, i * columns + panel * PANEL
                    if count > few:
                        multiply(
                            FLOAT32, height, width, flat_x, x_start, inputs,
                            made_bytes, 0, made_stride, depth, flat_out, out_start, columns,
                        )  # fmt: skip
                    else:
                        multiply(
                            place, height, width, flat_x, x_start, inputs,
                            packed, start, groups * group, depth, flat_out, out_start, columns,
                        )  # fmt: skip
                    i += height

    return entry_point(
        run, float32[:, ::1], uint8[::1], float32[::1], int64, int64, float32[:, ::1]
    )


@cache
def linear_call(kind: Kind) -> Any:
    """The product of a step's rows with a weight of a kind, as a call of a program.

    args: offset of the rows; offset of the result; inputs; columns; address and bytes of the packed
    weight; address of the bias; panels.
    """
    version, multiply_some = sources(), multiply_rows(kind)

    def run(args: Words, step: Words, task: int, tasks: int) -> None:
        version  # noqa: B018 -- see `callable_by_address`
        panels = args[7]
        wholes = -(-panels // WIDE)  # a range begins with a whole block
        first = min(panels, wholes * task // tasks * WIDE)
        end = min(panels, wholes * (task + 1) // tasks * WIDE)
        multiply_some(
            buffer_at(step, args[0], args[2]), bytes_at(args[4], args[5]),
            floats_at(args[6], args[3]), first, end, buffer_at(step, args[1], args[3]),
        )  # fmt: skip

    return callable_by_address(run)


class Stack:
    """Layers that read the same rows; their outputs lie side by side.

    Args:
        layers: Of one width of input. Where they are of one kind, one layer of all is faster.
    """

    def __init__(self, layers: Sequence[Linear]) -> None:
        self._layers = tuple(layers)

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [T, sum of outs] for rows [T, in], float32."""
        return torch.cat([layer(x) for layer in self._layers], dim=1)
