"""What an admission takes of the pages to be had, and what a release gives back: asked beforehand.

A page is held while a request, a lock or a pending copy keeps it. An admission takes all pages of
its tokens but those that others hold already; whether the rest is cached makes no difference, since
a cached page that nobody holds counts as available until it is locked. So an eviction between
question and admission changes no price; of several that share what nobody holds, all keep it
(`PrefixCache.keep`) before the first takes pages. These are queries: they change nothing. This
module knows no queue, and not who is admitted or released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from .copies import Copies
from .node import WIDTH, Node, Spot
from .tree import RadixTree

if TYPE_CHECKING:
    from .cache import Sequence


class Segment(NamedTuple):
    """The part of a match that lies in one node.

    Attributes:
        node: Names the node, as long as the tree does not change.
        pages: Whole pages of the match that it lists.
        held: Whether it is locked now.
    """

    node: int
    pages: int
    held: bool


class Price(NamedTuple):
    """What an admission takes of `available()`: `pages`, or one more if `copies`.

    With just `pages` to be had it succeeds, without the copy. It takes one less where it can go on
    in the last page of what others hold.

    Attributes:
        pages: All that the tokens fill, but those of the match that others hold.
        copies: Whether the match may end inside a page, whose source is then kept, too. Where
            others commit before, it may in any case.
        path: The parts of the match that nobody holds now, or that may be let go, the deepest
            first: where others lock them before, their pages are not to be paid again.
    """

    pages: int
    copies: bool
    path: tuple[Segment, ...]


class Refund(NamedTuple):
    """What one more release gives back.

    Attributes:
        pages: By so many `available()` rises.
        nodes: Names of the nodes that nobody holds any more.
    """

    pages: int
    nodes: frozenset[int]


def price(spot: Spot, length: int, page_size: int, freed: Collection[int] = ()) -> Price:
    """The price of admitting `length` tokens whose match ends at `spot`.

    Args:
        spot: What the tree has found, and has not changed under.
        length: Tokens, more than the match.
        page_size: Tokens per page.
        freed: Names of nodes that are locked and may be let go before; closed downwards.
    """
    path: list[Segment] = []
    pages = -(-length // page_size)
    end = spot.length
    node = spot.node
    while node is not None and node.parent and (not node.locks or id(node) in freed):
        whole = end // page_size - node.start // page_size
        path.append(Segment(id(node), whole, node.locks > 0))
        end = node.start
        node = node.parent
    held = end // page_size + sum(segment.pages for segment in path if segment.held)
    evictable = any(not segment.held for segment in path)  # so that it may end elsewhere
    return Price(pages - held, evictable or spot.length % page_size > 0, tuple(path))


def refunds(
    tree: RadixTree, copies: Copies, ending: Iterable[list[tuple[Sequence, bytes]]]
) -> Iterator[Refund]:
    """What each of some requests gives back, if they commit their rows and are released in turn.

    It is exact; where a pending copy reads a row that is still to be committed, it may be less than
    what comes. O(nodes on their paths and pages of their own).

    Args:
        tree: What they commit to.
        copies: Those pending.
        ending: Of each request its sequences, each with the tokens (int32 bytes) of its rows.
    """
    trial = _Trial(tree, copies)
    before = 0
    for sequences in ending:
        freed: set[int] = set()
        for sequence, tokens in sequences:
            trial.release(sequence, tokens, freed)
        now = trial.total()
        yield Refund(now - before, frozenset(freed))
        before = now


class _Trial:
    """Releases that are tried: the lines of `RadixTree.unlock`, on counts of their own."""

    def __init__(self, tree: RadixTree, copies: Copies) -> None:
        self._tree = tree
        self._copies = copies
        self._size = tree.page_size
        self._pages = 0
        self._locks: Counter[Node] = Counter()  # given back
        self._busy: Counter[Node] = Counter()  # children that are locked no more
        self._refs: Counter[int] = Counter()  # dropped
        self._branched: set[Node] = set()  # leaves under which a release has put a branch

    def total(self) -> int:
        """Pages given back so far.

        A locked leaf that ends inside a page and gets a branch keeps that branch's first page; its
        own last one stays with whoever goes on in it.
        """
        return self._pages - sum(
            node.locks > self._locks[node] and self._left(node.pages[-1]) > 1
            for node in self._branched
        )

    def release(self, sequence: Sequence, tokens: bytes, freed: set[int]) -> None:
        """Try one more; the names of nodes that it frees go into `freed`."""
        kept = self._commit(sequence, tokens)
        copy = sequence.copy
        if copy is not None and self._copies.is_pending(copy) and not copy.taken:
            self._drop((copy.order.source, copy.order.destination))
            self._unlock(copy.node, freed)
        self._drop(sequence.pages[sequence.node.end // self._size :])
        self._pages -= kept
        self._unlock(sequence.node, freed)

    def _commit(self, sequence: Sequence, tokens: bytes) -> int:
        """Note the leaf that a commit would branch off; how many pages a copy would keep."""
        node, size = sequence.node, self._size
        if len(tokens) <= node.end * WIDTH:
            return 0
        end, matched = self._tree.match(tokens, below=node)
        if end is None or matched * WIDTH == len(tokens):
            return 0
        first = matched // size
        page = sequence.pages[first]
        leaf = matched == end.end and not end.children
        if leaf and matched % size and end.pages[-1] != page:
            self._branched.add(end)
        if any(copy.order.source == page for copy in self._copies):
            return -(-len(tokens) // WIDTH // size) - first
        return 0

    def _left(self, page: int) -> int:
        return self._tree.pool.refs(page) - self._refs[page]

    def _drop(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._refs[page] += 1
            self._pages += not self._left(page)

    def _unlock(self, node: Node, freed: set[int]) -> None:
        size = self._size
        up: Node | None = node
        if node.locks - self._locks[node] == 1 and node.children and node.end % size:
            self._pages += 1
        while up is not None and up.locks - self._locks[up] == 1:
            self._locks[up] += 1
            self._pages += len(up.pages)
            freed.add(id(up))
            parent = up.parent
            if parent is None:
                return
            self._busy[parent] += 1
            busy = parent.busy - self._busy[parent]
            if parent.locks - self._locks[parent] > 1 and not busy and parent.end % size:
                self._pages -= 1
            up = parent
        while up is not None:
            self._locks[up] += 1
            up = up.parent
