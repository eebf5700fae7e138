"""The `rope_parameters` that a GGUF file's fields and tensors describe.

This module knows no other settings.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from boughs.lang.errors import Unsupported

from .gguf import GgufFile
from .rope import llama3_frequencies, plain_frequencies

_LLAMA3, _LONG, _SHORT = (
    f"rope_{kind}.weight" for kind in ("freqs", "factors_long", "factors_short")
)
ROPE_TENSORS = (_LLAMA3, _LONG, _SHORT)
"""Tensors that say how frequencies are scaled."""


def rope_parameters(file: GgufFile, head_dim: int) -> dict[str, Any]:
    """What transformers calls so, for heads of this width.

    Raises:
        Unsupported: A kind of scaling that we do not have; names it.
    """
    theta = float32(file.setting("rope.freq_base", 10000.0))
    kind = file.setting("rope.scaling.type", "none")
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    rotated = int(file.setting("rope.dimension_count", head_dim))
    if file.architecture == "phi3":
        # Others rotate the whole head, whatever else they could do.
        rope["partial_rotary_factor"] = rotated / head_dim
    elif rotated != head_dim:
        raise Unsupported(f"{file.path.name}: rotation of a part of the head is not supported")
    if _LLAMA3 in file:
        return rope | _llama3(file, theta, head_dim)
    if _LONG in file:
        return rope | _longrope(file)
    if kind == "linear":
        return rope | {"rope_type": "linear", "factor": float(file.need("rope.scaling.factor"))}
    if kind == "yarn":
        return rope | _yarn(file)
    if kind != "none":
        raise Unsupported(f"{file.path.name}: rope scaling of kind {kind!r} in a GGUF file")
    return rope


def float32(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 and not 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _llama3(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3's scaling. The file holds its result, one divisor per frequency, not its inputs.

    All published models share the inputs but `factor`; what comes out must be what is there.
    """
    divisors = np.asarray(file.load(_LLAMA3), dtype=np.float64)
    rope: dict[str, Any] = {
        "rope_type": "llama3",
        "factor": round(float(divisors.max()), 4),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain = plain_frequencies(theta, head_dim)
    ours = (plain / llama3_frequencies(plain, rope)).numpy()
    if divisors.shape != ours.shape or not np.allclose(divisors, ours, rtol=1e-4):
        raise Unsupported(f"{file.path.name}: rope_freqs are not those of a Llama 3 model")
    return rope


def _longrope(file: GgufFile) -> dict[str, Any]:
    """Phi-3's: the file holds the divisors of both ranges, and what they are multiplied by."""
    rope: dict[str, Any] = {
        "rope_type": "longrope",
        "long_factor": [float32(x) for x in file.load(_LONG)],
        "short_factor": [float32(x) for x in file.load(_SHORT)],
        "original_max_position_embeddings": int(
            file.setting("rope.scaling.original_context_length", file.need("context_length"))
        ),
    }
    factor = file.setting("rope.scaling.attn_factor")
    return rope if factor is None else rope | {"attention_factor": float(factor)}


def _yarn(file: GgufFile) -> dict[str, Any]:
    # Converters do not agree on what these are multiplied with.
    for key in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor", "yarn_log_multiplier"):
        if file.setting(f"rope.scaling.{key}") is not None:
            raise Unsupported(f"{file.path.name}: rope.scaling.{key} is not supported")
    rope: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": float(file.need("rope.scaling.factor")),
        "original_max_position_embeddings": int(file.need("rope.scaling.original_context_length")),
    }
    for key in ("beta_fast", "beta_slow"):
        if (value := file.setting(f"rope.scaling.yarn_{key}")) is not None:
            rope[key] = float(value)
    return rope
