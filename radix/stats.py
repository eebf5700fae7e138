"""Where the pages are, and what has happened: the cache's figures, for metrics."""

from __future__ import annotations

from dataclasses import dataclass


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
