"""The prefix cache: what requests hold of the tree and of the pool.

A request has a `Sequence`: a page table, and a handle on the prefix of it that the tree holds. Rows
are immutable once the tree or another request can reach them. The one request that filled a page
may append behind them; everybody else gets a page of its own and an order to copy the rows. This
module copies nothing itself, and it knows no text, no tensors and no queue.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass

from .audit import audit
from .copies import Copies, CopyOrder, PendingCopy
from .eviction import Eviction
from .leases import Leases
from .node import WIDTH, Node, Spot, ancestor, page_table, path, tail_holder
from .pool import PagePool
from .prices import Price, Refund, price, refunds
from .stats import CacheStats, Counters, gather_stats
from .tree import RadixTree


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's hold on the cache.

    It has a reference to each of its pages but those that the prefix of its handle fills: these
    are kept by its lock.

    Attributes:
        pages: The page table: position p lives in page pages[p // page_size], row p % page_size.
        cached: Tokens whose rows were there at admission.
        node: The handle on the prefix that the tree holds.
        computed: Tokens that are known to have rows, once the pending copy is carried out.
        priority: Of the request, for the `priority` policy.
        copy: The order given at admission, if the match ended inside a page.
    """

    pages: array[int]
    cached: int
    node: Node
    computed: int
    priority: int
    copy: PendingCopy | None = None


