"""The norm of most models: root mean square, without mean and bias.

This module knows no layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from boughs.kernels.ops import Ops
from boughs.kernels.program import Norm


@dataclass(frozen=True)
class RmsNorm:
    """x / sqrt(mean(x ** 2) + eps) * weight; https://arxiv.org/abs/1910.07467.

    Attributes:
        weight: [n].
        eps: Above.
        ops: What computes it.
        plus_one: Whether it is 1 + weight that is multiplied by.
    """

    weight: Tensor
    eps: float
    ops: Ops
    plus_one: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        """Of the same shape as `x`, whose last dimension the weight has."""
        return self.ops.rms_norm(x, self.weight, self.eps, plus_one=self.plus_one)

    def recorded(self) -> Norm:
        """The same for a program."""
        weight = 1 + self.weight.float() if self.plus_one else self.weight
        return Norm(weight.numpy(), self.eps)
