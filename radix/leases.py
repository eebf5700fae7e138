"""Leases: prefixes that somebody wants kept, for a while and as long as nothing needs the pages.

A lease holds no pages, it keeps nodes of the tree from being evicted. Where requests need the
pages, leases are broken, oldest deadline first: that costs time later, never an answer. A deadline
is a number on the clock of whoever asks; this module reads no clock.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Literal

from .node import Node, path
from .tree import RadixTree


@dataclass(slots=True, eq=False)
class Lease:
    """One prefix of `tokens` tokens, kept for `owner` until `deadline`.

    `state` says whether it still holds, or how it ended.
    """

    owner: Hashable
    deadline: float
    tokens: int
    node: Node
    state: Literal["held", "released", "expired", "broken"] = "held"


class Leases:
    """The leases on one tree.

    >>> from array import array
    >>> from boughs.radix import PrefixCache
    >>> cache = PrefixCache(num_pages=4, page_size=4)
    >>> words = array("i", [5, 6, 7, 8]).tobytes()
    >>> sequence = cache.admit(words)
    >>> cache.grow(sequence, 4)
    >>> cache.commit(sequence, words, 4)
    >>> cache.release(sequence)
    >>> lease = cache.leases.pin(words, owner="a program", deadline=60.0)
    >>> lease.tokens, cache.available()                   # leased pages can be had, at a price
    (4, 3)
    >>> other = cache.admit(b"")
    >>> cache.grow(other, 12)                             # this needs all three
    >>> lease.state, cache.peek(words)
    ('broken', 0)
    """

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._held: list[Lease] = []  # by deadline
        self.broken = 0
        """Leases broken so far."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._held)

    def pin(
        self, tokens: bytes, owner: Hashable, deadline: float, namespace: Hashable = ""
    ) -> Lease:
        """Keep what is cached of `tokens` (int32 bytes), as far as that goes, until `deadline`.

        A lease ends at its deadline, with its owner, when it is released or when it is broken.
        """
        node = self._tree.lock_prefix(tokens, namespace)
        for up in path(node):
            up.leases += 1
        self._tree.unlock(node)
        lease = Lease(owner, deadline, node.end, node)
        insort(self._held, lease, key=lambda held: held.deadline)
        return lease

    def release(self, lease: Lease) -> None:
        """End a lease, unless it has ended already."""
        if lease.state == "held":
            self._end(lease, "released")

    def release_owner(self, owner: Hashable) -> int:
        """End all leases of an owner, who has gone; how many that were."""
        mine = [lease for lease in self._held if lease.owner == owner]
        for lease in mine:
            self._end(lease, "released")
        return len(mine)

    def expire(self, now: float) -> int:
        """End the leases whose deadline has passed; how many these were."""
        late = [lease for lease in self._held if lease.deadline <= now]
        for lease in late:
            self._end(lease, "expired")
        return len(late)

    def break_one(self) -> bool:
        """Break the lease of the oldest deadline among those that keep pages of no request.

        Returns:
            Whether there was one.
        """
        for lease in self._held:
            if not lease.node.locks:
                self.broken += 1
                self._end(lease, "broken")
                return True
        return False

    def break_all(self) -> None:
        """Break every lease."""
        for lease in list(self._held):
            self.broken += 1
            self._end(lease, "broken")

    def pages(self) -> int:
        """Pages that nothing but leases keeps."""
        seen: set[Node] = set()
        for lease in self._held:
            for node in path(lease.node):
                if node in seen:
                    break
                seen.add(node)
        return sum(len(node.pages) for node in seen if not node.locks)

    def _end(self, lease: Lease, state: Literal["released", "expired", "broken"]) -> None:
        self._held.remove(lease)
        lease.state = state
        for up in path(lease.node):
            assert up.leases > 0, "a lease was taken back twice"
            up.leases -= 1
            if up.evictable:
                self._tree.policy.add(up)
        self._tree.drop_root(up)
