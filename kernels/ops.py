"""The small kernels of a model's layers: norm, rotation and gated activation.

`TorchOps` runs on every device and in every dtype; `flashinfer_ops` has the same functions fused.
This module knows no layer and no weight.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, rms_norm, silu

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_new": partial(gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(gelu, approximate="tanh"),
    "relu": relu,
}
"""Under transformers' names."""

Angles = tuple[Tensor, Tensor]
"""What `Ops.angles` made of a step's angles; for `rotate` of the same ops alone."""


class Ops(Protocol):
    """The small kernels, of one kind."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
        """x / sqrt(mean(x ** 2) + eps) * weight, over the last dimension; of the shape of x.

        With `plus_one` it is 1 + weight, as in Gemma. https://arxiv.org/abs/1910.07467
        """
        ...

    def angles(self, radians: Tensor, factor: float, dtype: torch.dtype) -> Angles:
        """Prepare the rotation of T rows.

        Args:
            radians: float32 [T, rotated / 2].
            factor: What cosine and sine are multiplied by.
            dtype: Of what will be rotated.
        """
        ...

    def rotate(self, x: Tensor, queries: int, angles: Angles) -> Tensor:
        """Turn element i and element i + rotated / 2 of every head by the i-th angle of its row.

        Args:
            x: [T, H + K, D], queries and then keys; may be overwritten.
            queries: H.
            angles: Of these rows.

        Returns:
            Of the same shape.
        """
        ...

    def gated(self, name: str) -> Activation:
        """From [..., 2 n] to [..., n]: the activation of the first half times the second half.

        Args:
            name: One of `ACTIVATIONS`.
        """
        ...


class TorchOps:
    """In plain torch."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
        """See `Ops.rms_norm`."""
        if plus_one:  # the sum needs more digits than a short dtype has
            return rms_norm(x.float(), weight.shape, 1 + weight.float(), eps).to(x.dtype)
        return rms_norm(x, weight.shape, weight, eps)

    def angles(self, radians: Tensor, factor: float, dtype: torch.dtype) -> Angles:
        """See `Ops.angles`."""
        radians = radians[:, None]
        return (radians.cos() * factor).to(dtype), (radians.sin() * factor).to(dtype)

    def rotate(self, x: Tensor, queries: int, angles: Angles) -> Tensor:
        """See `Ops.rotate`."""
        del queries
        cos, sin = angles
        width = cos.shape[-1]
        first, second = x[..., :width], x[..., width : 2 * width]
        parts = [first * cos - second * sin, second * cos + first * sin]
        if 2 * width < x.shape[-1]:
            parts.append(x[..., 2 * width :])
        return torch.cat(parts, dim=-1)

    def gated(self, name: str) -> Activation:
        """See `Ops.gated`."""
        return partial(_gated, ACTIVATIONS[name])


TORCH = TorchOps()


def _gated(act: Activation, x: Tensor) -> Tensor:
    gate, up = x.chunk(2, dim=-1)
    return act(gate) * up
