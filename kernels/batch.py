"""One batch of attention, in FlashInfer's terms: which rows are asked, and which pages they see.

Built once a step, on the CPU, and read by every backend and every layer. This module knows no
request beyond its numbers, and neither memory nor arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class AttentionBatch:
    """R requests, each with the rows that it asks for and the pages that hold its keys and values.

    Row i of a request with n rows and m tokens of KV stands at position m - n + i and sees the
    positions up to its own: causal, aligned to the bottom right. The KV of the rows themselves
    is part of the m and has been written before attention runs.

    Attributes:
        qo_indptr: int32 [R + 1]. Request r asks for the rows qo_indptr[r] to qo_indptr[r + 1].
        kv_indptr: int32 [R + 1]. Its pages are kv_indices[kv_indptr[r] : kv_indptr[r + 1]].
        kv_indices: int32 [all pages of all requests]. Page ids in the order of their tokens.
        kv_last_page_len: int32 [R]. Tokens in the last page: 1 to page_size, 0 without pages.
        page_size: Tokens that a page holds.
    """

    qo_indptr: Ints
    kv_indptr: Ints
    kv_indices: Ints
    kv_last_page_len: Ints
    page_size: int

    @classmethod
    def from_requests(
        cls,
        page_tables: Sequence[Sequence[int]],
        kv_lens: Sequence[int],
        q_lens: Sequence[int],
        page_size: int,
    ) -> AttentionBatch:
        """Build a batch from one page table, KV length and number of rows per request.

        A page table may be longer than its KV needs; the pages behind are left out.

        Raises:
            ValueError: A length is negative, a page table is too short for its KV, more rows are
                asked than there is KV, or the lists differ in length.
        """
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        used = []
        for table, kv_len, q_len in zip(page_tables, kv_lens, q_lens, strict=True):
            if not 0 <= q_len <= kv_len:
                raise ValueError(f"{q_len} rows asked over {kv_len} tokens of KV")
            pages = -(-kv_len // page_size)
            if len(table) < pages:
                raise ValueError(
                    f"{kv_len} tokens need {pages} pages of {page_size}, the table has {len(table)}"
                )
            used.append(table if len(table) == pages else table[:pages])
        kv_indptr = _indptr([len(table) for table in used])
        return cls(
            qo_indptr=_indptr(q_lens),
            kv_indptr=kv_indptr,
            kv_indices=np.fromiter(
                chain.from_iterable(used), dtype=np.int32, count=int(kv_indptr[-1])
            ),
            kv_last_page_len=np.array(
                [
                    kv_len - (len(table) - 1) * page_size if table else 0
                    for table, kv_len in zip(used, kv_lens, strict=True)
                ],
                dtype=np.int32,
            ),
            page_size=page_size,
        )

    def padded(self, num_requests: int) -> AttentionBatch:
        """With requests added, of one row each that sees the first token of page 0.

        Page 0 is handed out to nobody, so what is computed there concerns nobody.
        """
        added = num_requests - self.num_requests
        ones = np.ones(added, dtype=np.int32)
        more = np.arange(1, added + 1, dtype=np.int32)
        return AttentionBatch(
            qo_indptr=np.concatenate((self.qo_indptr, self.qo_indptr[-1] + more)),
            kv_indptr=np.concatenate((self.kv_indptr, self.kv_indptr[-1] + more)),
            kv_indices=np.concatenate((self.kv_indices, 0 * ones)),
            kv_last_page_len=np.concatenate((self.kv_last_page_len, ones)),
            page_size=self.page_size,
        )

    @property
    def num_requests(self) -> int:
        """R."""
        return len(self.kv_last_page_len)

    @property
    def num_rows(self) -> int:
        """Rows of all requests together."""
        return int(self.qo_indptr[-1])

    @cached_property
    def q_lens(self) -> Ints:
        """int32 [R]: rows of each request."""
        return np.diff(self.qo_indptr)

    @cached_property
    def kv_lens(self) -> Ints:
        """int32 [R]: tokens of KV of each request."""
        full = np.maximum(np.diff(self.kv_indptr) - 1, 0) * self.page_size
        lens: Ints = (full + self.kv_last_page_len).astype(np.int32)
        return lens

    def check(self, num_pages: int) -> None:
        """Refuse what a kernel would misread, for a pool of `num_pages` pages.

        Raises:
            ValueError: An array that is not int32, one-dimensional and contiguous; lengths or sums
                that do not add up; a last page's length out of range; a page id out of the pool;
                more rows than KV.
        """
        for name in ("qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len"):
            array = getattr(self, name)
            if array.dtype != np.int32:
                raise ValueError(f"{name} must be int32, got {array.dtype}")
            if array.ndim != 1 or not array.flags.c_contiguous:
                raise ValueError(f"{name} must have one dimension and no gaps")
        _check_indptr("qo_indptr", self.qo_indptr, self.num_requests)
        _check_indptr("kv_indptr", self.kv_indptr, self.num_requests)
        if self.kv_indptr[-1] != len(self.kv_indices):
            raise ValueError(
                f"kv_indptr ends at {self.kv_indptr[-1]}, kv_indices has {len(self.kv_indices)}"
            )
        pages = np.diff(self.kv_indptr)
        last = self.kv_last_page_len
        if np.any((last < (pages > 0)) | (last > np.where(pages > 0, self.page_size, 0))):
            raise ValueError(
                f"kv_last_page_len must be 1 to {self.page_size}, and 0 without pages: {last}"
            )
        ids = self.kv_indices
        if len(ids) and not 0 <= ids.min() <= ids.max() < num_pages:
            raise ValueError(f"page ids {ids.min()} to {ids.max()} in a pool of {num_pages}")
        if np.any(self.q_lens > self.kv_lens):
            raise ValueError(f"rows asked, {self.q_lens}, over less KV, {self.kv_lens}")


def _indptr(lens: Sequence[int]) -> Ints:
    indptr = np.zeros(len(lens) + 1, dtype=np.int32)
    np.cumsum(lens, out=indptr[1:])
    return indptr


def _check_indptr(name: str, indptr: Ints, num_requests: int) -> None:
    if len(indptr) != num_requests + 1:
        raise ValueError(f"{name} has {len(indptr)} entries for {num_requests} requests")
    if indptr[0] != 0 or np.any(np.diff(indptr) < 0):
        raise ValueError(f"{name} must start at 0 and never fall: {indptr}")
