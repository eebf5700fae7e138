"""Quantized tensors of GGUF files as weights that our kernels compute from, without rounding.

Blocks: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h. This module knows no file
and no model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boughs.kernels.weight import GROUP, Weight

Bytes = NDArray[np.uint8]


def read_blocks(kind: str, rows: NDArray[Any]) -> Weight | None:
    """The matrix whose rows a file holds in the format `kind`, or None if it must be worked out.

    That is where we have no such format, or a number is beyond ours.
    """
    read = _READ.get(kind)
    if read is None or rows.ndim != 2:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        weight = read(rows)
    parts = (weight.scales, weight.minima)
    return weight if all(p is None or np.isfinite(p).all() for p in parts) else None


def _q4_0(rows: Bytes) -> Weight:
    """(value - 8) * scale."""
    blocks = _blocks(rows, 18)
    scales = _halves(blocks, 0)
    return Weight("int4", _nibbles(blocks[:, :, 2:]), scales, scales * np.float16(-8))


def _q4_1(rows: Bytes) -> Weight:
    """Value * scale + minimum."""
    blocks = _blocks(rows, 20)
    return Weight("int4", _nibbles(blocks[:, :, 4:]), _halves(blocks, 0), _halves(blocks, 2))


def _q8_0(rows: Bytes) -> Weight:
    """Value * scale."""
    blocks = _blocks(rows, 34)
    values = np.ascontiguousarray(blocks[:, :, 2:]).view(np.int8)
    return Weight("int8", values.reshape(len(rows), -1), _halves(blocks, 0))


def _bfloat16(rows: Bytes) -> Weight:
    return Weight("bfloat16", np.ascontiguousarray(rows).view(np.uint16))


_READ: dict[str, Callable[[Bytes], Weight]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "BF16": _bfloat16,
}


def _blocks(rows: Bytes, size: int) -> Bytes:
    """[rows, blocks, bytes of a block]."""
    return rows.reshape(len(rows), -1, size)


def _halves(blocks: Bytes, place: int) -> NDArray[np.float16]:
    """The float16 `place` bytes into each block."""
    return np.ascontiguousarray(blocks[:, :, place : place + 2]).view(np.float16)[:, :, 0]


def _nibbles(packed: Bytes) -> Bytes:
    """Values of a row; the lower halves of a block's 16 bytes come first."""
    values = np.concatenate((packed & 15, packed >> 4), axis=2)
    assert values.shape[2] == GROUP
    return values.reshape(len(packed), -1)
