"""Figures that core and front keep while they run, as plain data for `stats()` and for metrics.

This module knows neither requests nor clocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

SECONDS = (1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds for durations."""


class Histogram:
    """How often values fell under each of some bounds, their number and their sum.

    >>> waits = Histogram((0.1, 1.0))
    >>> for seconds in (0.05, 0.1, 0.5, 7.0):
    ...     waits.add(seconds)
    >>> waits.as_json()
    {'count': 4, 'sum': 7.65, 'buckets': {'0.1': 2, '1': 3, '+Inf': 4}}

    Args:
        bounds: Ascending; a value at a bound counts under it, as in Prometheus.
    """

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self._counts)

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, so many times."""
        self._counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def as_json(self) -> dict[str, Any]:
        """Number, sum, and per bound how many values were not above it."""
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        buckets = dict(zip(names, accumulate(self._counts), strict=True))
        return {"count": self.count, "sum": self.sum, "buckets": buckets}
