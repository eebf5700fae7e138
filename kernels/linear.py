"""Linear layers from packed weights, for any number of rows.

A CPU that multiplies bytes gets rows as whole numbers for weights of 4 and 8 bits (`digits`).
Else few rows are multiplied with weights that are worked out in registers, many with some hundred
inputs of a few outputs at a time that are worked out into a core's own cache. For one number format
and machine the products are the same and are added in the same order: what a row gives depends
neither on the rows beside it nor on the number of threads, to the last bit. This module knows no
model.
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

from . import digits
from .calls import Words, bytes_at, callable_by_address, floats_at
from .compiled import Callee, compiled, entry_point, sources
from .layer_costs import DEFAULT, LayerCosts
from .panels import LAYOUTS, PANEL
from .products import FEW_ROWS, KINDS, NARROW, WIDE, block_rows, dequantize, multiply
from .row_calls import MEMORY, ROWS, buffer_at
from .team import run_calls, run_tasks, share
from .weight import GROUP, Floats, Kind, Weight
from .workers import Workers

Bytes = NDArray[np.uint8]

DEPTH = 16
"""Groups whose products are summed up one by one before the sum is added to those before: for
accuracy, and so that NARROW panels of so many fit a core's first cache."""

FEW = 24
"""Rows up to which working weights out again for each block is cheaper than keeping them."""

CHUNK = 96
"""Encoded rows that are multiplied with all panels of a task before the next ones, so that a core's
second cache holds them and their results at common widths."""

FLOAT32 = KINDS.index("float32")


