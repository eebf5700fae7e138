"""Which models FlashInfer has kernels for. This module calls nothing and knows no batch."""

from __future__ import annotations

import torch

from .backend import AttentionConfig
from .kv_cache import FLOAT8

HEAD_DIMS = (64, 128, 256)
DTYPES = (torch.bfloat16, torch.float16)


def lacks(
    config: AttentionConfig, dtype: torch.dtype, kv_dtype: torch.dtype | None = None
) -> str | None:
    """What of this model FlashInfer has no kernel for, in words; None if it has all."""
    if config.head_dim not in HEAD_DIMS:
        return f"heads of {config.head_dim}; there are {', '.join(map(str, HEAD_DIMS))}"
    if dtype not in DTYPES:
        return f"queries in {name_of(dtype)}; there are {', '.join(map(name_of, DTYPES))}"
    kv_dtype = kv_dtype or dtype
    if kv_dtype not in {dtype, *FLOAT8}:
        return f"a cache in {name_of(kv_dtype)} under queries in {name_of(dtype)}"
    return None


def name_of(dtype: torch.dtype) -> str:
    """As users write it."""
    return str(dtype).removeprefix("torch.")
