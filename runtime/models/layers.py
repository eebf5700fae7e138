"""The linear layers of a model, in the number format that `quantize` asks for.

    auto    as the file has them: Q4_0 and Q4_1 as int4, Q8_0 as int8, bfloat16 as that; formats
            that we have not, such as Q4_K, as int8
    none    float32
    int8    int8
    int4    int4, but for tables (embedding and head), which are int8

What the file has in the asked format is not rounded again, and routers of experts are float32 in
any case. On a GPU layers are torch's own, in the engine's dtype. This module knows no model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, from_numpy
from torch.nn.functional import embedding, linear

from boughs.kernels.layer_costs import LayerCosts
from boughs.kernels.linear import Linear, Stack
from boughs.kernels.measure_layers import load
from boughs.kernels.weight import Kind, Weight, concatenate, quantize
from boughs.kernels.workers import Workers
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.runtime.config import Quantize

Read = tuple[str, str, Weight]
"""A matrix as it was read: name, format in the file, and itself."""

_FLOATS = {"F64", "F32", "F16", "BF16"}


class Layer(Protocol):
    """y = x W^T + b."""

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [T, out] of rows [T, in]."""


class Table(Layer, Protocol):
    """A layer whose weight has a row for each token."""

    def rows(self, index: Tensor) -> Tensor:
        """Rows [T, in] of the weight; `index` is int64 [T]."""


class Unread:
    """Stands for a layer of a model that is not read."""

    def __call__(self, x: Tensor) -> Tensor:
        """Nothing computes before it is read."""
        raise AssertionError(f"no weight was read for rows of {x.shape}")

    rows = __call__


class LayerMaker(Protocol):
    """Makes layers of what was read.

    Attributes:
        dtype: Of activations, and of tensors that belong to no linear layer.
        device: Where those are.
    """

    dtype: torch.dtype
    device: torch.device

    def linear(self, parts: Sequence[Read], bias: Tensor | None, *, exact: bool = False) -> Layer:
        """One layer of matrices that read the same inputs, side by side.

        With `exact` they are not rounded to a format of few bits.
        """

    def table(self, part: Read) -> Table:
        """A matrix with a row for each token."""

    def describe(self) -> str:
        """What the matrices are held in, as `210 Q4_1 as int4, 1 Q8_0 as int8`."""


def make_maker(
    quantize: Quantize,
    dtype: torch.dtype,
    device: torch.device,
    threads: int,
    costs: Path | None = None,
) -> LayerMaker:
    """What makes layers on a device: packed ones on the CPU in float32, torch's own elsewhere.

    See `PackedMaker` for the arguments.

    Raises:
        Unsupported: Formats of few bits where torch's layers compute.
    """
    if device.type == "cpu" and dtype == torch.float32:
        return PackedMaker(quantize, threads, costs)
    if quantize in {"int8", "int4"}:
        raise Unsupported(
            f"quantize: {quantize} is not there on {device.type} in {dtype}; use auto or none, or "
            "device=cpu with dtype=float32",
            "quantize",
        )
    return PlainMaker(dtype, device)


class PlainLayer:
    """torch's linear layer, on any device and in any dtype."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = weight  # [out, in]
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [T, out] of rows [T, in]."""
        return linear(x, self._weight, self._bias)

    def rows(self, index: Tensor) -> Tensor:
        """Rows [T, in] of the weight; `index` is int64 [T]."""
        return embedding(index, self._weight)


class PlainMaker:
    """Makes torch's layers; what files hold in other formats is worked out.

    Args:
        dtype: Of weights and activations.
        device: Where they are.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._made: Counter[str] = Counter()

    def linear(
        self, parts: Sequence[Read], bias: Tensor | None, *, exact: bool = False
    ) -> PlainLayer:
        """See `LayerMaker.linear`; nothing here is of few bits."""
        del exact
        return PlainLayer(torch.cat([self._settle(part) for part in parts]), bias)

    def table(self, part: Read) -> PlainLayer:
        """See `LayerMaker.table`."""
        return PlainLayer(self._settle(part), None)

    def describe(self) -> str:
        """See `LayerMaker.describe`."""
        return ", ".join(f"{count} {what}" for what, count in self._made.most_common())

    def _settle(self, part: Read) -> Tensor:
        _, found, weight = part
        self._made[f"{found} as {str(self.dtype).removeprefix('torch.')}"] += 1
        matrix = weight.dequantize()
        # A copy where the file's own memory may not be written.
        tensor = from_numpy(matrix if matrix.flags.writeable else matrix.copy())
        return tensor.to(self.device, self.dtype)


class PackedMaker:
    """Makes layers of our own on the CPU, which compute in float32.

    Args:
        quantize: The engine's setting.
        threads: Threads that compute, the calling one included.
        costs: Where what layers take on this machine is kept; None takes it for what it usually is.
    """

    dtype = torch.float32
    device = torch.device("cpu")

    def __init__(self, quantize: Quantize, threads: int, costs: Path | None = None) -> None:
        self._quantize = quantize
        self._folder = costs
        self._costs: dict[Kind, LayerCosts] = {}
        self._workers = Workers(threads)
        self._made: Counter[str] = Counter()

    def linear(self, parts: Sequence[Read], bias: Tensor | None, *, exact: bool = False) -> Layer:
        """See `LayerMaker.linear`; with `exact` they are float32 whatever is asked for."""
        asked: Quantize = "none" if exact else self._quantize
        weights = [self._settle(part, asked) for part in parts]
        # Of a file that mixes formats, neighbours may differ.
        merged = [concatenate(list(same)) for _, same in groupby(weights, key=lambda w: w.kind)]
        layers, begin = [], 0
        for weight in merged:
            end = begin + weight.shape[0]
            mine = None if bias is None else bias[begin:end]
            layers.append(self._make(weight, mine))
            begin = end
        return layers[0] if len(layers) == 1 else Stack(layers)

    def table(self, part: Read) -> Table:
        """A matrix with a row for each token."""
        asked: Quantize = "int8" if self._quantize == "int4" else self._quantize
        return self._make(self._settle(part, asked), None)

    def describe(self) -> str:
        """What the matrices are held in, as `210 Q4_1 as int4, 1 Q8_0 as int8`."""
        return ", ".join(f"{count} {what}" for what, count in self._made.most_common())

    def _make(self, weight: Weight, bias: Tensor | None) -> Linear:
        kind = weight.kind
        if kind not in self._costs:
            known = self._folder is not None
            self._costs[kind] = load(kind, self._folder)[0] if known else LayerCosts()
        return Linear(weight, bias, self._workers, self._costs[kind])

    def _settle(self, part: Read, asked: Quantize) -> Weight:
        """A matrix in the format that it is to be held in."""
        name, found, weight = part
        if asked == "none":
            kind: Kind = "float32"
        elif asked == "auto":
            kind = weight.kind if weight.kind != "float32" or found in _FLOATS else "int8"
        else:
            kind = asked
        self._made[f"{found} as {kind}"] += 1
        if weight.kind == kind:
            return weight
        try:
            return quantize(weight.dequantize(), kind)
        except ValueError as error:
            raise InvalidRequest(f"quantize: the tensor {name} {error}", "quantize") from error
