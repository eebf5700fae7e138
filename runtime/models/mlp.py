"""The gated MLP that a layer of most models has.

Shapes are in comments: T tokens. This module knows no layer and no file's names.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from boughs.kernels.ops import ACTIVATIONS, Activation, Ops
from boughs.kernels.program import Buffer, Program
from boughs.lang.errors import Unsupported

from .layers import Layer
from .recorded import packed


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
class Gated:
    """From [T, 2 n] to [T, n]: the activation of the first half times the second half.

    Attributes:
        name: Of the activation.
        act: What computes it.
    """

    name: str
    act: Activation

    def __call__(self, x: Tensor) -> Tensor:
        """[T, n] of [T, 2 n]."""
        return self.act(x)


def gated(name: str, ops: Ops) -> Gated:
    """The gated activation that a config names.

    Raises:
        Unsupported: One that we do not have; names those we have.
    """
    activation(name)
    return Gated(name, ops.gated(name))


@dataclass(frozen=True)
class GatedMlp:
    """down(act(gate(x)) * up(x)), as in https://arxiv.org/abs/2002.05202.

    Attributes:
        act: The gated activation, from [T, 2 intermediate] to [T, intermediate].
        gate_up: From hidden to 2 intermediate: both matrices that read the input.
        down: From intermediate to hidden.
    """

    act: Gated
    gate_up: Layer
    down: Layer

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] of [T, hidden]."""
        return self.down(self.act(self.gate_up(x)))

    def record(self, program: Program, x: Buffer) -> Buffer:
        """The same as calls.

        Raises:
            Unrecordable: Something has no call.
        """
        both = program.linear(packed(self.gate_up), x, "gate_up")
        return program.linear(packed(self.down), program.gate(both, self.act.name), "down")
