"""Making room: which prefixes go when pages are wanted.

It decides when to evict; which leaf goes next is the policy's choice, and what goes with it the
tree's. It knows no requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable

from .leases import Leases
from .node import DEAD, Node, Root
from .pool import OutOfPages
from .tree import RadixTree


class Eviction:
    """Takes pages from the pool, evicting prefixes for them.

    Args:
        tree: What to evict from.
        leases: What to break where that is not enough.
        keep: Whether prefixes stay when their last handle is given back. Else only those of a
            namespace that somebody has joined do.
    """

    def __init__(self, tree: RadixTree, leases: Leases, *, keep: bool = True) -> None:
        self._tree = tree
        self._leases = leases
        self._keep = keep
        self._joined: dict[Hashable, int] = {}

    def available(self) -> int:
        """How many pages `take` could hand out now, exactly."""
        return self._tree.pool.free + self._tree.reach

    def take(self, count: int) -> array[int]:
        """Hand out `count` pages, evicting what that needs, and breaking leases if it must.

        Raises:
            OutOfPages: There are not so many; nothing has changed.
        """
        pool = self._tree.pool
        if self.available() < count:
            raise OutOfPages(f"{count} pages asked for, {self.available()} are to be had")
        while (short := count - pool.free) > 0:
            if not self.evict(short) and not self._leases.break_one():
                raise AssertionError("fewer pages can be evicted than are counted")
        return pool.take(count)

    def evict(self, pages: int) -> int:
        """Free at least `pages` pages, or all that no lock or lease holds; returns how many.

        Of the last victim no more is cut off than is asked for, but at least a sixteenth, so that
        copying what stays of it costs O(1) a page.
        """
        tree = self._tree
        free = tree.pool.free
        goal = free + pages
        while (short := goal - tree.pool.free) > 0:
            victim = tree.policy.victim()
            if victim is None:
                break
            size = len(victim.pages)
            cut = max(short, size // 16)
            if cut < size:
                tree.trim(victim, size - cut)
            else:
                tree.remove(victim)
        return tree.pool.free - free

    def clear(self) -> int:
        """Break all leases and evict all that no lock holds; returns how many pages that freed."""
        tree = self._tree
        free = tree.pool.free
        self._leases.break_all()
        with tree.events.muted():
            while (victim := tree.policy.victim()) is not None:
                tree.remove(victim)
        tree.events.flushed(tree.roots.values())
        return tree.pool.free - free

    def unlock(self, node: Node) -> None:
        """Give a handle back, and evict what it held, if prefixes are not to be kept."""
        self._tree.unlock(node)
        if self._keep or self._is_joined(node):
            return
        while node.evictable and not node.children and node.version != DEAD:
            parent = node.parent
            assert parent is not None, "a root is not evictable"
            self._tree.remove(node)
            node = parent

    def join(self, namespace: Hashable) -> None:
        """Prefixes of a namespace stay until as many have left as have joined, or room is made."""
        if not self._keep:
            self._joined[namespace] = self._joined.get(namespace, 0) + 1

    def leave(self, namespace: Hashable) -> None:
        """Evict what no handle holds of a namespace, if this was the last to leave it."""
        if self._keep:
            return
        self._joined[namespace] -= 1
        if self._joined[namespace]:
            return
        del self._joined[namespace]
        root = self._tree.roots.get(namespace)
        nodes: list[Node] = [] if root is None else [root]
        for node in nodes:
            nodes.extend(node.children.values())
        for node in reversed(nodes):
            if node.evictable and not node.children:
                self._tree.remove(node)

    def _is_joined(self, node: Node) -> bool:
        if not self._joined:
            return False
        while node.parent is not None:
            node = node.parent
        return isinstance(node, Root) and node.namespace in self._joined
