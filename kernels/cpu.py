"""Attention on the CPU, in float32, over pages read in place, of any of `elements`.

The work of a batch is cut once a step for each window that layers have (`pieces`) and computed once
a layer (`paged`), by the thread that asks and by others of the backend's own. This module knows no
model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .attend import Record
from .backend import AttentionConfig, check_batch, check_cache, check_query
from .batch import AttentionBatch
from .costs import DEFAULT, Costs
from .elements import ELEMENTS
from .emit import LOG2_E
from .flashinfer_limits import name_of
from .kv_cache import KVCache
from .merge import merge_parts
from .paged import EVERYTHING, run_pieces
from .pieces import divide
from .workers import Workers


@dataclass
class _Step:
    """What the runs of one step share that have the same window."""

    window: int
    pieces: NDArray[np.int32]
    merges: NDArray[np.int32]
    sources: NDArray[np.int32]
    rows: NDArray[np.int64] | None
    parts: NDArray[np.float32]
    tasks: list[tuple[int, int]]


class CpuBackend:
    """Paged attention compiled by numba.

    What it computes for a request depends not on the number of threads, and without cascade not on
    the batch around it either, to the last bit. The constructor compiles, where the disk holds
    nothing compiled yet.

    Args:
        config: The shape of the attention.
        threads: Threads that compute, the calling one included.
        why: Why this backend was chosen.
        cascade: Whether pages that several requests of a batch see first are read once for all of
            them, where that pays.
        kv_dtype: Of the cache: one of `elements.ELEMENTS`.
        costs: What pieces take on this machine.

    Attributes:
        config, why, costs: As given.

    Raises:
        ValueError: A cache that the kernels do not read.
    """

    name = "cpu"

    def __init__(
        self,
        config: AttentionConfig,
        threads: int,
        why: str,
        *,
        cascade: bool = False,
        kv_dtype: torch.dtype = torch.float32,
        costs: Costs = DEFAULT,
    ) -> None:
        if kv_dtype not in ELEMENTS:
            kinds = ", ".join(map(name_of, ELEMENTS))
            raise ValueError(f"the cpu backend reads {kinds}, not {name_of(kv_dtype)}")
        self.config = config
        self._kv_dtype = kv_dtype
        self._cascade = cascade
        self.costs = costs
        self.why = why
        self._workers = Workers(threads)
        # The kernels reckon in base 2: either the scale takes the factor, or the cap behind it.
        self._cap = np.float32(config.soft_cap * LOG2_E)
        self._scale = np.float32(
            config.scale * (1 / config.soft_cap if config.soft_cap else LOG2_E)
        )
        self._run_pieces = run_pieces(kv_dtype)
        self._merge_parts = merge_parts()
        self._batch: AttentionBatch | None = None
        self._checked_pages = 0  # of the pool that the batch was checked for
        self._steps: dict[int, _Step] = {}

    def plan(self, batch: AttentionBatch) -> None:
        """Take the batch that the following runs are about."""
        check_batch(batch, self.config)
        self._batch, self._checked_pages = batch, 0
        self._steps = {
            window: self._cut(batch, window) for window in set(self.config.windows) or {0}
        }

    def _cut(self, batch: AttentionBatch, window: int) -> _Step:
        plan = divide(batch, self.config, window, cascade=self._cascade, costs=self.costs)
        return _Step(
            window=window or EVERYTHING,
            pieces=np.array(plan.pieces, dtype=np.int32).reshape(-1, 9),
            merges=np.array(plan.merges, dtype=np.int32).reshape(-1, 6),
            sources=np.array(plan.sources, dtype=np.int32).reshape(-1, 4),
            rows=plan.rows,
            parts=np.empty((plan.parts, self.config.head_dim + 2), dtype=np.float32),
            tasks=plan.tasks(self._workers.threads),
        )

    def run(self, layer: int, q: Tensor, kv: KVCache) -> Tensor:
        """Attention of the planned batch in one layer; see `AttentionBackend.run`."""
        batch = self._checked(q, kv)
        step = self._steps[self.config.window(layer)]
        out = np.empty(q.shape, dtype=np.float32)
        queries, cache = q.numpy(), kv.arrays(layer)
        if step.rows is not None:
            queries = queries[step.rows]
        scale, cap, run_pieces = self._scale, self._cap, self._run_pieces

        def compute(task: tuple[int, int]) -> None:
            run_pieces(
                step.pieces, *task, queries, *cache, batch.kv_indptr, batch.kv_indices, step.window,
                scale, cap, out, step.parts,
            )  # fmt: skip

        self._workers.run(compute, step.tasks)
        if len(step.merges):
            group = self.config.num_heads // self.config.num_kv_heads
            self._merge_parts(step.merges, step.sources, step.parts, group, out)
        if step.rows is None:
            return torch.from_numpy(out)
        made = np.empty_like(out)
        made[step.rows] = out
        return torch.from_numpy(made)

    def records(self, kv: KVCache) -> dict[int, Record]:
        """By window, what the calls of a program need to know of the planned step.

        Raises:
            ValueError: No plan, or a cache that does not fit it.
        """
        batch = self._fitting(check_cache(self._batch, kv, self.config), kv)
        scale = float(self._scale), float(self._cap)
        return {
            window: Record(step, batch, scale, kv.num_pages) for window, step in self._steps.items()
        }

    def _checked(self, q: Tensor, kv: KVCache) -> AttentionBatch:
        """The planned batch, if queries and cache fit it."""
        batch = check_query(self._batch, q, kv, self.config)
        if (q.dtype, kv.dtype) != (torch.float32, self._kv_dtype):
            raise ValueError(
                f"the cpu backend computes in float32 over {name_of(self._kv_dtype)}, "
                f"got {name_of(q.dtype)} over {name_of(kv.dtype)}"
            )
        return self._fitting(batch, kv)

    def _fitting(self, batch: AttentionBatch, kv: KVCache) -> AttentionBatch:
        """The batch, after its pages are held against those of the cache."""
        if self._checked_pages != kv.num_pages:
            batch.check(kv.num_pages)
            self._checked_pages = kv.num_pages
        return batch
