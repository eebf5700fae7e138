"""Attention over pages in plain torch, written to be read: what every other backend must equal.

Works in the dtype of the queries (float64 for tests). It gathers each request's pages and is slow.
This module knows no model and no request beyond the batch's numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .backend import AttentionConfig, check_batch, check_query
from .batch import AttentionBatch
from .kv_cache import KVCache


class ReferenceBackend:
    """Softmax of scaled, softly capped scores over the positions that a row sees.

    Those are the last ones up to its own, as many as the layer's window says.
    """

    name = "reference"

    def __init__(self, config: AttentionConfig, why: str) -> None:
        self.config = config
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
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for r, kv_len in enumerate(batch.kv_lens.tolist()):
            indices = batch.kv_indices[batch.kv_indptr[r] : batch.kv_indptr[r + 1]]
            pages = torch.from_numpy(indices).to(q.device, torch.int64)
            rows = slice(int(batch.qo_indptr[r]), int(batch.qo_indptr[r + 1]))
            if rows.start == rows.stop:
                continue
            k, v = (x[:kv_len] for x in kv.read(layer, pages, q.dtype))  # [m, K, D]
            window = self.config.window(layer) or kv_len
            out[rows] = self._attend(q[rows], k, v, window)
        return out

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
        """Attention of n rows [n, H, D] over m positions [m, K, D], of which a row sees a window.

        What no row sees is left out before any arithmetic, so that it may be anything.
        """
        n, m = len(q), len(k)
        first = max(0, m - n + 1 - window)
        k, v = k[first:], v[first:]
        group = self.config.num_heads // self.config.num_kv_heads
        k = k.repeat_interleave(group, dim=1)  # [m, H, D]: query head h reads KV head h // group
        v = v.repeat_interleave(group, dim=1)
        scores = torch.einsum("nhd,mhd->hnm", q, k) * self.config.scale
        if self.config.soft_cap:
            scores = self.config.soft_cap * torch.tanh(scores / self.config.soft_cap)
        own = torch.arange(m - n, m, device=q.device)[:, None]  # the positions of the rows
        seen = torch.arange(first, m, device=q.device)[None, :]
        hidden = (seen > own) | (seen <= own - window)  # [n, m - first]
        weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
        return torch.einsum("hnm,mhd->nhd", weights, v)
