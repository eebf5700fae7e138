"""The gated MLP that a layer of most models has.

Shapes are in comments: T tokens. This module knows no layer and no file's names.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import linear

from boughs.kernels.ops import ACTIVATIONS, Activation, Ops
from boughs.lang.errors import Unsupported


def activation(name: str) -> Activation:
    """The activation that a config names.

    Raises:
        Unsupported: One that we do not have; names those we have.
    """
    if name not in ACTIVATIONS:
        raise Unsupported(
            f"the activation {name} is not supported; there are {', '.join(ACTIVATIONS)}",
            "model_path",
        )
    return ACTIVATIONS[name]


def gated(name: str, ops: Ops) -> Activation:
    """From [T, 2 n] to [T, n]: the activation of the first half times the second half.

    Raises:
        Unsupported: One that we do not have; names those we have.
    """
    activation(name)
    return ops.gated(name)


@dataclass(frozen=True)
class GatedMlp:
    """down(act(gate(x)) * up(x)), as in https://arxiv.org/abs/2002.05202.

    Attributes:
        act: The gated activation, from [T, 2 intermediate] to [T, intermediate].
        gate_up: [2 intermediate, hidden]: both matrices that read the input.
        down: [hidden, intermediate].
        gate_up_bias: [2 intermediate].
        down_bias: [hidden].
    """

    act: Activation
    gate_up: Tensor
    down: Tensor
    gate_up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] of [T, hidden]."""
        return linear(
            self.act(linear(x, self.gate_up, self.gate_up_bias)), self.down, self.down_bias
        )
