"""Where the pages are, and what has happened: the cache's figures, for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .node import path

if TYPE_CHECKING:
    from .cache import PrefixCache


@dataclass(slots=True)
class Counters:
    """What has been asked of a cache."""

    admissions: int = 0
    admitted_tokens: int = 0
    hit_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Where the pages are, in pages, and what has happened since the start.

    Attributes:
        pages: All but page 0.
        free: Nobody holds these.
        cached: Listed by the tree.
        private: Listed by requests or pending copies only.
        unaccounted: pages - free - cached - private, which is 0.
        evictable: Of the cached ones, those that `grow` could free now.
        leased: Of the evictable ones, those that nothing but a lease keeps.
        tokens: Tokens that can be matched.
        nodes: Segments in the tree.
        namespaces: Trees.
        sequences: Requests that hold pages or a prefix.
        leases: Leases held.
        pending_copies: Copy orders not yet carried out.
        admissions: Calls of `admit`.
        admitted_tokens: Tokens that these asked for.
        hit_tokens: Of these, those that were cached.
        copies: Copy orders given.
        evicted_pages, evicted_tokens: What eviction took out of the tree.
        leases_broken: Leases broken for want of pages.
    """

    pages: int
    free: int
    cached: int
    private: int
    unaccounted: int
    evictable: int
    leased: int
    tokens: int
    nodes: int
    namespaces: int
    sequences: int
    leases: int
    pending_copies: int
    admissions: int
    admitted_tokens: int
    hit_tokens: int
    copies: int
    evicted_pages: int
    evicted_tokens: int
    leases_broken: int


def gather_stats(cache: PrefixCache) -> CacheStats:
    """The figures of now. O(requests), not O(pages)."""
    tree, counters = cache.tree, cache.counters
    pages, private = tree.pool.num_pages - 1, _private(cache)
    return CacheStats(
        pages=pages,
        free=tree.pool.free,
        cached=tree.cached,
        private=private,
        unaccounted=pages - tree.pool.free - tree.cached - private,
        evictable=tree.reach,
        leased=cache.leases.pages(),
        tokens=tree.tokens,
        nodes=tree.nodes,
        namespaces=len(tree.roots),
        sequences=len(cache.sequences),
        leases=len(cache.leases),
        pending_copies=len(cache.copies),
        admissions=counters.admissions,
        admitted_tokens=counters.admitted_tokens,
        hit_tokens=counters.hit_tokens,
        copies=cache.copies.given,
        evicted_pages=tree.evicted_pages,
        evicted_tokens=tree.evicted_tokens,
        leases_broken=cache.leases.broken,
    )


def _private(cache: PrefixCache) -> int:
    """Pages that requests or pending copies list, and the tree does not."""
    pages: set[int] = set()
    size = cache.tree.page_size
    for sequence in cache.sequences:
        node = sequence.node
        full, tail = divmod(node.end, size)
        own = sequence.pages[full:]
        if own and tail and not node.children and node.pages[-1] == own[0]:
            own = own[1:]
        pages.update(own)
    for copy in cache.copies:
        pages.add(copy.order.destination)
        if not any(copy.order.source in node.pages for node in path(copy.node)):
            pages.add(copy.order.source)
    return len(pages)
