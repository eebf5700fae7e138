"""The radix tree: which token sequences are cached, and in which pages.

Matching is exact to the token, whatever the page size. A handle is a locked node: its path is not
evicted, and splits leave it where it ends. Eviction takes unlocked leaves, in the order of a
policy. The tree knows no requests and copies no rows; `cache.PrefixCache` does both.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence

from .audit import audit_tree
from .events import Events
from .node import DEAD, WIDTH, Node, Root, Spot, common
from .policy import POLICIES
from .pool import PagePool


class RadixTree:
    """Segments of tokens over the pages of a pool.

    >>> pool = PagePool(9)
    >>> tree = RadixTree(pool, page_size=4)
    >>> words = array("i", [5, 6, 7, 8, 9, 10]).tobytes()
    >>> handle = tree.lock_prefix(words)                  # nothing cached yet: the root
    >>> pages = pool.take(2)
    >>> handle = tree.append(handle, words, pages)        # six tokens, in pages 1 and 2
    >>> tree.unlock(handle)
    >>> node, length = tree.match(array("i", [5, 6, 7, 11]).tobytes())
    >>> length, tree.reach
    (3, 2)
    >>> tree.remove(tree.policy.victim())                 # the least recently used leaf goes
    >>> tree.match(words)[1], pool.free
    (0, 8)

    Args:
        pool: Where the pages come from and go to.
        page_size: Tokens per page.
        policy: One of `POLICIES`.
    """

    def __init__(self, pool: PagePool, page_size: int, policy: str = "lru") -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1, got {page_size}")
        if policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
        self.pool = pool
        self.page_size = page_size
        self.policy = POLICIES[policy]()
        self.roots: dict[Hashable, Root] = {}
        self.nodes = 0
        """Nodes, roots not counted."""
        self.tokens = 0
        """Tokens that can be matched."""
        self.cached = 0
        """Pages that nodes list."""
        self.kept = 0
        """Of these, pages that are left when all that has no handle is evicted."""
        self.tick = 0
        """Uses so far, the clock of `last_use`."""
        self.segments = 0
        """Events of storing so far."""
        self.events = Events()
        self.evicted_pages = 0
        self.evicted_tokens = 0

    @property
    def reach(self) -> int:
        """Pages that eviction can free, were every lease broken."""
        return self.cached - self.kept

    # ---- matching ----

    def match(
        self, tokens: bytes, namespace: Hashable = "", below: Node | None = None
    ) -> tuple[Node | None, int]:
        """Match the longest cached prefix of `tokens` (int32 bytes). Changes nothing.

        `tokens` are known to lead to the end of `below`, a node of the namespace, if it is given.

        Returns:
            The node in which the prefix ends, None where the namespace has no tree; its tokens.
        """
        assert len(tokens) % WIDTH == 0, "tokens are int32 bytes"
        node = self.roots.get(namespace) if below is None else below
        if node is None:
            return None, 0
        at = node.end * WIDTH
        while (child := node.children.get(tokens[at : at + WIDTH])) is not None:
            node = child
            segment = child.tokens
            if not tokens.startswith(segment, at):
                at += common(segment, tokens, at)
                break
            at += len(segment)
        return node, at // WIDTH

    def find(self, tokens: bytes, namespace: Hashable = "", below: Node | None = None) -> Spot:
        """The same as a spot: what `refind` takes, to match the same tokens again later."""
        node, length = self.match(tokens, namespace, below)
        return Spot(namespace, node, length, DEAD if node is None else node.version)

    def refind(self, spot: Spot, tokens: bytes) -> Spot:
        """The spot of the same `tokens` now. O(1) where the tree did not change under it."""
        node = spot.node
        if node is not None and node.version == spot.version:
            return spot
        while node is not None and (node.version == DEAD or node.start > spot.length):
            node = node.parent
        if node is None:
            return self.find(tokens, spot.namespace)
        if node.end > spot.length and node.parent is not None:
            node = node.parent  # inside the segment: compare it again
        return self.find(tokens, spot.namespace, node)

    # ---- handles ----

    def lock_prefix(self, tokens: bytes, namespace: Hashable = "") -> Node:
        """A handle on the longest cached prefix of `tokens` (int32 bytes)."""
        node, length = self.match(tokens, namespace)
        if node is None:
            node = self.roots[namespace] = Root(namespace)
        return self.lock(node, length)

    def lock(self, node: Node, length: int) -> Node:
        """A handle on the prefix of `length` tokens that ends in `node` or at its end.

        Returns:
            The locked node, which ends exactly there: a segment that goes on is split.
        """
        assert node.version != DEAD, "the node has left the tree"
        assert length <= node.end, "the prefix goes on behind the node"
        if length < node.end:
            node = self._split(node, length)
        self.lock_node(node)
        return node

    def lock_node(self, node: Node, stop: Node | None = None) -> None:
        """One handle more on `node`, or, if `stop` has it already, on the path down from there."""
        size = self.page_size
        up: Node | None = node
        if not node.locks and node.children and node.end % size:
            self.kept += 1  # a page listed below it, which stays with it from now on
        while up is not None and not up.locks:
            up.locks = 1
            self.kept += len(up.pages)
            parent = up.parent
            if parent is not None:
                if not up.leases:
                    self.policy.remove(up)
                if parent.locks and not parent.busy and parent.end % size:
                    self.kept -= 1  # a page that `parent` would have kept
                parent.busy += 1
            up = parent
        while up is not None and up is not stop:
            up.locks += 1
            up = up.parent

    def advance(self, handle: Node, node: Node, length: int) -> Node:
        """Move a handle down the path, to where `lock` would put it; returns it."""
        if length < node.end:
            node = self._split(node, length)
        self.lock_node(node, stop=handle)
        return node

    def unlock(self, node: Node) -> None:
        """Give a handle back. Nodes without any become evictable, the deepest first."""
        assert node.locks > 0, "unlocked more often than locked"
        self.tick += 1
        tick, size = self.tick, self.page_size
        up: Node | None = node
        if node.locks == 1 and node.children and node.end % size:
            self.kept -= 1  # the reverse of `lock_node`, line by line
        while up is not None and up.locks == 1:
            up.locks = 0
            up.last_use = tick
            self.kept -= len(up.pages)
            parent = up.parent
            if parent is None:
                self.drop_root(up)
                return
            if not up.leases:
                self.policy.add(up)
            parent.busy -= 1
            if parent.locks > 1 and not parent.busy and parent.end % size:
                self.kept += 1
            up = parent
        while up is not None:
            up.locks -= 1
            up.last_use = tick
            up = up.parent

    def insert(self, tokens: bytes, pages: array[int], namespace: Hashable = "") -> int:
        """Enter tokens (int32 bytes) from the root on, a use of all of them. No handle is left.

        Returns:
            How many of `pages`, which hold the rows of all `tokens`, are not needed: the first
            ones, whose tokens were cached. The tree takes over the references to the others.
        """
        if not tokens:
            return len(pages)
        node, length = self.match(tokens, namespace)
        if node is None:
            node = self.roots[namespace] = Root(namespace)
        elif length < node.end:
            node = self._split(node, length)
        self.tick = tick = self.tick + 1
        policy = self.policy
        at, unused = length * WIDTH, len(pages)
        if at < len(tokens):
            unused = length // self.page_size
            child = self._attach(node, tokens[at:], pages[unused:])
            child.last_use = tick
            policy.add(child)
        up: Node | None = node
        while up is not None:
            parent = up.parent
            if up.locks or up.leases or parent is None:
                up.last_use = tick
            else:
                policy.remove(up)
                up.last_use = tick
                policy.add(up)
            up = parent
        return unused

    def append(self, node: Node, tokens: bytes, pages: array[int]) -> Node:
        """Enter new tokens behind `node`, a handle, which moves to their end.

        Args:
            node: Has no child that begins like `tokens`.
            tokens: At least one.
            pages: They hold the tokens' rows, from page index node.end // page_size on. Where
                `node` ends inside a page, the first holds the rows before, too. The tree takes
                over the array, and the caller's references.

        Returns:
            The handle now.
        """
        mid = node.end % self.page_size
        if (
            not node.children
            and node.locks == 1
            and not node.leases
            and node.parent is not None
            and (not mid or node.pages[-1] == pages[0])
        ):
            if mid:
                self.pool.drop(pages[:1])
                pages = pages[1:]
            return self._extend(node, tokens, pages)
        child = self._attach(node, tokens, pages)
        child.locks = 1
        self.kept += len(pages)
        if mid and not node.busy:
            self.kept -= 1  # as in `lock_node`
        node.busy += 1
        return child

    def _attach(self, node: Node, tokens: bytes, pages: array[int]) -> Node:
        """Enter new tokens in a node of their own, which has no handle yet."""
        start, new = node.end, len(pages)
        if not node.children and start % self.page_size:
            # Its last page is from now on listed below it.
            self.pool.drop((node.pages.pop(),))
            new -= 1
        self.segments = segment = self.segments + 1
        node.children[tokens[:WIDTH]] = child = Node(tokens, start, pages, node, segment)
        node.version += 1
        self.nodes += 1
        self.tokens += child.end - start
        self.cached += new
        if self.events.logs:
            self.events.stored(child, start)
        return child

    def _extend(self, node: Node, tokens: bytes, new: Sequence[int]) -> Node:
        """Append to a leaf that only the caller holds."""
        start = node.end
        node.tokens += tokens
        node.end += len(tokens) // WIDTH
        node.pages.extend(new)
        node.version += 1
        self.tokens += node.end - start
        self.cached += len(new)
        self.kept += len(new)
        self.events.stored(node, start)
        return node

    def _split(self, node: Node, depth: int) -> Node:
        """Cut `node` in two; it stays the lower half. Returns the upper, which ends at `depth`."""
        parent = node.parent
        assert parent is not None, "a root has nothing to split"
        assert node.start < depth < node.end, "the node does not hold the token there"
        cut = (depth - node.start) * WIDTH
        pages = depth // self.page_size - node.start // self.page_size
        upper = Node(node.tokens[:cut], node.start, node.pages[:pages], parent, node.segment)
        upper.locks, upper.leases, upper.busy = node.locks, node.leases, int(node.locks > 0)
        upper.hits, upper.last_use, upper.priority = node.hits, node.last_use, node.priority
        parent.children[upper.tokens[:WIDTH]] = upper
        node.tokens = node.tokens[cut:]
        node.pages = node.pages[pages:]
        node.start = depth
        node.parent = upper
        node.version += 1
        upper.children[node.tokens[:WIDTH]] = node
        self.nodes += 1
        if node.evictable:
            self.policy.split(upper, node)
        return upper

    def remove(self, node: Node) -> None:
        """Evict an evictable leaf."""
        parent = node.parent
        assert parent is not None, "a root is not evictable"
        self.events.evicted(node, node.start)
        self.policy.remove(node)
        del parent.children[node.tokens[:WIDTH]]
        node.version = DEAD
        pages = node.pages
        self.nodes -= 1
        self.tokens -= node.end - node.start
        self.evicted_tokens += node.end - node.start
        self.cached -= len(pages)
        if parent.end % self.page_size and not parent.children:
            # The parent is a leaf now and ends inside the first page: the page stays with it. If
            # the parent has handles, that page counts as kept already.
            parent.pages.append(pages[0])
            self.cached += 1
            pages = pages[1:]
        self.evicted_pages += len(pages)
        freed = self.pool.drop(pages)
        assert freed == len(pages), "an evicted page was held outside of the tree"
        if parent.evictable:
            if not parent.children:
                self.policy.bare(parent)
        else:
            self.drop_root(parent)

    def trim(self, node: Node, keep: int) -> None:
        """Evict all but the first `keep` pages of an evictable leaf."""
        end = (node.start // self.page_size + keep) * self.page_size
        self.events.evicted(node, end)
        pages = node.pages[keep:]
        self.tokens -= node.end - end
        self.evicted_tokens += node.end - end
        self.cached -= len(pages)
        node.tokens = node.tokens[: (end - node.start) * WIDTH]
        node.pages = node.pages[:keep]
        node.end = end
        node.version += 1
        self.evicted_pages += len(pages)
        freed = self.pool.drop(pages)
        assert freed == len(pages), "an evicted page was held outside of the tree"

    def drop_root(self, root: Node) -> None:
        """Forget a namespace that has no nodes and no handles."""
        if root.parent is None and not (root.children or root.locks or root.leases):
            assert isinstance(root, Root), "the path does not end in a root"
            root.version = DEAD
            del self.roots[root.namespace]

    def check(self) -> None:
        """Raise AssertionError, saying what is wrong, where any invariant does not hold."""
        found = audit_tree(self)
        if found:
            raise AssertionError("; ".join(found))
