"""A node of the radix tree: one segment of tokens and the pages that hold its rows.

Tokens are bytes, four a token (int32, little-endian), so that they compare at the speed of memcmp.
This module knows neither the tree's namespaces nor where pages come from.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

WIDTH = 4
"""Bytes of a token."""

DEAD = -1
"""The version of a node that has left the tree."""


class Node:
    """The tokens at positions [start, end) of every prompt that runs through here.

    With pages of P tokens, `pages` are those of the page indices from start // P on: up to that of
    the last token in a leaf, and up to the last one that is complete in a node with children. A
    page that a branching point cuts is thus listed below it, once per branch, and each of them
    begins with the same rows; so every page of the tree is listed by exactly one node.

    Attributes:
        locks: Handles on this node and on all nodes below it.
        leases: Leases on this node and on all nodes below it.
        busy: Children with locks.
        version: Counts changes of the segment's extent and of the children; `DEAD` at the end.
        segment: Number of the event that stored the tokens; both halves of a split keep it.
        hits: Admissions that matched through here.
        last_use: Tick at which a handle was last given back.
        older, newer: Neighbours in the list of the `lru` policy.
    """

    __slots__ = (
        "busy",
        "children",
        "end",
        "hits",
        "last_use",
        "leases",
        "locks",
        "newer",
        "older",
        "pages",
        "parent",
        "priority",
        "rank",
        "segment",
        "start",
        "tokens",
        "version",
    )

    def __init__(
        self, tokens: bytes, start: int, pages: array[int], parent: Node | None, segment: int
    ) -> None:
        self.tokens = tokens
        self.start = start
        self.end = start + len(tokens) // WIDTH
        self.pages = pages
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.segment = segment
        self.locks = self.leases = self.busy = self.version = 0
        self.hits = self.last_use = self.priority = self.rank = 0
        self.older: Node | None = None
        self.newer: Node | None = None

    @property
    def evictable(self) -> bool:
        """Whether nothing keeps the node, once it is a leaf. Never true of a root."""
        return not (self.locks or self.leases or self.parent is None)

    def __repr__(self) -> str:
        return f"<Node [{self.start}, {self.end}) pages {list(self.pages)} locks {self.locks}>"


class Root(Node):
    """Where the prompts of one namespace start. It has no tokens and no pages."""

    __slots__ = ("namespace",)

    def __init__(self, namespace: Hashable) -> None:
        super().__init__(b"", 0, array("i"), None, 0)
        self.namespace = namespace


@dataclass(slots=True, eq=False)
class Spot:
    """Where a match ended, to be asked for again: `length` tokens deep, in `node` or at its end.

    `node` is None where the namespace has no tree. `version` is the node's when the match was made.
    """

    namespace: Hashable
    node: Node | None
    length: int
    version: int


def common(segment: bytes, tokens: bytes, at: int) -> int:
    """Bytes of whole tokens that `segment` shares with `tokens[at:]`. O(the answer)."""
    limit = min(len(segment), len(tokens) - at)
    low, step = 0, 16 * WIDTH
    while low < limit:  # gallop: [0, low) is equal
        high = min(low + step, limit)
        if not tokens.startswith(segment[low:high], at + low):
            break
        low, step = high, 2 * step
    else:
        return limit
    while high - low > WIDTH:  # the first difference is in [low, high)
        middle = low + (high - low) // (2 * WIDTH) * WIDTH
        if tokens.startswith(segment[low:middle], at + low):
            low = middle
        else:
            high = middle
    return low


def path(node: Node) -> Iterator[Node]:
    """The node, its parent and so on up to the root."""
    above: Node | None = node
    while above is not None:
        yield above
        above = above.parent


def ancestor(node: Node, depth: int) -> Node:
    """The node on the path of `node` that holds the token before position `depth`, or the root."""
    while node.start >= depth and node.parent is not None:
        node = node.parent
    assert depth <= node.end, f"the path is shorter than {depth}"
    return node


def namespace_of(node: Node) -> Hashable:
    """The namespace in whose tree the node is."""
    while node.parent is not None:
        node = node.parent
    assert isinstance(node, Root), "the path does not end in a root"
    return node.namespace


def page_table(node: Node) -> array[int]:
    """The pages on the path of `node`, by page index.

    That is all complete pages and, in a leaf, the last one in any case.
    """
    parts = []
    up: Node | None = node
    while up is not None:
        parts.append(up.pages)
        up = up.parent
    pages = array("i")
    for part in reversed(parts):
        pages += part
    return pages


def tail_holder(node: Node) -> Node:
    """The node that lists a page with the last rows of `node`, which ends inside that page.

    It is the last page of a leaf, else the first of what is returned.
    """
    while node.children:
        node = next(iter(node.children.values()))
        if node.pages:
            break
    return node
