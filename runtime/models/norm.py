"""The norm of most models: root mean square, without mean and bias.

This module knows no layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import rms_norm


@dataclass(frozen=True)
class RmsNorm:
    """x / sqrt(mean(x ** 2) + eps) * weight; https://arxiv.org/abs/1910.07467."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Of the same shape as `x`, whose last dimension the weight has."""
        return rms_norm(x, self.weight.shape, self.weight, self.eps)
