"""The prefix cache: what requests hold of the tree and of the pool.

A request has a `Sequence`: a page table, and a handle on the prefix of it that the tree holds. Rows
are immutable once the tree or another request can reach them. The one request that filled a page
may append behind them; everybody else gets a page of its own and an order to copy the rows. This
module copies nothing itself, and it knows no text, no tensors and no queue.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from .audit import audit
from .copies import Copies, CopyOrder, PendingCopy
from .events import EventLog
from .leases import Lease, Leases
from .node import DEAD, WIDTH, Node, Spot, ancestor, descend, page_table, path, tail_holder
from .pool import OutOfPages, PagePool
from .stats import CacheStats
from .tree import RadixTree


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's hold on the cache.

    Attributes:
        pages: The page table: position p lives in page pages[p // page_size], row p % page_size.
        cached: Tokens whose rows were there at admission.
        node: The handle on the prefix that the tree holds.
        computed: Tokens that are known to have rows, once the pending copy is carried out.
        copy: The order given at admission, if the match ended inside a page.
    """

    pages: list[int]
    cached: int
    node: Node
    computed: int
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
    >>> second.cached, first.pages, second.pages
    (5, [1, 2], [1, 3])
    >>> cache.take_copies()                               # row 4 is in page 2, which is not ours
    [CopyOrder(source=2, destination=3, rows=1)]

    Args:
        num_pages: Pages there are; page 0 is never handed out.
        page_size: Tokens per page.
        policy: Which prefix is evicted first: `lru`, `lfu`, `fifo` or `priority`.
        enabled: Whether prefixes are kept after their requests, and shared between requests.
    """

    def __init__(
        self, num_pages: int, page_size: int, *, policy: str = "lru", enabled: bool = True
    ) -> None:
        self.pool = PagePool(num_pages)
        self.tree = RadixTree(self.pool, page_size, policy)
        self.copies = Copies(self.tree, self.pool)
        self.leases = Leases(self.tree)
        self.sequences: set[Sequence] = set()
        self.enabled = enabled
        self._size = page_size
        self._admissions = self._admitted_tokens = self._hit_tokens = 0

    # ---- looking ----

    def find(self, tokens: bytes, namespace: Hashable = "") -> Spot:
        """Where the longest cached prefix of `tokens` ends, to be kept for `refind`."""
        if not self.enabled:
            return Spot(namespace, None, 0, DEAD)
        return self.tree.find(tokens, namespace)

    def refind(self, spot: Spot, tokens: bytes) -> Spot:
        """What `find` would say now of the same `tokens`. O(1) where nothing changed there."""
        return self.tree.refind(spot, tokens) if self.enabled else spot

    def peek(self, tokens: bytes, namespace: Hashable = "") -> int:
        """How many of `tokens` (int32 bytes) are cached. Splits, locks and touches nothing."""
        return self.find(tokens, namespace).length

    def available(self) -> int:
        """How many pages `grow` could hand out now, exactly."""
        return self.pool.free + self.tree.reach

    # ---- a request's life ----

    def admit(
        self,
        tokens: bytes,
        namespace: Hashable = "",
        *,
        length: int | None = None,
        priority: int = 0,
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
        """
        self._admissions += 1
        self._admitted_tokens += len(tokens) // WIDTH
        if not self.enabled:
            namespace = object()
        node = self.tree.lock(self.tree.find(tokens, namespace))
        for part in path(node):
            part.hits += 1
            part.priority = max(part.priority, priority)
        sequence = self._hold(node, len(tokens) // WIDTH + 1 if length is None else length)
        self._hit_tokens += sequence.cached
        return sequence

    def fork(self, sequence: Sequence, length: int) -> Sequence:
        """Another sequence with the same first `length` tokens, which must be committed.

        Whole pages are shared, and a partial one is copied as in `admit`: where there is no page
        for that, `cached` of the new sequence says less than `length`.
        """
        assert sequence in self.sequences, "the sequence was released"
        assert length <= sequence.node.end, "commit what is to be forked"
        node = ancestor(sequence.node, length)
        return self._hold(self.tree.lock(Spot(None, node, length, node.version)), length + 1)

    def grow(self, sequence: Sequence, length: int) -> None:
        """Make the page table long enough for `length` tokens, evicting what that needs.

        Raises:
            OutOfPages: Locked prefixes and other requests hold too much; nothing has changed.
        """
        assert sequence in self.sequences, "the sequence was released"
        need = -(-length // self._size) - len(sequence.pages)
        if need > 0:
            sequence.pages += self._take(need)

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
        if length <= node.end or self.copies.is_pending(sequence.copy):
            return  # what lies behind a copy is not there before the copy is
        sequence.computed = max(sequence.computed, length)
        tokens = tokens[: length * WIDTH]
        spot, at = descend(node, tokens, node.end * WIDTH)
        matched = at // WIDTH
        if matched > node.end:
            node = self.tree.advance(node, Spot(None, spot, matched, spot.version))
            self._swap(sequence, node)
        if matched < length:
            first = matched // self._size
            pages = sequence.pages[first : -(-length // self._size)]
            below = self.tree.append(node, tokens[at:], pages)
            if matched % self._size and below is not node:
                self.copies.follow(pages[0], node, below)
            node = below
        sequence.node = node

    def release(self, sequence: Sequence) -> None:
        """The request has ended: give back its handle, its pages, and its copy if nobody took it.

        What it committed stays cached.
        """
        assert sequence in self.sequences, "the sequence was released before"
        self.sequences.remove(sequence)
        copy = sequence.copy
        if copy is not None and self.copies.is_pending(copy) and not copy.taken:
            self._unlock(self.copies.withdraw(copy))
        self.pool.drop(sequence.pages)
        self._unlock(sequence.node)

    def _hold(self, node: Node, length: int) -> Sequence:
        """A sequence of what `node`, a handle, ends."""
        border = node.end // self._size * self._size
        pages = page_table(node)[: node.end // self._size]
        self.pool.share(pages)
        table = pages.tolist()
        copy = None
        if node.end > border:
            holder = tail_holder(node)
            source = holder.pages[-1 if holder is node else 0]
            if holder.locks:
                self.tree.lock_node(holder)
            else:  # of a long branch, only its first page
                end = min(holder.end, border + self._size)
                holder = self.tree.lock(Spot(None, holder, end, holder.version))
            if self.available() >= max(1, -(-length // self._size) - len(table)):
                table += self._take(1)
                copy = self.copies.give(CopyOrder(source, table[-1], node.end - border), holder)
            else:
                self._unlock(holder)
                above = ancestor(node, border)
                above = self.tree.lock(Spot(None, above, border, above.version))
                self._unlock(node)
                node = above
        sequence = Sequence(table, node.end, node, node.end, copy)
        self.sequences.add(sequence)
        return sequence

    def _swap(self, sequence: Sequence, node: Node) -> None:
        """Where complete pages on the path of `node` are not those of the sequence, take them."""
        theirs = page_table(node)[: node.end // self._size].tolist()
        mine = sequence.pages[: len(theirs)]
        pairs = [(a, b) for a, b in zip(mine, theirs, strict=True) if a != b]
        sequence.pages[: len(theirs)] = theirs
        self.pool.share([b for _, b in pairs])
        self.pool.drop([a for a, _ in pairs])

    def _take(self, count: int) -> list[int]:
        if self.available() < count:
            raise OutOfPages(f"{count} pages asked for, {self.available()} are to be had")
        while (short := count - self.pool.free) > 0:
            if not self.tree.evict(short) and not self.leases.break_one():
                raise AssertionError("fewer pages can be evicted than are counted")
        return self.pool.take(count)

    def _unlock(self, node: Node) -> None:
        self.tree.unlock(node)
        if not self.enabled:
            self.tree.prune(node)

    # ---- copies ----

    def take_copies(self) -> list[CopyOrder]:
        """The orders to carry out in this step, before anything else; each is given out once."""
        return self.copies.take()

    def copies_done(self, orders: Iterable[CopyOrder]) -> None:
        """The step that carried out these orders has ended."""
        for node in self.copies.done(orders):
            self._unlock(node)

    # ---- the rest ----

    def pin(
        self, tokens: bytes, owner: Hashable, deadline: float, namespace: Hashable = ""
    ) -> Lease:
        """Keep what is cached of `tokens` until `deadline`, unless requests need the pages.

        The lease ends by `leases.release`, `leases.release_owner` or `leases.expire`, or is broken.
        """
        node = self.tree.lock(self.find(tokens, namespace))
        lease = self.leases.add(node, owner, deadline)
        self.tree.unlock(node)
        return lease

    def flush(self) -> int:
        """Break all leases and evict all that no request holds; how many pages that freed."""
        free = self.pool.free
        self.leases.break_all()
        self.tree.clear()
        return self.pool.free - free

    def listen(self, limit: int = 65536) -> EventLog:
        """What happens to the tree, as a stream that begins with what there is.

        Args:
            limit: Events to keep for a listener that does not read them.
        """
        log = EventLog(limit)
        log.replay(self.tree.roots.values())
        self.tree.listeners.append(log)
        return log

    def unlisten(self, log: EventLog) -> None:
        """End a stream."""
        self.tree.listeners.remove(log)

    def stats(self) -> CacheStats:
        """The figures of now."""
        tree, pool = self.tree, self.pool
        pages, private = pool.num_pages - 1, self._private()
        return CacheStats(
            pages=pages,
            free=pool.free,
            cached=tree.cached,
            private=private,
            unaccounted=pages - pool.free - tree.cached - private,
            evictable=tree.reach,
            leased=self.leases.pages(),
            tokens=tree.tokens,
            nodes=tree.nodes,
            namespaces=len(tree.roots),
            sequences=len(self.sequences),
            leases=len(self.leases),
            pending_copies=len(self.copies),
            admissions=self._admissions,
            admitted_tokens=self._admitted_tokens,
            hit_tokens=self._hit_tokens,
            copies=self.copies.given,
            evicted_pages=tree.evicted_pages,
            evicted_tokens=tree.evicted_tokens,
            leases_broken=self.leases.broken,
        )

    def _private(self) -> int:
        """Pages that requests or pending copies list, and the tree does not."""
        pages: set[int] = set()
        for sequence in self.sequences:
            node = sequence.node
            full, tail = divmod(node.end, self._size)
            own = sequence.pages[full:]
            if own and tail and not node.children and node.pages[-1] == own[0]:
                own = own[1:]
            pages.update(own)
        for copy in self.copies:
            pages.add(copy.order.destination)
            if not any(copy.order.source in node.pages for node in path(copy.node)):
                pages.add(copy.order.source)
        return len(pages)

    def check(self) -> None:
        """Raise AssertionError, saying what is wrong, where any invariant does not hold."""
        found = audit(self)
        if found:
            raise AssertionError("; ".join(found))
