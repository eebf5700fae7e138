"""The pool of pages: which are free, and how many hold each of the others.

A page is a number; what lies in it is the runtime's business. Page 0 is never handed out, so that
padding has somewhere to write. This module knows no tokens, no tree and no request.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class OutOfPages(Exception):
    """There are not as many pages as were asked for, even with everything unlocked evicted."""


class PagePool:
    """Page ids with reference counts.

    A page that is taken has one reference, its taker's. Whoever lists it too shares it, and drops
    it later; with its last reference the page is free again.

    >>> pool = PagePool(4)
    >>> pages = pool.take(2)
    >>> pages, pool.free
    (array('i', [1, 2]), 1)
    >>> pool.share(pages[:1])
    >>> pool.drop(pages), pool.drop(pages[:1]), pool.free
    (1, 1, 3)

    Args:
        num_pages: Pages there are, page 0 included.
    """

    def __init__(self, num_pages: int) -> None:
        if num_pages < 2:
            raise ValueError(f"a pool has at least 2 pages, one of them for padding: {num_pages}")
        self.num_pages = num_pages
        self._free = array("i", range(num_pages - 1, 0, -1))
        self._refs = [0] * num_pages

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def refs(self, page: int) -> int:
        """How many hold this page."""
        return self._refs[page]

    def take(self, count: int) -> array[int]:
        """Hand out `count` free pages, in the order in which to fill them.

        Raises:
            OutOfPages: There are fewer; nothing has changed.
        """
        if count > len(self._free):
            raise OutOfPages(f"{count} pages asked for, {len(self._free)} free")
        if count <= 0:
            return array("i")
        pages = self._free[-count:]
        del self._free[-count:]
        pages.reverse()
        refs = self._refs
        for page in pages:
            refs[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Add one reference to each of these pages, which are not free."""
        refs = self._refs
        for page in pages:
            refs[page] += 1

    def drop(self, pages: Iterable[int]) -> int:
        """Take one reference from each of these pages; how many that freed."""
        refs, free = self._refs, self._free
        before = len(free)
        for page in pages:
            refs[page] -= 1
            if not refs[page]:
                free.append(page)
        return len(free) - before

    def faults(self, expected: dict[int, int]) -> list[str]:
        """What is wrong, if `expected` maps every page in use to the number of its holders."""
        found = []
        if len(set(self._free)) != len(self._free):
            found.append("a page is free twice")
        for page in self._free:
            if not 0 < page < self.num_pages:
                found.append(f"page {page} is free and does not exist or is for padding")
            elif page in expected:
                found.append(f"page {page} is free and held {expected[page]} times")
        free = set(self._free)
        for page in range(self.num_pages):
            want, have = expected.get(page, 0), self._refs[page]
            if want != have:
                found.append(f"page {page} counts {have} references, {want} hold it")
            if page and not want and page not in free:
                found.append(f"page {page} is lost: not free, and nobody holds it")
        return found
