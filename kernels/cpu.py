"""Attention on the CPU, in float32, over pages read in place.

This module knows no model; what it computes is in `paged`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from .backend import AttentionConfig, check_batch, check_query
from .batch import AttentionBatch
from .kv_cache import KVCache
from .paged import TILE, attend

LOG2_E = 1.4426950408889634


class CpuBackend:
    """Paged attention compiled by numba."""

    name = "cpu"

    def __init__(self, config: AttentionConfig, threads: int, why: str) -> None:
        self.config = config
        self.threads = threads
        self.why = why
        self._batch: AttentionBatch | None = None

    def plan(self, batch: AttentionBatch) -> None:
        """Take the batch that the following runs are about."""
        check_batch(batch, self.config)
        self._batch = batch

    def run(self, layer: int, q: Tensor, kv: KVCache) -> Tensor:
        """Attention of the planned batch in one layer; see `AttentionBackend.run`."""
        batch = check_query(self._batch, q, kv, self.config)
        batch.check(kv.num_pages)
        if q.dtype != torch.float32 or kv.dtype != torch.float32:
            raise ValueError(f"the cpu backend computes in float32, got {q.dtype} over {kv.dtype}")
        out = torch.empty(q.shape)
        queries, keys, values = q.contiguous().numpy(), kv.k(layer).numpy(), kv.v(layer).numpy()
        kv_heads, dim = self.config.num_kv_heads, self.config.head_dim
        group = self.config.num_heads // kv_heads
        scale = np.float32(self.config.scale * LOG2_E)
        for r, kv_len in enumerate(batch.kv_lens.tolist()):
            first, end = batch.qo_indptr[r : r + 2].tolist()
            n = end - first
            pages = batch.kv_indices[batch.kv_indptr[r] : batch.kv_indptr[r + 1]]
            acc = np.empty((kv_heads, n * group, dim), np.float32)
            top = np.empty((kv_heads, n * group), np.float32)
            total = np.empty((kv_heads, n * group), np.float32)
            scores = np.empty((n * group, TILE), np.float32)
            attend(
                queries[first:end],
                keys,
                values,
                pages,
                kv_len - n,
                0,
                kv_len,
                scale,
                acc,
                top,
                total,
                scores,
            )
            acc /= total[:, :, None]
            rows = acc.reshape(kv_heads, n, group, dim).transpose(1, 0, 2, 3)
            out[first:end] = torch.from_numpy(rows.reshape(n, kv_heads * group, dim))
        return out
