"""The prefix cache: a radix tree of token segments over a pool of pages.

Plain Python and NumPy, token and page ids only: this package knows no torch, no requests and no
text, and can be used without the rest of Boughs. Whoever computes rows asks it which are there
already, in which pages to write the others, and tells it when they are written:

>>> from array import array
>>> from boughs.radix import PrefixCache
>>> cache = PrefixCache(num_pages=100, page_size=16)
>>> def prompt(*tokens):
...     return array("i", tokens).tobytes()               # int32, four bytes a token
>>> first = prompt(*range(40), 7, 7)

A request is admitted with all tokens but the last, whose row it needs anyway, to have logits:

>>> sequence = cache.admit(first[:-4])
>>> sequence.cached                                       # nothing yet
0
>>> cache.grow(sequence, 42)                              # pages for 42 tokens
>>> list(sequence.pages)
[1, 2, 3]
>>> cache.commit(sequence, first, 42)                     # rows 0 to 41 are written
>>> cache.release(sequence)                               # what was committed stays cached

Another one shares 40 tokens. Matching is exact to the token; of the page that they leave half way,
the new request gets a copy:

>>> sequence = cache.admit(prompt(*range(40), 8, 8))
>>> sequence.cached, list(sequence.pages)
(40, [1, 2, 4])
>>> orders = cache.take_copies()                          # to be carried out in this step
>>> orders
[CopyOrder(source=3, destination=4, rows=8)]
>>> cache.copies_done(orders)                             # when the step has ended
>>> cache.release(sequence)

Where pages run out, `grow` evicts prefixes that no request holds, the least recently used first:

>>> cache.available()
99
>>> cache.check()                                         # every invariant, recomputed

`cache` has requests' lives, `tree` the matching, `pool` the pages, `policy` and `eviction` what
goes first, `leases` what shall not, `copies` the copies, `prices` what an admission would take and
a release give back; `events` and `snapshot` are for looking
on, `stats` and `audit` for numbers and invariants.
"""

from .cache import PrefixCache, Sequence
from .copies import CopyOrder
from .events import Event, EventLog
from .eviction import Eviction
from .leases import Lease, Leases
from .node import Node, Spot
from .pool import OutOfPages, PagePool
from .prices import Price, Refund, Segment
from .snapshot import SegmentView, Snapshot, take_snapshot
from .stats import CacheStats
from .tree import RadixTree

__all__ = [
    "CacheStats",
    "CopyOrder",
    "Event",
    "EventLog",
    "Eviction",
    "Lease",
    "Leases",
    "Node",
    "OutOfPages",
    "PagePool",
    "PrefixCache",
    "Price",
    "RadixTree",
    "Refund",
    "Segment",
    "SegmentView",
    "Sequence",
    "Snapshot",
    "Spot",
    "take_snapshot",
]
