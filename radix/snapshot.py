"""The tree as plain data, for pictures and for debugging, in bounded time and size.

A snapshot is taken between two operations and changes nothing. It knows token ids and no text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from .node import WIDTH, Node

if TYPE_CHECKING:
    from .tree import RadixTree


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of the tree.

    Attributes:
        parent: Place of the parent in the snapshot's list; None at the beginning of a prompt.
        namespace: Where.
        start, end: Positions of its tokens in the prompts that they belong to.
        tokens: The first of them, as many as were asked for.
        pages: Ids of the pages that it lists, as many as tokens at most.
        num_pages: How many pages it lists.
        children: How many segments follow, shown or not.
        locks: Requests and copies that run through here.
        leases: Leases that do.
        last_use: Tick at which a handle was last given back.
        hits: Admissions that matched through here.
    """

    parent: int | None
    namespace: Hashable
    start: int
    end: int
    tokens: tuple[int, ...]
    pages: tuple[int, ...]
    num_pages: int
    children: int
    locks: int
    leases: int
    last_use: int
    hits: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The segments nearest to the beginning, parents first, and what was left out.

    Attributes:
        tick: Uses so far: the clock of `last_use`.
        segments: What is shown.
        omitted: Segments that are not shown.
    """

    tick: int
    segments: list[SegmentView]
    omitted: int


def take_snapshot(tree: RadixTree, max_segments: int = 1000, max_tokens: int = 32) -> Snapshot:
    """The tree as plain data; O(`max_segments` * `max_tokens`).

    >>> from array import array
    >>> from boughs.radix import PrefixCache
    >>> cache = PrefixCache(num_pages=9, page_size=4)
    >>> for last in (7, 8):
    ...     words = array("i", [5, 6, last]).tobytes()
    ...     sequence = cache.admit(words)
    ...     cache.grow(sequence, 3)
    ...     cache.copies_done(cache.take_copies())
    ...     cache.commit(sequence, words, 3)
    ...     cache.release(sequence)
    >>> for segment in take_snapshot(cache.tree).segments:
    ...     print(segment.parent, segment.start, segment.tokens, segment.pages)
    None 0 (5, 6) ()
    0 2 (7,) (1,)
    0 2 (8,) (2,)

    Args:
        tree: Is not changed.
        max_segments: Those nearest to the beginning are shown.
        max_tokens: Tokens and pages shown of each.
    """
    segments: list[SegmentView] = []
    queue: deque[tuple[int | None, Hashable, Node]] = deque()

    def enqueue(place: int | None, namespace: Hashable, node: Node) -> None:
        room = max(0, max_segments - len(segments) - len(queue))
        queue.extend((place, namespace, child) for child in islice(node.children.values(), room))

    for namespace, root in tree.roots.items():
        if len(queue) >= max_segments:
            break
        enqueue(None, namespace, root)
    while queue:
        parent, namespace, node = queue.popleft()
        segments.append(_view(parent, namespace, node, max_tokens))
        enqueue(len(segments) - 1, namespace, node)
    return Snapshot(tree.tick, segments, tree.nodes - len(segments))


def _view(parent: int | None, namespace: Hashable, node: Node, limit: int) -> SegmentView:
    return SegmentView(
        parent=parent,
        namespace=namespace,
        start=node.start,
        end=node.end,
        tokens=tuple(np.frombuffer(node.tokens[: limit * WIDTH], "<i4").tolist()),
        pages=tuple(node.pages[:limit]),
        num_pages=len(node.pages),
        children=len(node.children),
        locks=node.locks,
        leases=node.leases,
        last_use=node.last_use,
        hits=node.hits,
    )
