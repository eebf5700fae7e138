"""The invariants of tree, pool and cache, recomputed from nothing and compared.

Slow on purpose: tests and `check_invariants` call it after every step. It changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .node import DEAD, WIDTH, Node, path

if TYPE_CHECKING:
    from .cache import PrefixCache, Sequence
    from .tree import RadixTree


def audit_tree(tree: RadixTree) -> list[str]:
    """What is wrong in the tree: links, extents, page lists, lock counts, figures, LRU order."""
    found: list[str] = []
    nodes = list(walk(tree))
    listed: dict[int, Node] = {}
    for node in nodes:
        found += _links(tree, node)
        found += _counts(node)
        for page in node.pages:
            if page in listed:
                found.append(f"page {page} is listed by {listed[page]} and {node}")
            listed[page] = node
            if not 0 < page < tree.pool.num_pages:
                found.append(f"{node} lists page {page}, which does not exist or is for padding")
    inner = [node for node in nodes if node.parent is not None]
    for name, have, want in (
        ("nodes", tree.nodes, len(inner)),
        ("tokens", tree.tokens, sum(len(node.tokens) // WIDTH for node in inner)),
        ("cached", tree.cached, len(listed)),
        ("kept", tree.kept, _kept(tree, nodes)),
    ):
        if have != want:
            found.append(f"tree.{name} is {have} and should be {want}")
    for namespace, root in tree.roots.items():
        if root.namespace != namespace:
            found.append(f"the root of {root.namespace!r} is filed under {namespace!r}")
        if not (root.children or root.locks or root.leases):
            found.append(f"namespace {namespace!r} is empty and was not dropped")
    evictable = {node for node in inner if node.locks == 0 and node.leases == 0}
    return found + tree.policy.faults(evictable)


def audit(cache: PrefixCache) -> list[str]:
    """What is wrong anywhere. Nothing, if the list is empty."""
    found = audit_tree(cache.tree)
    nodes = list(walk(cache.tree))
    listed = {page: node for node in nodes for page in node.pages}
    refs = Counter(listed.keys())
    handles: Counter[Node] = Counter()
    leases: Counter[Node] = Counter()
    for sequence in cache.sequences:
        refs.update(sequence.pages[sequence.node.end // cache.tree.page_size :])
        handles[sequence.node] += 1
    for copy in cache.copies:
        refs.update((copy.order.source, copy.order.destination))
        handles[copy.node] += 1
    for lease in cache.leases:
        leases[lease.node] += 1
        if lease.state != "held":
            found.append(f"a lease of {lease.owner!r} is {lease.state} and in the list")
    found += cache.pool.faults(dict(refs))
    found += _handles(nodes, handles, leases)
    size = cache.tree.page_size
    users: dict[int, list[Sequence]] = {}
    for sequence in cache.sequences:
        for page in sequence.pages:
            users.setdefault(page, []).append(sequence)
    for sequence in cache.sequences:
        found += _table(sequence, size)
        found += _writable(sequence, size, listed, users)
    found += _copies(cache, listed, users)
    deadlines = [lease.deadline for lease in cache.leases]
    if deadlines != sorted(deadlines):
        found.append("leases are not in the order of their deadlines")
    if cache.pool.num_pages - 1 != cache.pool.free + len(refs):
        found.append("free, cached and private pages are not all pages")
    private = len(refs.keys() - listed.keys())
    if cache.stats().private != private:
        found.append(f"{private} pages are private, the figures say {cache.stats().private}")
    return found


def walk(tree: RadixTree) -> Iterator[Node]:
    """Every node, roots included, each after its parent; every one once, even where links err."""
    seen: set[Node] = set()
    stack: list[Node] = list(tree.roots.values())
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(node.children.values())


def _links(tree: RadixTree, node: Node) -> Iterator[str]:
    size = tree.page_size
    if node.version == DEAD:
        yield f"{node} is dead and in the tree"
    for key, child in node.children.items():
        if child.parent is not node:
            yield f"{child} does not link back to {node}"
        if child.tokens[:WIDTH] != key:
            yield f"{child} is filed under another token than its first"
        if child.start != node.end:
            yield f"{child} does not start where {node} ends"
    if len(node.tokens) % WIDTH or node.end - node.start != len(node.tokens) // WIDTH:
        yield f"{node} has {len(node.tokens)} bytes of tokens"
    if node.parent is None:
        if node.tokens or node.pages or node.start:
            yield f"the root {node} has tokens or pages"
        return
    if not node.tokens:
        yield f"{node} is empty"
    end = node.end // size if node.children else -(-node.end // size)
    if len(node.pages) != end - node.start // size:
        yield f"{node} lists {len(node.pages)} pages and should {end - node.start // size}"


def _counts(node: Node) -> Iterator[str]:
    children = node.children.values()
    if node.busy != sum(child.locks > 0 for child in children):
        yield f"{node} counts {node.busy} locked children"
    if node.locks < sum(child.locks for child in children):
        yield f"{node} has fewer locks than its children"
    if node.leases < sum(child.leases for child in children):
        yield f"{node} has fewer leases than its children"


def _kept(tree: RadixTree, nodes: list[Node]) -> int:
    """Pages that are left when all that has no locks is evicted."""
    kept = 0
    for node in nodes:
        if node.locks:
            kept += len(node.pages)
            inherits = node.children and node.end % tree.page_size
            if inherits and not any(child.locks for child in node.children.values()):
                kept += 1
    return kept


def _handles(nodes: list[Node], handles: Counter[Node], leases: Counter[Node]) -> Iterator[str]:
    """Every lock is somebody's."""
    locks: Counter[Node] = Counter()
    kept: Counter[Node] = Counter()
    for counts, into in ((handles, locks), (leases, kept)):
        for handle, count in counts.items():
            for node in path(handle):
                into[node] += count
    for node in nodes:
        if node.locks != locks.pop(node, 0):
            yield f"{node} has other locks than requests and copies hold"
        if node.leases != kept.pop(node, 0):
            yield f"{node} has {node.leases} leases, other than are held"
    if locks or kept:
        yield "a handle or a lease is on a node that is not in the tree"


