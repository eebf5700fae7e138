"""FlashInfer's fused norm, rotation and gated activation, and its filters for sampling.

What it has no kernel for runs in plain torch. This module knows no layer and no request, and
imports `flashinfer` nowhere: it is given it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .ops import TORCH, Activation, Angles


class FlashInferOps:
    """See `Ops`.

    Args:
        flashinfer: The module, or what stands in for it.
    """

    def __init__(self, flashinfer: Any) -> None:
        self._flashinfer = flashinfer
        self._gated: dict[str, Activation] = {
            "silu": flashinfer.silu_and_mul,
            "gelu": flashinfer.gelu_and_mul,
            "gelu_new": flashinfer.gelu_tanh_and_mul,
            "gelu_pytorch_tanh": flashinfer.gelu_tanh_and_mul,
        }

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, plus_one: bool = False) -> Tensor:
        """See `Ops.rms_norm`; x has two dimensions."""
        norm = self._flashinfer.gemma_rmsnorm if plus_one else self._flashinfer.rmsnorm
        normed: Tensor = norm(x, weight, eps=eps)
        return normed

    def angles(self, radians: Tensor, factor: float, dtype: torch.dtype) -> Angles:
        """See `Ops.angles`: a table of cosines and sines, float32 whatever is rotated.

        FlashInfer looks its rows up by position; a step's own table is looked up by the row.
        """
        del dtype
        table = torch.cat((radians.cos(), radians.sin()), dim=-1) * factor
        return table, torch.arange(len(table), dtype=torch.int32, device=table.device)

    def rotate(self, x: Tensor, queries: int, angles: Angles) -> Tensor:
        """See `Ops.rotate`: in place where all of a head turns."""
        table, rows = angles
        if table.shape[-1] != x.shape[-1]:
            cos, sin = table[:, None].to(x.dtype).chunk(2, dim=-1)
            return TORCH.rotate(x, queries, (cos, sin))
        q, k = (part.view(len(x), -1) for part in (x[:, :queries], x[:, queries:]))
        self._flashinfer.apply_rope_with_cos_sin_cache_inplace(
            rows, q, k, head_size=x.shape[-1], cos_sin_cache=table, is_neox=True
        )
        return x

    def gated(self, name: str) -> Activation:
        """See `Ops.gated`."""
        return self._gated.get(name) or TORCH.gated(name)


class FlashInferFilters:
    """See `Filters`. Of tokens that are equally likely at a border, all are kept.

    Args:
        flashinfer: The module, or what stands in for it.
    """

    def __init__(self, flashinfer: Any) -> None:
        self._flashinfer = flashinfer

    def top_k(self, logits: Tensor, k: int) -> Tensor:
        """See `Filters.top_k`."""
        masked: Tensor = self._flashinfer.top_k_mask_logits(logits[None], k)
        return masked[0]

    def top_p(self, probs: Tensor, p: float) -> Tensor:
        """See `Filters.top_p`."""
        kept: Tensor = self._flashinfer.top_p_renorm_probs(probs[None], p, is_deterministic=True)
        return kept[0]
