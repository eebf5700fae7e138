"""The masks of a step, computed beside the model's own work.

This module knows no request and no logits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from .matcher import Matcher

Bits = NDArray[np.uint32]


class Masks:
    """Fills the masks of several matchers, one step after the other, in a thread of its own.

    Args:
        vocab_size: Width of the logits.
    """

    def __init__(self, vocab_size: int) -> None:
        self._bits = np.zeros((0, -(-vocab_size // 32)), dtype=np.uint32)
        self._jobs: SimpleQueue[Sequence[Matcher] | None] = SimpleQueue()
        self._made: SimpleQueue[Bits | Exception] = SimpleQueue()
        threading.Thread(target=self._run, name="boughs-masks", daemon=True).start()

    def begin(self, matchers: Sequence[Matcher]) -> None:
        """Begin a step. Until `take`, which must follow, nothing may touch the matchers."""
        self._jobs.put(matchers)

    def take(self) -> Bits:
        """The masks, uint32 [matchers, words], in their order; until the next step begins.

        That of a matcher in an error, which `Matcher.check` raises, is of any bits.
        """
        made = self._made.get()
        if isinstance(made, Exception):
            raise made
        return made

    def close(self) -> None:
        """End the thread."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (matchers := self._jobs.get()) is not None:
            if len(matchers) > len(self._bits):
                self._bits = np.zeros((len(matchers), self._bits.shape[1]), dtype=np.uint32)
            bits = self._bits[: len(matchers)]
            try:
                matchers[0].backend.fill([matcher.state for matcher in matchers], bits)
            except Exception as error:  # noqa: BLE001 -- who waits gets it
                self._made.put(error)
            else:
                self._made.put(bits)
