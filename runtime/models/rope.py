"""Rotary position embedding: the angles per position, for the kinds of scaling that we have.

Frequencies are float32 [head_dim / 2], in radians per position, as in RoFormer
(https://arxiv.org/abs/2104.09864). This module knows no tensor of a model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from boughs.lang.errors import Unsupported

KINDS = ("default", "linear", "llama3")


def frequencies(rope: Mapping[str, Any], head_dim: int) -> Tensor:
    """The frequencies [head_dim / 2] that a config's `rope_parameters` describe.

    Raises:
        Unsupported: A kind that we do not have, such as `dynamic`.
    """
    kind = rope.get("rope_type", "default")
    if kind not in KINDS:
        raise Unsupported(
            f"rope scaling of kind {kind!r} is not supported; there are {', '.join(KINDS)}",
            "model_path",
        )
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise Unsupported("rotation of a part of the head is not supported", "model_path")
    plain = plain_frequencies(float(rope["rope_theta"]), head_dim)
    if kind == "linear":
        return plain / float(rope["factor"])
    if kind == "llama3":
        return llama3_frequencies(plain, rope)
    return plain


def plain_frequencies(theta: float, head_dim: int) -> Tensor:
    """theta ** (-2i / head_dim) for i in [0, head_dim / 2), float32."""
    exponents: Tensor = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return torch.tensor(theta).pow(exponents).reciprocal()


def llama3_frequencies(plain: Tensor, rope: Mapping[str, Any]) -> Tensor:
    """Llama 3.1's scaling: long waves are stretched by `factor`, short ones are left alone.

    Between `low_freq_factor` and `high_freq_factor` waves per original context it is interpolated.
    """
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    waves: Tensor = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept: Tensor = ((waves - low) / (high - low)).clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / float(rope["factor"])
