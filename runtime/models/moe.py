"""A mixture of experts in the place of an MLP: Mixtral, Qwen3-MoE.

A router gives each token to a few of many small MLPs. Each expert computes the rows that are its
own in one product, so the work grows with what is chosen and not with what there is, and a token's
result does not depend on the tokens beside it (but for rounding). Shapes are in comments: T tokens,
E experts. This module knows no attention and no batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from boughs.lang.errors import InvalidRequest

from .config import ModelConfig
from .layers import Layer
from .mlp import GatedMlp, gated
from .tensors import TensorFiles


@dataclass(frozen=True)
class SparseMlp:
    """The sum of the chosen experts' results, weighed by the router.

    Attributes:
        router: From hidden to E.
        experts: E of them.
        chosen: Experts a token is given to.
        normalize: Whether the weights of those sum up to 1.
    """

    router: Layer
    experts: Sequence[GatedMlp]
    chosen: int
    normalize: bool

    def __call__(self, x: Tensor) -> Tensor:
        """[T, hidden] of [T, hidden]."""
        probabilities = self.router(x).float().softmax(dim=-1)  # [T, E]
        weights, chosen = probabilities.topk(self.chosen, dim=-1)  # [T, chosen]
        if self.normalize:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        weights = weights.to(x.dtype)
        out = torch.zeros_like(x)
        for index in sorted(set(chosen.flatten().tolist())):
            rows, place = (chosen == index).nonzero(as_tuple=True)
            made = self.experts[index](x[rows]) * weights[rows, place, None]
            out.index_add_(0, rows, made)
        return out


@dataclass(frozen=True)
class ExpertNames:
    """Where a checkpoint keeps a layer's experts."""

    block: str
    gate: str
    up: str
    down: str


MIXTRAL = ExpertNames("block_sparse_moe", "w1", "w3", "w2")
QWEN3 = ExpertNames("mlp", "gate_proj", "up_proj", "down_proj")


def take_sparse_mlp(
    names: ExpertNames, config: ModelConfig, files: TensorFiles, layer: str
) -> SparseMlp:
    """The experts of the layer whose tensors begin with `layer`.

    Raises:
        InvalidRequest: A token is to be given to more experts than there are.
    """
    details = config.details
    experts, hidden = int(details.num_local_experts), config.hidden_size
    chosen = int(details.num_experts_per_tok)
    if not 1 <= chosen <= experts:
        raise InvalidRequest(
            f"config.json: a token is given to {chosen} of {experts} experts", "model_path"
        )
    # Qwen3-MoE has layers without experts too, whose MLP is of another width.
    inner = int(getattr(details, "moe_intermediate_size", details.intermediate_size))
    act = gated(details.hidden_act, files.ops)
    made = []
    for index in range(experts):
        expert = f"{layer}.{names.block}.experts.{index}"
        both = {f"{expert}.{name}": inner for name in (names.gate, names.up)}
        down = files.linear({f"{expert}.{names.down}": hidden}, inner)
        made.append(GatedMlp(act, files.linear(both, hidden), down))
    return SparseMlp(
        router=files.linear({f"{layer}.{names.block}.gate": experts}, hidden, exact=True),
        experts=made,
        chosen=chosen,
        normalize=bool(getattr(details, "norm_topk_prob", True)),
    )