class Linear:
    """y = x W^T + b.

    Args:
        weight: W, [out, in]. It is copied; the caller may drop it.
        bias: b, float32 [out].
        workers: The threads that compute.
        costs: What layers of its number format take; they move no result.

    Attributes:
        shape: (out, in).
        kind: The number format of the weight.
        nbytes: Of the weight.
        workers: As given.
        columns: Outputs, those that fill the last panels up included.

    Raises:
        ValueError: A bias that does not fit.
    """

    def __init__(
        self, weight: Weight, bias: Tensor | None, workers: Workers, costs: LayerCosts = DEFAULT
    ) -> None:
        outputs, inputs = weight.shape
        if bias is not None and (bias.dtype, bias.shape) != (torch.float32, (outputs,)):
            raise ValueError(f"a bias of {bias.dtype} {list(bias.shape)} for {outputs} outputs")
        self.shape = (outputs, inputs)
        self.kind = weight.kind
        self.workers = workers
        self._costs = costs
        self._layout = LAYOUTS[weight.kind]
        panels = -(-outputs // (PANEL * NARROW)) * NARROW
        self._packed = self._layout.pack(weight, panels)  # [panels, groups]
        self._bytes: Bytes = self._packed.reshape(-1).view(np.uint8)
        self._bias: Floats = np.zeros(panels * PANEL, np.float32)
        if bias is not None:
            self._bias[:outputs] = bias.numpy()
        self.nbytes = self._packed.nbytes
        self.columns = len(self._bias)
        padded = -(-inputs // GROUP) * GROUP
        self._calls = self.calls(0, padded, 2 * padded)
        run_tasks()  # so that no request waits for its compiler
        self._list = np.array([(call.address, args.ctypes.data) for call, args, _ in self._calls])
        self._fixed, self._per_row = np.array([cost for _, _, cost in self._calls]).T

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [T, out] for rows [T, in], float32.

        Raises:
            ValueError: Rows of another dtype or width.
        """
        outputs, inputs = self.shape
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != inputs:
            raise ValueError(f"rows are float32 [T, {inputs}], not {x.dtype} {list(x.shape)}")
        rows, padded = len(x), -(-inputs // GROUP) * GROUP
        memory = np.empty(rows * (2 * padded + self.columns), np.float32)
        read, out = memory[: rows * padded].reshape(rows, padded), memory[2 * rows * padded :]
        read[:, :inputs] = x.numpy()
        read[:, inputs:] = 0
        step = np.array([rows, memory.ctypes.data])
        tasks = share(self._fixed + rows * self._per_row, self.workers.threads)
        run_calls(self.workers, self._list, tasks, step)
        return torch.from_numpy(out.reshape(rows, self.columns))[:, :outputs]

    def calls(self, x: int, digits: int, out: int) -> list[tuple[Any, Words, tuple[float, float]]]:
        """The calls that compute it: what is called, its args, and its cost.

        A cost is in nanoseconds, about: once, and of each row.

        Args:
            x: Offset of the rows, whole groups wide.
            digits: Offset of a buffer of the same width, which may be written.
            out: Offset of the result, `columns` wide.
        """
        outputs, panels = self.columns, len(self._packed)
        inputs = self._packed.shape[1] * GROUP
        whole, made = takes(self.kind), []
        if whole:
            args = np.array([x, digits, inputs])
            made.append((encode_call(), args, (0.0, self._costs.encode * inputs)))
        read = digits if whole else x
        weight = self._bytes.ctypes.data, self._bytes.nbytes, self._bias.ctypes.data, panels
        args, size = np.array([read, out, inputs, outputs, *weight]), inputs * outputs
        cost = self._costs.read * size, self._costs.compute * size
        return [*made, (linear_call(self.kind, whole=whole), args, cost)]

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
def multiply_digit_rows(kind: Kind) -> Callable[..., None]:
    """Compile, or load from disk, the same for rows that are written as digits.

    Its arguments are those of `multiply_rows`, but for x: bytes of encoded groups, [groups, T] of
    them, in an array of [T, groups * ENCODED].
    """
    version = sources()
    place = digits.KINDS.index(kind)
    group = LAYOUTS[kind].dtype.itemsize

    def run(x: Bytes, packed: Bytes, bias: Floats, first: int, end: int, out: Floats) -> None:  # noqa: PLR0917
        version  # noqa: B018 -- see `entry_point`
        count, size = x.shape
        columns, groups = out.shape[1], size // digits.ENCODED
        flat_x, flat_out = x.reshape(-1), out.reshape(-1)
        across = WIDE if count == 1 else NARROW
        for begin in range(0, count, CHUNK):
            stop = min(begin + CHUNK, count)
            for panel in range(first, end, across):
                width = min(across, end - panel)
                i = begin
                while i < stop:
                    height = digits.block_rows(stop - i)
                    digits.multiply_digits(
                        place, height, width, flat_x, i * digits.ENCODED, count * digits.ENCODED,
                        packed, panel * groups * group, groups * group, groups,
                        bias, panel * PANEL, flat_out, i * columns + panel * PANEL, columns,
                    )  # fmt: skip
                    i += height

    return entry_point(run, uint8[:, ::1], uint8[::1], float32[::1], int64, int64, float32[:, ::1])


def takes(kind: Kind) -> bool:
    """Whether rows are written as digits for weights of a kind, on this machine."""
    return digits.AVAILABLE and kind in digits.KINDS


@cache
def encode_call() -> Any:
    """Rows as digits, group by group of all rows: so a block finds its rows side by side.

    args: offset of the rows; offset of the result, which is as wide; floats a row.
    """
    version = sources()

    def run(args: Words, step: Words, task: int, tasks: int) -> None:
        version  # noqa: B018 -- see `callable_by_address`
        x, groups = buffer_at(step, args[0], args[2]), args[2] // GROUP
        out = digits_at(step, args[1], args[2])
        flat_x, flat_out = x.reshape(-1), out.reshape(-1)
        for i in range(len(x) * task // tasks, len(x) * (task + 1) // tasks):
            for j in range(groups):
                place = (j * len(x) + i) * digits.ENCODED
                digits.encode(flat_x, (i * groups + j) * GROUP, flat_out, place)

    return callable_by_address(run)


@compiled
def digits_at(step: Words, offset: int, width: int) -> Bytes:
    """Rows as digits, which take as many bytes as they do as floats."""
    size = 4 * width
    start = step[MEMORY] + step[ROWS] * 4 * offset
    return bytes_at(start, step[ROWS] * size).reshape(step[ROWS], size)


@cache
def linear_call(kind: Kind, *, whole: bool) -> Any:
    """The product of a step's rows, which may be whole numbers, with a weight of a kind.

    args: offset of the rows; offset of the result; inputs; columns; address and bytes of the packed
    weight; address of the bias; panels.
    """
    version = sources()
    read = Callee(digits_at if whole else buffer_at)
    multiply_some = Callee(multiply_digit_rows(kind) if whole else multiply_rows(kind), kind, whole)

    def run(args: Words, step: Words, task: int, tasks: int) -> None:
        version  # noqa: B018 -- see `callable_by_address`
        panels = args[7]
        wholes = -(-panels // WIDE)  # a range begins with a whole block
        first = min(panels, wholes * task // tasks * WIDE)
        end = min(panels, wholes * (task + 1) // tasks * WIDE)
        multiply_some(
            read(step, args[0], args[2]), bytes_at(args[4], args[5]), floats_at(args[6], args[3]),
            first, end, buffer_at(step, args[1], args[3]),
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
