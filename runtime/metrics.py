"""Figures that core and front keep while they run, as plain data for `stats()` and for metrics.

This module knows neither requests nor clocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

SECONDS = (1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
"""Upper bounds for durations."""


AT_ONCE = 1024
"""Values that are counted together: one by one would cost a step more than all that it counts."""


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

    __slots__ = ("_bounds", "_counts", "_fresh", "_sum")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._fresh: list[float] = []  # not counted yet
        self._sum = 0.0

    @property
    def count(self) -> int:
        """Values so far."""
        self._fold()
        return int(self._counts.sum())

    @property
    def sum(self) -> float:
        """Of all values."""
        self._fold()
        return self._sum

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, so many times."""
        if times == 1:
            self._fresh.append(value)
        else:
            self._fresh += [value] * times
        if len(self._fresh) >= AT_ONCE:
            self._fold()

    def _fold(self) -> None:
        """Count what has come since the last time."""
        fresh, self._fresh = self._fresh, []
        places = np.searchsorted(self._bounds, fresh)
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._sum = sum(fresh, self._sum)

    def as_json(self) -> dict[str, Any]:
        """Number, sum, and per bound how many values were not above it."""
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        self._fold()
        buckets = dict(zip(names, accumulate(self._counts.tolist()), strict=True))
        return {"count": self.count, "sum": self.sum, "buckets": buckets}
