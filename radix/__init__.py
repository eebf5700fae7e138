"""The radix tree, the page pool and the prefix cache over both.

Plain Python and NumPy, ids only: this package knows no torch, no requests and no text.
"""

from .cache import PrefixCache, Sequence
from .copies import CopyOrder
from .events import Event, EventLog
from .eviction import Eviction
from .leases import Lease, Leases
from .node import Node, Spot
from .pool import OutOfPages, PagePool
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
    "RadixTree",
    "SegmentView",
    "Sequence",
    "Snapshot",
    "Spot",
    "take_snapshot",
]
