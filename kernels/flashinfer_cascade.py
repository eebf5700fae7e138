"""One plan for decodes that share prefixes, at any depth: pieces of pages, and rows that ask them.

Every shared node and every tail of a request's own is a piece. A piece is asked by the rows of all
that see it, and what a row found in its pieces is merged by its log-sum-exp. This module lays out
numbers and computes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .batch import AttentionBatch, Ints
from .cascade import Sharing

SAVES = 80 << 20
"""Bytes of keys and values that a node must save in a layer to be read by itself: what the gathers
and the merge cost beside a decode, as measured by others on an H200."""


@dataclass(frozen=True)
class Layout:
    """The pieces of a step's decodes.

    Attributes:
        qo_indptr: int32 [P + 1]. Piece p is asked by rows[qo_indptr[p] : qo_indptr[p + 1]].
        kv_indptr: int32 [P + 1]. Its pages are kv_indices[kv_indptr[p] : kv_indptr[p + 1]].
        kv_indices: int32. Page ids.
        kv_last_page_len: int32 [P].
        rows: int32 [A]: of each asking, the decode that asks.
        parts: int32 [decodes, S]: the askings of each decode; A stands for none.
    """

    qo_indptr: Ints
    kv_indptr: Ints
    kv_indices: Ints
    kv_last_page_len: Ints
    rows: Ints
    parts: Ints

    @property
    def arrays(self) -> list[Ints]:
        """All of them, what FlashInfer reads on the host first; each of one dimension."""
        return [
            self.qo_indptr,
            self.kv_indptr,
            self.kv_last_page_len,
            self.kv_indices,
            self.rows,
            self.parts.ravel(),
        ]


def lay_out(batch: AttentionBatch, sharing: Sharing) -> Layout:
    """The pieces of the first requests of a batch, which ask for one row each.

    Args:
        batch: The batch.
        sharing: What these requests share, all of them looked at.
    """
    size, requests = batch.page_size, np.array(sharing.requests, dtype=np.int32)
    askers: list[NDArray[np.int32]] = []
    pages: list[Ints] = []
    last: list[int] = []
    for node in sharing.nodes:
        askers.append(requests[node.first : node.end])
        table = _table(batch, int(requests[node.first]))
        pages.append(table[node.kv_begin // size : node.kv_end // size])
        last.append(size)
    for place, request in enumerate(sharing.requests):
        askers.append(requests[place : place + 1])
        pages.append(_table(batch, request)[sharing.kv_begin[place] // size :])
        last.append(int(batch.kv_last_page_len[request]))
    rows = np.concatenate(askers)
    return Layout(
        qo_indptr=_indptr(askers),
        kv_indptr=_indptr(pages),
        kv_indices=np.concatenate(pages),
        kv_last_page_len=np.array(last, dtype=np.int32),
        rows=rows,
        parts=_parts(rows, len(requests)),
    )


def _parts(rows: Ints, decodes: int) -> Ints:
    """The places at which each decode stands in `rows`, filled up with one behind the last."""
    order = np.argsort(rows, kind="stable").astype(np.int32)
    counts = np.bincount(rows, minlength=decodes)
    parts = np.full((decodes, counts.max()), len(rows), dtype=np.int32)
    parts[np.arange(counts.max()) < counts[:, None]] = order
    return parts


def _table(batch: AttentionBatch, request: int) -> Ints:
    begin, end = batch.kv_indptr[request : request + 2]
    return batch.kv_indices[begin:end]


def _indptr(parts: list[Ints]) -> Ints:
    indptr = np.zeros(len(parts) + 1, dtype=np.int32)
    np.cumsum([len(part) for part in parts], out=indptr[1:])
    return indptr
