"""The masks of a step, computed beside the model's own work.

This module knows no request and no logits.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from .matcher import Matcher

INLINE = 200e-6
"""Seconds of masks for which waking a thread does not pay: some 100 masks of a usual grammar."""


class Masks:
    """Fills the masks of several matchers, one step after the other.

    A mask that meets its budget leaves its matcher in an error, which `Matcher.check` raises.

    Args:
        vocab_size: Width of the logits.
        threads: Threads that fill masks at the same time.
    """

    def __init__(self, vocab_size: int, threads: int) -> None:
        self._words = -(-vocab_size // 32)
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="boughs-masks")
        self._each = 0.0  # seconds that a mask took lately
        self._matchers: Sequence[Matcher] = ()
        self._bits = np.zeros((0, self._words), dtype=np.uint32)
        self._going: list[Future[float]] = []

    def begin(self, matchers: Sequence[Matcher]) -> None:
        """Begin a step. Until `take`, nothing may touch the matchers."""
        self._matchers = matchers
        if len(matchers) != len(self._bits):
            self._bits = np.zeros((len(matchers), self._words), dtype=np.uint32)
        if self._each * len(matchers) > INLINE:
            parts = range(min(self._threads, len(matchers)))
            self._going = [self._pool.submit(self._fill, part, len(parts)) for part in parts]

    def take(self) -> NDArray[np.uint32]:
        """The masks, uint32 [matchers, words], in their order; until the next step begins.

        That of a matcher in an error is of any bits.
        """
        if not self._matchers:
            return self._bits
        if self._going:
            spent = sum(future.result() for future in self._going)
            self._going = []
        else:
            spent = self._fill(0, 1)
        self._each += (spent / len(self._matchers) - self._each) / 4
        return self._bits

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False)

    def _fill(self, part: int, parts: int) -> float:
        """Fill every mask whose turn it is; the seconds that it took."""
        began = time.perf_counter()
        size, base = self._words * 4, self._bits.ctypes.data
        for at in range(part, len(self._matchers), parts):
            self._matchers[at].raw.unsafe_compute_mask_ptr(base + at * size, size)
        return time.perf_counter() - began
