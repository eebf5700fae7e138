"""The pieces of a batch's attention: each request for itself, or what many see once for all.

This module computes no attention.
"""

from __future__ import annotations

import numpy as np

from .backend import AttentionConfig
from .batch import AttentionBatch
from .cascade import Sharing, find_sharing
from .costs import DEFAULT, Costs
from .cut import MANY_POSITIONS, Cutter, Plan, Rows, Source


def divide(
    batch: AttentionBatch,
    config: AttentionConfig,
    window: int = 0,
    *,
    cascade: bool = False,
    costs: Costs = DEFAULT,
) -> Plan:
    """Cut a batch into pieces, for layers whose rows see `window` positions; 0 stands for all.

    Args:
        batch: The batch.
        config: The shape of the attention.
        window: Of the layers.
        cascade: Whether pages that several requests see first are read once for all of them, where
            that pays and there is no window.
        costs: What pieces take.
    """
    cutter = Cutter(config, costs, window=window)
    counts, lens = batch.q_lens.tolist(), batch.kv_lens.tolist()
    rest = [request for request, count in enumerate(counts) if count]
    row = batch.qo_indptr.tolist()
    if cascade and not window:
        few = [request for request in rest if cutter.is_few(counts[request])]
        size = batch.page_size
        sharing = find_sharing(batch, few, lambda n, pages: _pays(cutter, config, n, pages * size))
        if sharing.nodes:
            rest = [request for request in rest if request not in set(few)]
            order = sharing.requests + rest
            cutter.plan.rows = np.concatenate(
                [np.arange(*batch.qo_indptr[r : r + 2], dtype=np.int64) for r in order]
            )
            ends = np.cumsum([counts[r] for r in order]).tolist()
            for request, end in zip(order, ends, strict=True):
                row[request] = end - counts[request]
            _add_sharing(
                cutter, sharing, [_rows(r, row[r], counts[r], lens[r]) for r in sharing.requests]
            )
    for request in rest:
        cutter.add(_rows(request, row[request], counts[request], lens[request]))
    return cutter.plan


def _rows(request: int, row: int, count: int, kv_len: int) -> Rows:
    """All rows of a request, of which the first is row `row`."""
    return Rows(request, row, row + count, kv_len - count, 0, kv_len)


def _pays(cutter: Cutter, config: AttentionConfig, requests: int, positions: int) -> bool:
    """Whether to read so many positions once for one row each of so many requests.

    That saves reading them again and again, and adds to each request a piece, and parts that are
    merged.
    """
    seen = positions * config.num_kv_heads
    alone = requests * seen * cutter.cost(1)
    parts, costs = 1 + -(-positions // MANY_POSITIONS), cutter.costs
    more = requests * (costs.piece + config.num_heads * costs.part * parts)
    return alone > seen * cutter.cost(requests) + more


def _add_sharing(cutter: Cutter, sharing: Sharing, owners: list[Rows]) -> None:
    """Pieces for what requests share, pieces for the rest of each, and what merges both.

    Args:
        cutter: Gets them.
        sharing: What is shared.
        owners: The rows of `sharing.requests`, which follow one another.
    """
    sources: list[list[Source]] = [[] for _ in owners]
    for node in sharing.nodes:
        first, last = owners[node.first], owners[node.end - 1]
        # Each row sees all of it, as if it stood behind its end.
        rows = Rows(first.request, first.row, last.row_end, node.kv_end, node.kv_begin, node.kv_end)
        found = cutter.add_parts(rows)
        for at in range(node.first, node.end):
            sources[at] += found
    for owner, begin, found in zip(owners, sharing.kv_begin, sources, strict=True):
        if not found:
            cutter.add(owner)
            continue
        rest = Rows(owner.request, owner.row, owner.row_end, owner.position, begin, owner.kv_end)
        cutter.merge(owner.row, owner.row_end, found + cutter.add_parts(rest))
