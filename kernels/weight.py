"""Matrices of weights in the number formats that linear layers compute from.

    float32     as they are
    bfloat16    the upper half of a float32
    int8        value * scale, one scale for 32 inputs of an output
    int4        value * scale + minimum, likewise; values are 0 to 15

Scales and minima are float16. A product of a value and a scale is exact in float32, so a weight is
the same number wherever it is worked out. GGUF's Q8_0 is our int8, its Q4_0 and Q4_1 are our int4
(https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h). This module knows neither files
nor models, and computes no layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["float32", "bfloat16", "int8", "int4"]
Floats = NDArray[np.float32]

GROUP = 32
"""Inputs that share a scale."""

DTYPES: dict[Kind, Any] = {
    "float32": np.float32,
    "bfloat16": np.uint16,
    "int8": np.int8,
    "int4": np.uint8,
}
"""What holds a value of each kind."""


@dataclass(frozen=True)
class Weight:
    """A matrix [outputs, inputs].

    Attributes:
        kind: Its number format.
        values: [outputs, inputs], of the dtype in DTYPES. int4 has one value a byte.
        scales: float16 [outputs, groups], the last group cut short where GROUP does not divide the
            inputs; of int8 and int4.
        minima: float16 [outputs, groups], of int4.
    """

    kind: Kind
    values: NDArray[Any]
    scales: NDArray[np.float16] | None = None
    minima: NDArray[np.float16] | None = None

    def __post_init__(self) -> None:
        outputs, inputs = self.values.shape
        assert self.values.dtype == DTYPES[self.kind]
        assert (self.scales is not None) == (self.kind in {"int8", "int4"})
        assert (self.minima is not None) == (self.kind == "int4")
        for part in (self.scales, self.minima):
            assert part is None or part.dtype == np.float16
            assert part is None or part.shape == (outputs, -(-inputs // GROUP))

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs)."""
        outputs, inputs = self.values.shape
        return outputs, inputs

    def rows(self, index: NDArray[np.int64]) -> Weight:
        """The outputs that `index` names, in its order."""
        scales, minima = (
            None if part is None else part[index] for part in (self.scales, self.minima)
        )
        return Weight(self.kind, self.values[index], scales, minima)

    def dequantize(self) -> Floats:
        """[outputs, inputs] in float32."""
        if self.kind == "float32":
            return self.values
        if self.kind == "bfloat16":
            return (self.values.astype(np.uint32) << 16).view(np.float32)
        assert self.scales is not None
        made = self.values.astype(np.float32)
        made *= self._spread(self.scales)
        if self.minima is not None:
            made += self._spread(self.minima)
        return made

    def _spread(self, part: NDArray[np.float16]) -> Floats:
        """[outputs, inputs] of a number a group."""
        return part.astype(np.float32).repeat(GROUP, axis=1)[:, : self.shape[1]]


def concatenate(weights: Sequence[Weight]) -> Weight:
    """One matrix with the outputs of several, which are of one kind."""

    def join(parts: list[NDArray[np.float16] | None]) -> NDArray[np.float16] | None:
        there = [part for part in parts if part is not None]
        return np.concatenate(there) if there else None

    return Weight(
        weights[0].kind,
        np.concatenate([weight.values for weight in weights]),
        join([weight.scales for weight in weights]),
        join([weight.minima for weight in weights]),
    )


def quantize(array: Floats, kind: Kind) -> Weight:
    """The matrix [outputs, inputs] in a number format, each value rounded to the nearest.

    int8 spans each group's greatest size, int4 its range.

    Raises:
        ValueError: A group holds no number, or a number too large for a float16 scale.
    """
    array = np.ascontiguousarray(array, dtype=np.float32)
    if kind == "float32":
        return Weight(kind, array)
    if kind == "bfloat16":
        return Weight(kind, _to_bfloat16(array))
    outputs, inputs = array.shape
    # The last group is filled up with its last number, which changes neither size nor range.
    groups = np.pad(array, ((0, 0), (0, -inputs % GROUP)), mode="edge")
    groups = groups.reshape(outputs, -1, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):  # is found below
        if kind == "int8":
            low, span, most = np.zeros(groups.shape[:2], np.float32), abs(groups).max(axis=2), 127
        else:
            low, most = groups.min(axis=2), 15
            span = groups.max(axis=2) - low
        scales, minima = (span / most).astype(np.float16), low.astype(np.float16)
    if not (np.isfinite(scales).all() and np.isfinite(minima).all()):
        raise ValueError(f"holds numbers that {kind} cannot: not finite, or too large")
    step = np.where(scales == 0, np.float32(1), scales.astype(np.float32))[:, :, None]
    values = np.rint((groups - minima.astype(np.float32)[:, :, None]) / step)
    values = values.clip(-127 if kind == "int8" else 0, most).astype(DTYPES[kind])
    values = np.ascontiguousarray(values.reshape(outputs, -1)[:, :inputs])
    return Weight(kind, values, scales, minima if kind == "int4" else None)


def _to_bfloat16(array: Floats) -> NDArray[np.uint16]:
    """The upper halves, rounded to the nearest and to even; NaN stays NaN."""
    bits = array.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(array), bits >> 16 | 0x40, rounded).astype(np.uint16)
