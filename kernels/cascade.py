"""Which requests of a batch see the same pages first, so that these are read once for all of them.

Cascade inference (https://flashinfer.ai/2024/02/02/cascade-inference.html) over a tree of any
depth: what requests share is found in their page tables alone. This module computes nothing, and
does not know when it pays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from .batch import AttentionBatch, Ints


@dataclass(frozen=True, slots=True)
class Shared:
    """Positions that neighbours see in the same pages.

    Attributes:
        first, end: The neighbours, by their places in `Sharing.requests`.
        kv_begin, kv_end: The positions; whole pages.
    """

    first: int
    end: int
    kv_begin: int
    kv_end: int


@dataclass(slots=True)
class Sharing:
    """What requests of a batch share.

    Attributes:
        requests: Those that were looked at, in an order in which sharers are neighbours.
        nodes: What they share; nodes of one request follow one another from its beginning on.
        kv_begin: Of each of `requests`, the first position that no node covers.
    """

    requests: list[int]
    nodes: list[Shared] = field(default_factory=list)
    kv_begin: list[int] = field(default_factory=list)


def find_sharing(
    batch: AttentionBatch, requests: Sequence[int], pays: Callable[[int, int], bool]
) -> Sharing:
    """What some requests of a batch share.

    Only pages that end at or before a request's first row count: all its rows see them whole.

    Args:
        batch: The batch.
        requests: Which of its requests to look at.
        pays: Whether it pays to read so many pages once for so many requests.
    """
    size = batch.page_size
    whole = (batch.kv_lens - batch.q_lens) // size
    tables = {r: _table(batch, r)[: whole[r]] for r in requests}
    sharing = Sharing(sorted(requests, key=lambda r: tables[r].tobytes()))
    sharing.kv_begin = [0] * len(sharing.requests)
    alike = [_common(tables[a], tables[b]) for a, b in pairwise(sharing.requests)]
    stack = [(0, len(sharing.requests), 0)]
    while stack:
        first, end, begin = stack.pop()
        if end - first < 2:
            continue
        all_share = min(alike[first : end - 1])
        if all_share > begin and pays(end - first, all_share - begin):
            sharing.nodes.append(Shared(first, end, begin * size, all_share * size))
            sharing.kv_begin[first:end] = [all_share * size] * (end - first)
            begin = all_share
        at = first
        for place in range(first, end - 1):
            if alike[place] == all_share:  # here neighbours part
                stack.append((at, place + 1, begin))
                at = place + 1
        stack.append((at, end, begin))
    return sharing


def _table(batch: AttentionBatch, request: int) -> Ints:
    begin, end = batch.kv_indptr[request : request + 2]
    return batch.kv_indices[begin:end]


def _common(a: Ints, b: Ints) -> int:
    """How many first pages are the same."""
    length = min(len(a), len(b))
    if not length or a[0] != b[0]:  # the rule, where nothing is shared
        return 0
    differ = a[:length] != b[:length]
    return int(differ.argmax()) if differ.any() else length
