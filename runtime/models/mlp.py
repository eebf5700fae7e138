"""The gated MLP that a layer of most models has, and the activations that there are.

Shapes are in comments: T tokens. This module knows no layer and no file's names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor
from torch.nn.functional import gelu, linear, relu, silu

from boughs.lang.errors import Unsupported

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_new": partial(gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(gelu, approximate="tanh"),
    "relu": relu,
}
"""Under transformers' names."""


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


@dataclass(frozen=True)
class GatedMlp:
    """down(act(gate(x)) * up(x)), as in https://arxiv.org/abs/2002.05202.

    Attributes:
        act: The activation.
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
        gate, up = linear(x, self.gate_up, self.gate_up_bias).chunk(2, dim=-1)
        return linear(self.act(gate) * up, self.down, self.down_bias)
