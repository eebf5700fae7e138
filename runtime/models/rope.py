"""Rotary position embedding: the angles per position, for the kinds of scaling that we have.

Frequencies are float32 [rotated / 2], in radians per position, as in RoFormer
(https://arxiv.org/abs/2104.09864). Those that depend on a length depend on the longest context of
the engine and never on a request's own, so that what is cached for one request is right for all.
This module knows no tensor of a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from boughs.kernels.ops import Angles, Ops
from boughs.lang.errors import InvalidRequest, Unsupported

Parameters = Mapping[str, Any]
"""A config's `rope_parameters`, as transformers completes them."""


@dataclass(frozen=True)
class Rope:
    """How a model rotates its queries and keys.

    Attributes:
        frequencies: float32 [rotated / 2]; the rows of a head behind `rotated` are left alone.
        factor: What cosine and sine are multiplied by.
    """

    frequencies: Tensor
    factor: float = 1.0

    def to(self, device: torch.device) -> Rope:
        """The same on a device."""
        return Rope(self.frequencies.to(device), self.factor)

    def angles(self, positions: Tensor, dtype: torch.dtype, ops: Ops) -> Angles:
        """What `ops` rotates queries and keys of `dtype` at positions [T] by."""
        return ops.angles(positions[:, None].float() * self.frequencies, self.factor, dtype)


def make_rope(rope: Parameters, head_dim: int, max_position: int, context_length: int) -> Rope:
    """What `rope_parameters` describe, for one context length.

    Args:
        rope: With `rope_theta`, and `rope_type` and what the kind needs.
        head_dim: Width of a head.
        max_position: The longest context of the model.
        context_length: The longest context that it will be used with.

    Raises:
        Unsupported: A kind that we do not have, such as `dynamic`; names those we have.
        InvalidRequest: Something that the kind needs is missing or cannot be.
    """
    kind = rope.get("rope_type", "default")
    if kind not in KINDS:
        why = ": its angles change with a request's length" if kind == "dynamic" else ""
        raise Unsupported(
            f"rope scaling of kind {kind!r} is not supported{why}; there are {', '.join(KINDS)}",
            "model_path",
        )
    rotated = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    try:
        plain = plain_frequencies(float(rope["rope_theta"]), rotated)
        made = KINDS[kind](rope, plain, max_position, context_length)
        if not made.frequencies.isfinite().all():
            raise ValueError("its frequencies are not finite")
    except (KeyError, TypeError, ValueError, RuntimeError, ZeroDivisionError) as error:
        raise InvalidRequest(
            f"config.json: rope scaling of kind {kind!r} cannot be read: {error!r}", "model_path"
        ) from error
    return made


def plain_frequencies(theta: float, rotated: int) -> Tensor:
    """theta ** (-2i / rotated) for i in [0, rotated / 2), float32."""
    exponents: Tensor = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    return torch.tensor(theta).pow(exponents).reciprocal()


def llama3_frequencies(plain: Tensor, rope: Parameters) -> Tensor:
    """Llama 3.1's scaling: long waves are stretched by `factor`, short ones are left alone.

    Between `low_freq_factor` and `high_freq_factor` waves per original context it is interpolated.
    """
    low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    waves: Tensor = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept: Tensor = ((waves - low) / (high - low)).clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / float(rope["factor"])


def _default(rope: Parameters, plain: Tensor, max_position: int, context: int) -> Rope:
    del rope, max_position, context
    return Rope(plain)


def _linear(rope: Parameters, plain: Tensor, max_position: int, context: int) -> Rope:
    del max_position, context
    return Rope(plain / float(rope["factor"]))


def _llama3(rope: Parameters, plain: Tensor, max_position: int, context: int) -> Rope:
    del max_position, context
    return Rope(llama3_frequencies(plain, rope))


def _yarn(rope: Parameters, plain: Tensor, max_position: int, context: int) -> Rope:
    """YaRN (https://arxiv.org/abs/2309.00071): long waves are stretched, short ones left alone.

    Between `beta_slow` and `beta_fast` waves per original context, counted in pairs of rows, it is
    interpolated.
    """
    del context
    original = float(rope["original_max_position_embeddings"])
    factor = float(rope.get("factor") or max_position / original)
    pairs, theta = len(plain), float(rope["rope_theta"])

    def pair(waves: float) -> float:
        """The pair of rows that makes so many waves."""
        return pairs * math.log(original / (waves * 2 * math.pi)) / math.log(theta)

    first, last = pair(rope.get("beta_fast") or 32), pair(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    ramp = (torch.arange(pairs, dtype=torch.float32) - first) / (last - first or 0.001)
    stretched: Tensor = ramp.clamp(0.0, 1.0)
    return Rope(plain / factor * stretched + plain * (1 - stretched), _yarn_attention(rope, factor))


def _yarn_attention(rope: Parameters, factor: float) -> float:
    """What cosine and sine are multiplied by."""

    def temperature(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return temperature(float(rope["mscale"])) / temperature(float(rope["mscale_all_dim"]))
    return temperature(1.0)


def _longrope(rope: Parameters, plain: Tensor, max_position: int, context: int) -> Rope:
    """LongRoPE (https://arxiv.org/abs/2402.13753): a divisor for each frequency.

    There is one list of them for contexts up to the original one, and one for longer ones.
    """
    original = int(rope["original_max_position_embeddings"])
    divisors = torch.tensor(rope["long_factor" if context > original else "short_factor"])
    scale = float(rope.get("factor") or max_position / original)
    factor = rope.get("attention_factor")
    if factor is None:
        factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    return Rope(plain / divisors.float(), float(factor))


KINDS: dict[str, Callable[[Parameters, Tensor, int, int], Rope]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
"""The kinds of scaling, under transformers' names."""
