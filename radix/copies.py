"""Copy orders: given at admission, carried out by the runtime in its next step.

An order holds both its pages until the step that carries it out has ended, whatever becomes of the
request it was given for. This module copies nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .node import Node
from .tree import RadixTree


@dataclass(frozen=True, slots=True)
class CopyOrder:
    """Copy the first `rows` rows of page `source` to page `destination`, in all layers."""

    source: int
    destination: int
    rows: int


@dataclass(slots=True, eq=False)
class PendingCopy:
    """An order that has not been carried out.

    Attributes:
        node: The handle that keeps the source in the tree: the node that lists it, or listed it.
        taken: Whether the runtime is carrying it out.
    """

    order: CopyOrder
    node: Node
    taken: bool = False


class Copies:
    """The orders that are pending, by destination: no page is one for two orders at a time."""

    def __init__(self, tree: RadixTree) -> None:
        self._tree = tree
        self._pending: dict[int, PendingCopy] = {}
        self.given = 0
        """Orders so far."""

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[PendingCopy]:
        return iter(self._pending.values())

    def is_pending(self, copy: PendingCopy | None) -> bool:
        """Whether the copy has still to be carried out."""
        return copy is not None and self._pending.get(copy.order.destination) is copy

    def give(self, order: CopyOrder, node: Node) -> PendingCopy:
        """Enter an order. `node` is a handle on the holder of the source, given up to the order."""
        copy = self._pending[order.destination] = PendingCopy(order, node)
        self._tree.pool.share((order.source, order.destination))
        self.given += 1
        return copy

    def take(self) -> list[CopyOrder]:
        """The orders that nobody has taken yet."""
        orders = []
        for copy in self._pending.values():
            if not copy.taken:
                copy.taken = True
                orders.append(copy.order)
        return orders

    def withdraw(self, copy: PendingCopy) -> Node:
        """Take back an order that nobody has taken; the handle goes back to the caller."""
        assert not copy.taken, "the copy is being carried out"
        return self._drop(self._pending.pop(copy.order.destination))

    def done(self, orders: Iterable[CopyOrder]) -> list[Node]:
        """Orders were carried out; their handles go back to the caller."""
        nodes = []
        for order in orders:
            copy = self._pending.pop(order.destination)
            assert copy.taken, f"nobody was told to carry out {order}"
            assert copy.order == order, f"{order} was not given"
            nodes.append(self._drop(copy))
        return nodes

    def follow(self, page: int, node: Node) -> None:
        """`page` is now listed by `node`: the handles of the copies that read it move there."""
        for copy in self._pending.values():
            if copy.order.source == page:
                self._tree.lock_node(node)
                self._tree.unlock(copy.node)
                copy.node = node

    def _drop(self, copy: PendingCopy) -> Node:
        self._tree.pool.drop((copy.order.source, copy.order.destination))
        return copy.node
