"""Attention on the CPU, in float32, over pages read in place.

The work of a batch is cut once a step (`pieces`) and computed once a layer (`paged`), by the thread
that asks and by others of the backend's own. This module knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .backend import AttentionConfig, check_batch, check_query
from .batch import AttentionBatch
from .kv_cache import KVCache
from .merge import merge_parts
from .paged import run_pieces
from .pieces import divide
from .workers import Workers

LOG2_E = 1.4426950408889634


@dataclass
class _Step:
    """What the runs of one step share."""

    batch: AttentionBatch
    pieces: NDArray[np.int32]
    merges: NDArray[np.int32]
    parts: NDArray[np.float32]
    tasks: list[tuple[int, int]]
    checked: int = 0  # pages of the pool that the batch was checked for


class CpuBackend:
    """Paged attention compiled by numba.

    What it computes for a request depends neither on the batch around it nor on the number of
    threads, to the last bit. The constructor compiles, where the disk holds nothing compiled yet.

    Args:
        config: The shape of the attention.
        threads: Threads that compute, the calling one included.
        why: Why this backend was chosen.
    """

    name = "cpu"

    def __init__(self, config: AttentionConfig, threads: int, why: str) -> None:
        self.config = config
        self.why = why
        self._workers = Workers(threads)
        self._scale = np.float32(config.scale * LOG2_E)
        self._run_pieces = run_pieces()
        self._merge_parts = merge_parts()
        self._step: _Step | None = None

    def plan(self, batch: AttentionBatch) -> None:
        """Take the batch that the following runs are about."""
        check_batch(batch, self.config)
        plan = divide(batch, self.config)
        self._step = _Step(
            batch=batch,
            pieces=np.array(plan.pieces, dtype=np.int32).reshape(-1, 9),
            merges=np.array(plan.merges, dtype=np.int32).reshape(-1, 6),
            parts=np.empty((plan.parts, self.config.head_dim + 2), dtype=np.float32),
            tasks=plan.tasks(self._workers.threads),
        )

    def run(self, layer: int, q: Tensor, kv: KVCache) -> Tensor:
        """Attention of the planned batch in one layer; see `AttentionBackend.run`."""
        step = self._checked(q, kv)
        out = np.empty(q.shape, dtype=np.float32)
        queries, keys, values = q.numpy(), kv.k(layer).numpy(), kv.v(layer).numpy()
        batch, scale, run_pieces = step.batch, self._scale, self._run_pieces

        def compute(task: tuple[int, int]) -> None:
            run_pieces(
                step.pieces, *task, queries, keys, values, batch.kv_indptr, batch.kv_indices,
                scale, out, step.parts,
            )  # fmt: skip

        self._workers.run(compute, step.tasks)
        if len(step.merges):
            group = self.config.num_heads // self.config.num_kv_heads
            self._merge_parts(step.merges, step.parts, group, out)
        return torch.from_numpy(out)

    def _checked(self, q: Tensor, kv: KVCache) -> _Step:
        """The planned step, if queries and cache fit it."""
        step = self._step
        check_query(step.batch if step else None, q, kv, self.config)
        assert step is not None
        if q.dtype != torch.float32 or kv.dtype != torch.float32:
            raise ValueError(f"the cpu backend computes in float32, got {q.dtype} over {kv.dtype}")
        if step.checked != kv.num_pages:
            step.batch.check(kv.num_pages)
            step.checked = kv.num_pages
        return step
