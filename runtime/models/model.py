"""What a model is to those that run it.

This module knows no architecture, no weight and no request.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from boughs.kernels.backend import AttentionBackend
from boughs.kernels.kv_cache import KVCache

from .config import ModelConfig


class Model(Protocol):
    """A decoder that keeps its keys and values in pages.

    Attributes:
        config: Its shape.
        recordable: Whether a forward pass never waits for the device, so that it can be recorded.
    """

    config: ModelConfig
    recordable: bool

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: KVCache,
        attention: AttentionBackend,
    ) -> Tensor:
        """Compute T tokens and write their keys and values into the cache.

        Args:
            input_ids: int64 [T].
            positions: int64 [T], of each token in its request.
            slots: int64 [T], the row of the cache that each token's keys and values go to.
            kv: The cache.
            attention: Has been planned for exactly these tokens.

        Returns:
            [T, hidden]: hidden states after the last norm.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, vocab] of hidden states [R, hidden]."""
