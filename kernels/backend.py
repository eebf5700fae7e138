"""What an attention backend is.

A backend is planned once a step and run once a layer. This module knows no model, no request and
no arithmetic; `reference`, `cpu` and `flashinfer` do the work, and `choice` makes one by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from .batch import AttentionBatch
from .kv_cache import KVCache


@dataclass(frozen=True)
class AttentionConfig:
    """The shape of a model's attention.

    Attributes:
        num_heads: Query heads H.
        num_kv_heads: Key and value heads K; divides H. Query head h reads KV head h // (H / K).
        head_dim: Width D of a head.
        page_size: Tokens that a page holds.
        scale: What scores are multiplied by; 0 (the default) stands for head_dim ** -0.5.
        soft_cap: Scores s become soft_cap * tanh(s / soft_cap), as in Gemma 2
            (https://arxiv.org/abs/2408.00118); 0 (the default) leaves them.
        windows: Of each layer, how many positions a row sees, its own the last of them; 0 stands
            for all. Without any (the default) every layer sees all.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    scale: float = 0.0
    soft_cap: float = 0.0
    windows: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if min(self.num_heads, self.num_kv_heads, self.head_dim, self.page_size) < 1:
            raise ValueError(f"every size must be at least 1: {self}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads cannot be shared out among {self.num_kv_heads} KV heads"
            )
        if min(self.scale, self.soft_cap, *self.windows) < 0:
            raise ValueError(f"scale, soft cap and windows must not be negative: {self}")
        if self.scale == 0.0:
            object.__setattr__(self, "scale", self.head_dim**-0.5)

    def window(self, layer: int) -> int:
        """How many positions a row of this layer sees; 0 stands for all."""
        return self.windows[layer] if self.windows else 0


class AttentionBackend(Protocol):
    """Attention over paged KV.

    Attributes:
        name: The backend's name, as `make_backend` takes it.
        why: Why it was chosen.
    """

    name: str
    why: str

    def plan(self, batch: AttentionBatch) -> None:
        """Take the batch that the following runs are about.

        Raises:
            ValueError: The batch's page size is not the config's.
        """
        ...

    def run(self, layer: int, q: Tensor, kv: KVCache) -> Tensor:
        """Attention of the planned batch in one layer.

        Args:
            layer: Whose keys and values are read; those of the batch's own rows are written.
            q: [T, H, D], the rows of all requests in the order of the batch. Only the last
                dimension must be without gaps.
            kv: The cache that holds the batch's pages.

        Returns:
            [T, H, D], a new tensor without gaps.

        Raises:
            ValueError: No plan, shapes or a dtype that do not fit, a page out of the cache.
        """
        ...


def check_batch(batch: AttentionBatch, config: AttentionConfig) -> None:
    """Refuse a batch that was built for pages of another size."""
    if batch.page_size != config.page_size:
        raise ValueError(
            f"the batch has pages of {batch.page_size} tokens, the backend of {config.page_size}"
        )


def check_query(
    batch: AttentionBatch | None, q: Tensor, kv: KVCache, config: AttentionConfig
) -> AttentionBatch:
    """The planned batch, if queries and cache fit it."""
    batch = check_cache(batch, kv, config)
    rows = (batch.num_rows, config.num_heads, config.head_dim)
    if tuple(q.shape) != rows:
        raise ValueError(f"queries of shape {tuple(q.shape)}, planned {rows}")
    return batch


def check_cache(
    batch: AttentionBatch | None, kv: KVCache, config: AttentionConfig
) -> AttentionBatch:
    """The planned batch, if the cache fits it."""
    if batch is None:
        raise ValueError("run before plan")
    pages = (config.page_size, config.num_kv_heads, config.head_dim)
    if (kv.page_size, kv.num_kv_heads, kv.head_dim) != pages:
        raise ValueError(
            f"a cache of {(kv.page_size, kv.num_kv_heads, kv.head_dim)} "
            f"[page_size, kv_heads, head_dim], the backend has {pages}"
        )
    return batch