class PrefixCache:
    """Prefixes of earlier requests, kept in pages until somebody needs these.

    >>> from array import array
    >>> cache = PrefixCache(num_pages=9, page_size=4)
    >>> words = array("i", [5, 6, 7, 8, 9, 10]).tobytes()
    >>> first = cache.admit(words)
    >>> cache.grow(first, 6)                              # now compute rows 0 to 5 ...
    >>> cache.commit(first, words, 6)                     # ... and share them
    >>> cache.release(first)
    >>> second = cache.admit(words[:20])                  # the same first five tokens
    >>> second.cached, list(first.pages), list(second.pages)
    (5, [1, 2], [1, 3])
    >>> cache.take_copies()                               # row 4 is in page 2, which is not ours
    [CopyOrder(source=2, destination=3, rows=1)]

    Args:
        num_pages: Pages there are; page 0 is never handed out.
        page_size: Tokens per page.
        policy: Which prefix is evicted first: `lru`, `lfu`, `fifo` or `priority`.
        enabled: Whether prefixes are kept after their requests, and shared between requests (that
            are of no common `family`). Where it is false, a family's are kept as long as one of it
            has joined.
    """

    def __init__(
        self, num_pages: int, page_size: int, *, policy: str = "lru", enabled: bool = True
    ) -> None:
        self.pool = PagePool(num_pages)
        self.tree = RadixTree(self.pool, page_size, policy)
        self.copies = Copies(self.tree)
        self.leases = Leases(self.tree)
        self.counters = Counters()
        self.sequences: set[Sequence] = set()
        self._eviction = Eviction(self.tree, self.leases, keep=enabled)
        self._enabled = enabled
        self._size = page_size

    # ---- looking ----

    def peek(self, tokens: bytes, namespace: Hashable = "") -> int:
        """How many of `tokens` (int32 bytes) are cached. Splits, locks and touches nothing.

        `tree.find` says where the match ended, too, for `tree.refind`: to ask again of the same
        tokens costs next to nothing where the tree has not changed under them.
        """
        return self.tree.match(tokens, namespace)[1]

    def available(self) -> int:
        """How many pages `grow` could hand out now, exactly."""
        return self._eviction.available()

    def price(self, spot: Spot, length: int, freed: Collection[int] = ()) -> Price:
        """What admitting `length` tokens, matched up to `spot`, would take of `available()`."""
        return price(spot, length, self._size, freed)

    def refunds(self, ending: Iterable[list[tuple[Sequence, bytes]]]) -> Iterator[Refund]:
        """What each of some requests would give back, committing its rows and released in turn.

        Args:
            ending: Of each its sequences, each with the tokens (int32 bytes) of its rows.
        """
        return refunds(self.tree, self.copies, ending)

    def scope(self, namespace: Hashable, family: Hashable | None = None) -> Hashable:
        """The namespace of the tree in which `admit` looks and `commit` enters."""
        if self._enabled:
            return namespace
        return object() if family is None else (namespace, family)

    def join(self, scope: Hashable) -> None:
        """A request of this scope has come, and is to `leave` it.

        Until all have left, what they commit is kept as other prefixes are where `enabled` is true:
        in pages that go to whoever needs them.
        """
        self._eviction.join(scope)

    def leave(self, scope: Hashable) -> None:
        """A request that had joined is gone."""
        self._eviction.leave(scope)

    def keep(self, tokens: bytes, namespace: Hashable = "", family: Hashable | None = None) -> Node:
        """Lock the whole pages of the longest cached prefix of `tokens` until `let_go`.

        Nothing evicts them meanwhile. What is inside a page an admission may have, or do without.
        """
        scope = self.scope(namespace, family)
        whole = self.tree.find(tokens, scope).length // self._size * self._size
        return self.tree.lock_prefix(tokens[: whole * WIDTH], scope)

    def let_go(self, node: Node) -> None:
        """Unlock what `keep` has locked."""
        self._eviction.unlock(node)

    # ---- a request's life ----

    def admit(
        self,
        tokens: bytes,
        namespace: Hashable = "",
        *,
        length: int | None = None,
        priority: int = 0,
        family: Hashable | None = None,
    ) -> Sequence:
        """Match and lock the longest cached prefix of all of `tokens`.

        If it ends inside a page, the sequence gets a page of its own there and an order to copy the
        rows. Where that would leave too few pages for the request, the match ends at the page's
        border instead.

        Args:
            tokens: int32 bytes. Pass less than the prompt where its end has to be computed.
            namespace: What shares prefixes.
            length: Tokens that the request is about to hold; by default one more than `tokens`.
            priority: For the `priority` policy.
            family: Sequences of one family share prefixes also where `enabled` is false; by
                default one is alone.
        """
        self.counters.admissions += 1
        self.counters.admitted_tokens += len(tokens) // WIDTH
        handle = self.tree.lock_prefix(tokens, self.scope(namespace, family))
        for node in path(handle):
            node.hits += 1
            node.priority = max(node.priority, priority)
        if length is None:
            length = len(tokens) // WIDTH + 1
        sequence = self._hold(handle, length, priority)
        self.counters.hit_tokens += sequence.cached
        return sequence

    def fork(self, sequence: Sequence, length: int) -> Sequence:
        """Another sequence with the same first `length` tokens, which must be committed.

        Whole pages are shared, and a partial one is copied as in `admit`: where there is no page
        for that, `cached` of the new sequence says less than `length`.
        """
        assert sequence in self.sequences, "the sequence was released"
        assert length <= sequence.node.end, "commit what is to be forked"
        handle = self.tree.lock(ancestor(sequence.node, length), length)
        return self._hold(handle, length, sequence.priority)

    def grow(self, sequence: Sequence, length: int) -> None:
        """Make the page table long enough for `length` tokens, evicting what that needs.

        Raises:
            OutOfPages: Locked prefixes and other requests hold too much; nothing has changed.
        """
        assert sequence in self.sequences, "the sequence was released"
        need = -(-length // self._size) - len(sequence.pages)
        if need > 0:
            sequence.pages += self._eviction.take(need)

    def commit(self, sequence: Sequence, tokens: bytes, length: int) -> None:
        """The rows at positions [0, length) are computed: enter them into the tree.

        Where others have entered the same tokens meanwhile, whole pages are swapped for theirs. A
        partial page is kept, because the sequence goes on in it.

        Args:
            sequence: Its page table may change.
            tokens: At least `length` tokens, int32 bytes.
            length: At least what was committed before, else nothing happens.
        """
        assert sequence in self.sequences, "the sequence was released"
        assert length <= len(sequence.pages) * self._size, "rows without pages"
        assert length * WIDTH <= len(tokens), "rows without tokens"
        node = sequence.node
        if length <= node.end:
            return
        assert not self.copies.is_pending(sequence.copy), "rows behind a copy that is not done"
        sequence.computed = max(sequence.computed, length)
        tokens = tokens[: length * WIDTH]
        end, matched = self.tree.match(tokens, below=node)
        if end is not None and matched > node.end:
            node = self.tree.advance(node, end, matched)
            self._swap(sequence, node)
        if matched < length:
            first = matched // self._size
            pages = sequence.pages[first : -(-length // self._size)]
            node = self.tree.append(node, tokens[matched * WIDTH :], pages)
            if length % self._size:
                self.pool.share(pages[-1:])  # where the sequence goes on
            self.copies.follow(pages[0], node)
        if sequence.priority > 0:  # no node has less than 0
            for part in path(node):
                if part is sequence.node:
                    break
                part.priority = max(part.priority, sequence.priority)
        sequence.node = node

    def _swap(self, sequence: Sequence, node: Node) -> None:
        """Give complete pages up for those on the path of `node`, which gets the handle."""
        first, end = sequence.node.end // self._size, node.end // self._size
        if first < end:
            self.pool.drop(sequence.pages[first:end])
            sequence.pages[first:end] = page_table(node)[first:end]

    def release(self, sequence: Sequence) -> None:
        """The request has ended: give back its handle, its pages, and its copy if nobody took it.

        What it committed stays cached.
        """
        assert sequence in self.sequences, "the sequence was released before"
        self.sequences.remove(sequence)
        copy = sequence.copy
        if copy is not None and self.copies.is_pending(copy) and not copy.taken:
            self._eviction.unlock(self.copies.withdraw(copy))
        node = sequence.node
        self.pool.drop(sequence.pages[node.end // self._size :])
        self._eviction.unlock(node)

    def _hold(self, node: Node, length: int, priority: int) -> Sequence:
        """A sequence of what `node`, a handle, ends."""
        border = node.end // self._size * self._size
        table = page_table(node)[: node.end // self._size]
        copy = None
        if node.end > border:
            holder = tail_holder(node)
            source = holder.pages[-1 if holder is node else 0]
            if holder is node and self.pool.refs(source) == 1:
                table.append(source)  # nobody goes on in this page, so this one may
                self.pool.share((source,))
            elif copy := self._copy(source, holder, node.end - border, length, len(table)):
                table.append(copy.order.destination)
            else:
                above = self.tree.lock(ancestor(node, border), border)
                self._eviction.unlock(node)
                node = above
        sequence = Sequence(table, node.end, node, node.end, priority, copy)
        self.sequences.add(sequence)
        return sequence

    def _copy(
        self, source: int, holder: Node, rows: int, length: int, pages: int
    ) -> PendingCopy | None:
        """Order a copy of rows of a page, unless the page for it would be missed.

        Args:
            source: The page.
            holder: Lists it.
            rows: Rows to copy.
            length: Tokens that the sequence is about to hold.
            pages: Pages that it has.
        """
        if holder.locks:
            self.tree.lock_node(holder)
        else:  # of a long branch, only its first page
            end = min(holder.end, (holder.start // self._size + 1) * self._size)
            holder = self.tree.lock(holder, end)
        if self.available() < max(1, -(-length // self._size) - pages):
            self._eviction.unlock(holder)
            return None
        (destination,) = self._eviction.take(1)
        return self.copies.give(CopyOrder(source, destination, rows), holder)

    # ---- copies ----

    def take_copies(self) -> list[CopyOrder]:
        """The orders to carry out in this step, before anything else; each is given out once."""
        return self.copies.take()

    def copies_done(self, orders: Iterable[CopyOrder]) -> None:
        """The step that carried out these orders has ended."""
        for node in self.copies.done(orders):
            self._eviction.unlock(node)

    # ---- all of it ----

    def flush(self) -> int:
        """Break all leases and evict all that no request holds; how many pages that freed."""
        return self._eviction.clear()

    def stats(self) -> CacheStats:
        """Where the pages are now, and what has happened so far."""
        return gather_stats(self)

    def check(self) -> None:
        """Raise AssertionError, saying what is wrong, where any invariant does not hold."""
        found = audit(self)
        if found:
            raise AssertionError("; ".join(found))
