"""The radix tree, the page pool and the prefix cache over both.

Plain Python and NumPy, ids only: this package knows no torch, no requests and no text.
"""

from .cache import PrefixCache, Sequence
from .copies import CopyOrder
from .events import Event, EventLog
from .leases import Lease
from .node import Node, Spot
from .pool import OutOfPages, PagePool
from .stats import CacheStats
from .tree import RadixTree

__all__ = [
    "CacheStats",
    "CopyOrder",
    "Event",
    "EventLog",
    "Lease",
    "Node",
    "OutOfPages",
    "PagePool",
    "PrefixCache",
    "RadixTree",
    "Sequence",
    "Spot",
]