def _table(sequence: Sequence, size: int) -> Iterator[str]:
    """A page table has the tree's pages as far as the tree has them."""
    path_pages = [page for node in reversed(list(path(sequence.node))) for page in node.pages][
        : sequence.node.end // size
    ]
    if list(sequence.pages[: len(path_pages)]) != path_pages:
        yield f"{sequence.pages} does not begin with its prefix's pages {path_pages}"
    if len(set(sequence.pages)) != len(sequence.pages):
        yield f"{sequence.pages} lists a page twice"
    if not sequence.node.end <= sequence.computed <= len(sequence.pages) * size:
        yield f"{sequence.computed} rows in {len(sequence.pages)} pages"


def _writable(
    sequence: Sequence, size: int, listed: dict[int, Node], users: dict[int, list[Sequence]]
) -> Iterator[str]:
    """No row that this sequence may yet write can be read by anybody else."""
    first = sequence.computed // size
    for index, page in enumerate(sequence.pages[first:], first):
        written = max(0, sequence.computed - index * size)
        if any(other is not sequence for other in users[page]):
            yield f"page {page} has rows to be written and is shared by two requests"
        node = listed.get(page)
        if node is not None and node.end - index * size > written:
            yield f"page {page} has rows to be written that {node} can read"


def _copies(
    cache: PrefixCache, listed: dict[int, Node], users: dict[int, list[Sequence]]
) -> Iterator[str]:
    destinations = {copy.order.destination for copy in cache.copies}
    size = cache.tree.page_size
    for copy in cache.copies:
        source, destination, rows = copy.order.source, copy.order.destination, copy.order.rows
        if not 0 < rows < size:
            yield f"{copy.order} copies no part of a page"
        if destination in listed:
            yield f"page {destination} is in the tree and not copied yet"
        if source in destinations:
            yield f"page {source} is the source of a copy and not copied yet"
        if len(users.get(destination, [])) > 1:
            yield f"page {destination} is being copied and shared by two requests"
        for user in users.get(source, []):
            if user.computed - user.pages.index(source) * size < rows:
                yield f"page {source} is copied before its rows are there"
        node = listed.get(source)
        if node is not None and not node.locks:
            yield f"page {source} is the source of a copy and can be evicted"
