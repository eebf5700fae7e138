"""Which unlocked leaf is evicted next.

A policy is told which nodes are evictable (nothing locks or leases them) and names the next victim
among the leaves of these. It evicts nothing itself and knows no pages.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable
from typing import Protocol

from .node import Node


class Policy(Protocol):
    """What the tree tells a policy, and asks of it."""

    def add(self, node: Node) -> None:
        """The node has become evictable. Its children have before it."""

    def remove(self, node: Node) -> None:
        """The node, which was evictable, is no more."""

    def split(self, upper: Node, lower: Node) -> None:
        """The evictable `lower` has got `upper` as its parent, evictable too."""

    def bare(self, node: Node) -> None:
        """The evictable node has lost its last child."""

    def victim(self) -> Node | None:
        """The leaf to evict next."""

    def faults(self, evictable: set[Node]) -> list[str]:
        """What is wrong, if `evictable` are all evictable nodes."""


class LeastRecentlyUsed:
    """The leaf that was used longest ago, in O(1).

    All evictable nodes are in one doubly linked list, oldest first. Nodes become evictable leaf
    first and root last, so that children are always older than their parent: the oldest node is
    a leaf.
    """

    def __init__(self) -> None:
        self._ends = Node(b"", 0, array("i"), None, 0)  # its newer is the oldest, and vice versa
        self._ends.older = self._ends.newer = self._ends

    def add(self, node: Node) -> None:
        """Put the node at the newest end."""
        ends = self._ends
        newest = ends.older
        assert newest is not None, "the list is not closed"
        node.older, node.newer = newest, ends
        newest.newer = ends.older = node

    def remove(self, node: Node) -> None:
        """Take the node out of the list."""
        older, newer = node.older, node.newer
        assert older is not None, "the node is not in the list"
        assert newer is not None, "the node is not in the list"
        older.newer, newer.older = newer, older
        node.older = node.newer = None

    def split(self, upper: Node, lower: Node) -> None:
        """Put `upper` right after `lower`."""
        newer = lower.newer
        assert newer is not None, "the node is not in the list"
        upper.older, upper.newer = lower, newer
        lower.newer = newer.older = upper

    def bare(self, node: Node) -> None:
        """Do nothing: the node is in the list, and the list is in order."""

    def victim(self) -> Node | None:
        """Give the oldest node, which is a leaf."""
        oldest = self._ends.newer
        return None if oldest is self._ends else oldest

    def faults(self, evictable: set[Node]) -> list[str]:
        """Compare the list with the evictable nodes."""
        found: list[str] = []
        place: dict[Node, int] = {}
        last, node = self._ends, self._ends.newer
        while node is not None and node is not self._ends and node not in place:
            if node.older is not last:
                found.append(f"LRU list: {node} does not link back")
            place[node] = len(place)
            last, node = node, node.newer
        if node is not self._ends or self._ends.older is not last:
            found.append("LRU list: not closed")
        if place.keys() != evictable:
            found.append(
                f"LRU list: {len(place.keys() - evictable)} nodes too many, "
                f"{len(evictable - place.keys())} missing"
            )
        found += [
            f"LRU list: {node} is older than its child {child}"
            for node in place
            for child in node.children.values()
            if place.get(child, -1) > place[node]
        ]
        return found


class Ranked:
    """The leaf with the least key, in O(log n): a heap whose stale entries are skipped.

    A node's key must not change while the node is evictable.

    Args:
        key: What to order leaves by, least first.
    """

    def __init__(self, key: Callable[[Node], tuple[int, ...]]) -> None:
        self._key = key
        self._heap: list[tuple[tuple[int, ...], int, Node]] = []
        self._ranks = 0
        self._live = 0

    def add(self, node: Node) -> None:
        """Push the node, if it is a leaf."""
        if not node.children:
            self._push(node)

    def remove(self, node: Node) -> None:
        """Make the node's entry stale, and rebuild the heap when most entries are."""
        if node.rank:
            node.rank = 0
            self._live -= 1
            if len(self._heap) > 2 * self._live + 64:
                self._heap = [entry for entry in self._heap if entry[1] == entry[2].rank]
                heapq.heapify(self._heap)

    def split(self, upper: Node, lower: Node) -> None:
        """Do nothing: `upper` is no leaf, and `lower` keeps its key."""

    def bare(self, node: Node) -> None:
        """Push the node, which is a leaf now."""
        self._push(node)

    def victim(self) -> Node | None:
        """Give the least leaf."""
        while self._heap and self._heap[0][1] != self._heap[0][2].rank:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def _push(self, node: Node) -> None:
        assert not node.rank, "the node is in the heap"
        self._ranks += 1
        self._live += 1
        node.rank = self._ranks
        heapq.heappush(self._heap, (self._key(node), node.rank, node))

    def faults(self, evictable: set[Node]) -> list[str]:
        """Compare the live entries with the evictable leaves."""
        live = [entry for entry in self._heap if entry[1] == entry[2].rank]
        found = [f"heap: key of {node} is stale" for key, _, node in live if key != self._key(node)]
        leaves = {node for node in evictable if not node.children}
        if len(live) != self._live or {entry[2] for entry in live} != leaves:
            found.append(f"heap: {len(live)} live entries for {len(leaves)} evictable leaves")
        if any(self._heap[(at - 1) // 2] > self._heap[at] for at in range(1, len(self._heap))):
            found.append("heap: an entry is less than the one above it")
        return found


POLICIES: dict[str, Callable[[], Policy]] = {
    "lru": LeastRecentlyUsed,
    "lfu": lambda: Ranked(lambda node: (node.hits, node.last_use)),
    "fifo": lambda: Ranked(lambda node: (node.segment,)),
    "priority": lambda: Ranked(lambda node: (node.priority, node.last_use)),
}
"""Eviction policies by name: least recently used, least frequently used, first stored, least
priority (of the highest that any request through the node had) and of these least recently used."""
