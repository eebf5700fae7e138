"""Linear layers in float32, from weights packed ahead.

A weight lies in panels of a few dozen outputs, each panel as wide as `multiply_add` keeps in
registers, so that it is read once and in order, whatever the number of rows. Every output is the
sum over its inputs in the same order, with few rows as with many: what a row gives depends
neither on the rows beside it nor on the number of threads, to the last bit. This module knows no
model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numba import float32, int64
from numpy.typing import NDArray
from torch import Tensor

from .compiled import entry_point, sources
from .simd import BLOCK, LANES, ROWS, multiply_add, prefetch
from .workers import INLINE, TASKS, Workers

Floats = NDArray[np.float32]
Words = NDArray[np.int64]

WIDTH = BLOCK * LANES
"""Outputs of a panel."""

DEPTH = 768
"""Inputs that are summed up one by one; the sums of so many are then added. For accuracy."""

FEW = 8
"""Rows up to which the weight is read ahead: with more, the arithmetic takes longer."""

AHEAD = 16
"""Inputs that are read ahead."""

TOGETHER = 4
"""Panels that are then read at once: memory answers four places sooner than one."""

READ = 10.0
"""Bytes that a core reads in a nanosecond, about."""

COMPUTE = 100.0
"""Floating point operations that a core does in a nanosecond, about."""


class Linear:
    """y = x W^T + b, for any number of rows.

    Args:
        weight: [out, in], float32. It is copied; the caller may drop it.
        bias: [out], float32.
        workers: The threads that compute.

    Raises:
        ValueError: Another dtype, or shapes that do not fit.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, workers: Workers) -> None:
        if weight.dtype != torch.float32 or weight.dim() != 2:
            raise ValueError(f"a weight is [out, in] in float32: {weight.dtype} {weight.shape}")
        if bias is not None and (bias.dtype, len(bias)) != (torch.float32, len(weight)):
            raise ValueError(f"a bias of {bias.dtype} {bias.shape} for {len(weight)} outputs")
        self.out_features, self.in_features = weight.shape
        self._workers = workers
        self._multiply = multiply_panels()
        panels = -(-self.out_features // WIDTH)
        padded = torch.zeros(panels * WIDTH) if bias is None else _pad(bias, panels * WIDTH)
        self._bias: Floats = padded.numpy()
        self._panels = _pack(weight, panels)  # [panels, in, WIDTH]
        self._array: Floats = self._panels.numpy()
        self._rows = np.arange(self.in_features, dtype=np.int64) * WIDTH

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [T, out] for inputs [T, in], float32."""
        if x.dtype != torch.float32 or x.dim() != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"inputs are [T, {self.in_features}] in float32: {x.dtype} {x.shape}")
        inputs = x.contiguous().numpy()
        outputs = np.empty((len(x), len(self._bias)), dtype=np.float32)
        places = np.arange(len(x), dtype=np.int64) * self.in_features
        multiply = self._multiply

        def compute(task: tuple[int, int]) -> None:
            multiply(inputs, places, self._array, self._rows, self._bias, *task, outputs)

        self._workers.run(compute, self._tasks(len(x)))
        return torch.from_numpy(outputs)[:, : self.out_features]

    def rows(self, index: Tensor) -> Tensor:
        """Rows [T, in] of the weight, as an embedding reads them; `index` is int64 [T]."""
        return self._panels[index // WIDTH, :, index % WIDTH]

    def _tasks(self, rows: int) -> list[tuple[int, int]]:
        """Ranges of panels that threads take one after another."""
        count = len(self._array)
        cost = self._array.nbytes * max(1 / READ, rows / 2 / COMPUTE)  # nanoseconds
        if self._workers.threads == 1 or cost < INLINE:
            return [(0, count)]
        parts = min(count, self._workers.threads * TASKS, int(2 * cost / INLINE))
        ends = [count * i // parts for i in range(parts + 1)]
        return list(pairwise(ends))


@cache
def multiply_panels() -> Callable[..., None]:
    """Compile, or load from disk, the product of rows with panels.

    Its arguments:
        x: [T, in].
        x_rows: int64 [T]: where the rows of x start.
        panels: [panels, in, WIDTH].
        panel_rows: int64 [in]: where the rows of a panel start.
        bias: [panels * WIDTH].
        first, end: The panels to multiply with.
        out: [T, panels * WIDTH].
    """
    version = sources()

    def run(  # noqa: PLR0917 -- numba passes arguments by place
        x: Floats,
        x_rows: Words,
        panels: Floats,
        panel_rows: Words,
        bias: Floats,
        first: int,
        end: int,
        out: Floats,
    ) -> None:
        version  # noqa: B018 -- see `entry_point`
        count, depth = x.shape
        # A group of panels in short steps, which read ahead, or one panel in long steps.
        together, step = (TOGETHER, AHEAD) if count <= FEW else (1, DEPTH)
        columns = together * WIDTH
        part = np.empty((count, columns), np.float32)
        flat_x, flat, flat_part = x.reshape(-1), panels.reshape(-1), part.reshape(-1)
        for group in range(first, end, together):
            group_end = min(group + together, end)
            column, column_end = group * WIDTH, group_end * WIDTH
            for block in range(0, depth, DEPTH):
                part[:] = 0
                for k in range(block, min(block + DEPTH, depth), step):
                    for panel in range(group, group_end):
                        if count <= FEW:
                            start = (panel * depth + k + step) * WIDTH
                            for place in range(start, min(start + step * WIDTH, len(flat)), LANES):
                                prefetch(flat, place)
                        for i in range(0, count, ROWS):
                            multiply_add(
                                min(ROWS, count - i), BLOCK, flat_x, x_rows, i, k, 1,
                                flat, panel_rows, k, panel * depth * WIDTH, min(step, depth - k),
                                flat_part, i * columns + (panel - group) * WIDTH, columns,
                            )  # fmt: skip
                for i in range(count):
                    so_far = out[i, column:column_end] if block else bias[column:column_end]
                    mine, target = part[i], out[i, column:column_end]
                    for j in range(len(target)):
                        target[j] = so_far[j] + mine[j]

    return entry_point(
        run,
        float32[:, ::1],
        int64[::1],
        float32[:, :, ::1],
        int64[::1],
        float32[::1],
        int64,
        int64,
        float32[:, ::1],
    )


def _pack(weight: Tensor, panels: int) -> Tensor:
    """[panels, in, WIDTH] of [out, in], with zeros behind the last output."""
    packed = torch.empty(panels, weight.shape[1], WIDTH)
    whole = len(weight) // WIDTH
    by_panel = weight[: whole * WIDTH].reshape(whole, WIDTH, weight.shape[1])
    packed[:whole] = by_panel.transpose(1, 2)
    if whole < panels:
        packed[whole] = _pad(weight[whole * WIDTH :], WIDTH).t()
    return packed


def _pad(tensor: Tensor, length: int) -> Tensor:
    padded = tensor.new_zeros(length, *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    return padded
