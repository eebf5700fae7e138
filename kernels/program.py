"""The layers of a model as one list of calls, which threads run without coming back to Python.

A program is recorded once, layer by layer, and run every step, on the CPU in float32. Its memory is
one array: buffers of so many floats for each row of the step, each of whole groups. This module
knows no model, and of attention only that each window has a record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from . import attend, row_calls
from .attend import Record
from .calls import Words
from .emit import LANES
from .kv_cache import KVCache
from .linear import Linear
from .row_calls import (
    GATES,
    KEY_SCALES,
    KEYS,
    MEMORY,
    PLANE,
    ROWS,
    SCALE_PLANE,
    SLOTS,
    STEP,
    VALUE_SCALES,
    VALUES,
)
from .team import run_calls, share
from .weight import GROUP, Floats
from .workers import Workers

SMALL, ROTATE = 0.15, 0.5
"""Nanoseconds that small kernels take for a float, about; and the one that writes the cache."""


class Unrecordable(Exception):
    """There is no call for something that a model has; says what."""


@dataclass(frozen=True)
class Buffer:
    """Some floats for each row.

    Attributes:
        offset: Floats a row of all buffers before it.
        width: Floats a row.
    """

    offset: int
    width: int


@dataclass(frozen=True)
class Norm:
    """An RMS norm.

    Attributes:
        weight: What is multiplied by.
        eps: See `ops.Ops.rms_norm`.
    """

    weight: Floats
    eps: float

    def numbers(self) -> Floats:
        """The weight, then epsilon."""
        return np.append(self.weight.reshape(-1), np.float32(self.eps)).astype(np.float32)


@dataclass(frozen=True)
class Rope:
    """What rotates the queries and keys of some layers.

    Attributes:
        name: The program is run with angles of this name.
        rotated: Elements of a head that are rotated.
    """

    name: str
    rotated: int


class Program:
    """Calls, and the memory they share. Runs of one program must not overlap.

    Args:
        workers: The threads. What is computed does not depend on their number.
        kv_dtype: Of the caches that it is run over: one of `elements.ELEMENTS`.
    """

    def __init__(self, workers: Workers, kv_dtype: torch.dtype = torch.float32) -> None:
        self.kv_dtype = kv_dtype
        self._workers = workers
        self._calls: list[tuple[int, int]] = []
        self._costs: list[tuple[float, float]] = []  # nanoseconds: fixed, and of each row
        self._attention: list[tuple[int, int]] = []  # place of the first of three calls, window
        self._keep: list[Any] = []  # what calls know the address of
        self._buffers: dict[str, Buffer] = {}
        self._width = 0
        self._words: dict[str | int, int] = {}  # by the name of a rope, or a window
        self._memory = np.empty(0, np.float32)

    # ---- recording ----

    def buffer(self, name: str, width: int) -> Buffer:
        """The buffer of a name. What it held for those who asked before is lost.

        Raises:
            Unrecordable: A width of broken groups.
        """
        if width % GROUP:
            raise Unrecordable(f"{name} of {width} floats, which are not whole groups of {GROUP}")
        if name not in self._buffers:
            self._buffers[name] = Buffer(self._width, width)
            self._width += width
        assert self._buffers[name].width == width, f"{name} has one width"
        return self._buffers[name]

    def norm(
        self, x: Buffer, norm: Norm, *, add: Buffer | None = None, name: str = "normed"
    ) -> Buffer:
        """Norm of x, after `add` is added to x."""
        out = self.buffer(name, x.width)
        more = -1 if add is None else add.offset
        args = [x.offset, more, out.offset, x.width, self._address(norm.numbers())]
        self._call(row_calls.norm(), np.array(args), (0.0, SMALL * x.width))
        return out

    def linear(self, layer: Linear, x: Buffer, name: str) -> Buffer:
        """The outputs of a linear layer.

        Raises:
            Unrecordable: Outputs of broken groups.
        """
        outputs, inputs = layer.shape
        out = self.buffer(name, outputs)
        assert (inputs, layer.columns) == (x.width, outputs)
        self._keep.append(layer)
        digits = self.buffer(f"digits {inputs}", inputs)
        for kernel, args, cost in layer.calls(x.offset, digits.offset, out.offset):
            self._call(kernel, args, cost)
        return out

    def attention(
        self, qkv: Buffer, heads: tuple[int, int, int], layer: int, *,
        window: int, rope: Rope, norm: Norm | None = None,
    ) -> Buffer:  # fmt: skip
        """Attention over the cache, which the layer's keys and values are written into first.

        Args:
            qkv: Queries, keys and values.
            heads: H, K and D.
            layer: Which layer of the cache.
            window: How many positions a row sees, as the layer's record is named.
            rope: What queries and keys are rotated by.
            norm: Of every query and key, before that: [(H + K) D].

        Raises:
            Unrecordable: Heads of broken vectors.
        """
        count, kv_heads, dim = heads
        assert qkv.width == (count + 2 * kv_heads) * dim
        if norm is not None and dim % LANES:
            raise Unrecordable(f"a norm of heads of {dim}")
        queries, out, found = (
            self.buffer(name, count * dim) for name in ("queries", "mixed", "unordered")
        )
        record = self._word(window)
        args = [qkv.offset, qkv.width, *heads, rope.rotated, self._word(rope.name), layer]
        args += [self._address(norm.numbers()) if norm else 0, queries.offset, record]
        self._call(row_calls.rotate(self.kv_dtype), np.array(args), (0.0, ROTATE * qkv.width))
        self._attention.append((len(self._calls), window))
        args = [queries.offset, out.offset, *heads, layer, found.offset, record]
        for kernel in (attend.attend(self.kv_dtype), attend.merge(), attend.reorder()):
            self._call(kernel, np.array(args))
        return out

    def gate(self, x: Buffer, name: str) -> Buffer:
        """The activation `name` of the first half times the second half.

        Raises:
            Unrecordable: An activation without a call.
        """
        if name not in GATES:
            raise Unrecordable(f"the activation {name}")
        out = self.buffer("gated", x.width // 2)
        args = np.array([x.offset, x.width, out.offset, GATES[name]])
        self._call(row_calls.gate(), args, (0.0, SMALL * x.width))
        return out

    def _word(self, name: str | int) -> int:
        return self._words.setdefault(name, STEP + len(self._words))

    def _address(self, numbers: Floats) -> int:
        self._keep.append(numbers)
        return numbers.ctypes.data

    def _call(self, kernel: Any, args: Words, cost: tuple[float, float] = (0.0, 0.0)) -> None:
        """Add a call; its cost is that of `Linear.calls`."""
        self._keep.append((kernel, args))
        self._calls.append((kernel.address, args.ctypes.data))
        self._costs.append(cost)

    # ---- running ----

    def finish(self, into: Buffer, out: Buffer) -> None:
        """Take no more calls; `into` holds the rows first, and `out` what is made of them."""
        self._into, self._out = into, out
        self._list = np.array(self._calls, np.int64)
        self._fixed, self._per_row = np.array(self._costs).T.copy()

    def run(
        self, x: Floats, kv: KVCache, slots: NDArray[np.int64], angles: Mapping[str, Floats],
        records: Mapping[int, Record],
    ) -> Floats:  # fmt: skip
        """What the calls make of x.

        Args:
            x: [T, width].
            kv: The cache, in the program's dtype and on the CPU.
            slots: int64 [T], the row of the cache of each token.
            angles: Of each rope: cosines and sines, [2, T, rotated / 2].
            records: Of each window.
        """
        rows = len(x)
        if self._memory.size < rows * self._width:
            self._memory = np.empty(rows * self._width, np.float32)
        step = np.zeros(STEP + len(self._words), np.int64)
        slots = np.ascontiguousarray(slots)
        step[[ROWS, MEMORY, SLOTS]] = rows, self._memory.ctypes.data, slots.ctypes.data
        for words, (keys, values) in (
            ([KEYS, VALUES, PLANE], (kv.k(0), kv.v(0))),
            ([KEY_SCALES, VALUE_SCALES, SCALE_PLANE], (kv.k_scales(0), kv.v_scales(0))),
        ):
            step[words] = keys.data_ptr(), values.data_ptr(), 2 * keys.nbytes
        for name, word in self._words.items():
            step[word] = (
                angles[name].ctypes.data if isinstance(name, str) else records[name].address
            )
        self._rows(self._into, rows)[:] = x
        run_calls(self._workers, self._list, self._tasks(rows, records), step)
        return self._rows(self._out, rows).copy()

    def _rows(self, buffer: Buffer, rows: int) -> Floats:
        start = rows * buffer.offset
        return self._memory[start : start + rows * buffer.width].reshape(rows, buffer.width)

    def _tasks(self, rows: int, records: Mapping[int, Record]) -> NDArray[np.int64]:
        """How many tasks each call is cut into."""
        tasks = share(self._fixed + rows * self._per_row, self._workers.threads)
        for place, window in self._attention:
            tasks[place : place + 3] = records[window].tasks
        return tasks
