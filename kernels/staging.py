"""From arrays of the host to tensors that a device may read while the host goes on.

A copy from pinned memory runs behind the host's back, so the memory must not be written again
before it has ended: a `Staging` waits for that by itself. This module knows nothing of what the
numbers mean.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .accelerator import Accelerator

_DTYPES: dict[torch.dtype, type[np.generic]] = {torch.int32: np.int32, torch.int64: np.int64}


class Staging:
    """One piece of pinned memory, filled and read in turns.

        tensors = staging.fill(arrays)  # waits for the turn before
        ...                             # copies from the tensors are asked for
        staging.seal()                  # they end before the next turn begins

    Args:
        accelerator: Reads it.
        dtype: int32 or int64.
    """

    def __init__(self, accelerator: Accelerator, dtype: torch.dtype) -> None:
        self._accelerator = accelerator
        self._dtype = dtype
        self._memory = accelerator.host_memory(1024, dtype)
        self._event = accelerator.event()

    def fill(self, arrays: Sequence[NDArray[np.integer]]) -> list[Tensor]:
        """The arrays, as tensors on the host that stay as they are until after `seal`.

        Raises:
            ValueError: An array is of another type.
        """
        for array in arrays:
            if array.dtype != _DTYPES[self._dtype]:
                raise ValueError(f"an array of {array.dtype} where {self._dtype} is staged")
        self._event.synchronize()
        size = sum(map(len, arrays))
        if size > len(self._memory):
            self._memory = self._accelerator.host_memory(2 * size, self._dtype)
        tensors, at = [], 0
        for array in arrays:
            tensor = self._memory[at : at + len(array)]
            tensor.numpy()[:] = array
            tensors.append(tensor)
            at += len(array)
        return tensors

    def seal(self) -> None:
        """All copies from the last `fill` have been asked for."""
        self._event.record()

    def upload(self, arrays: Sequence[NDArray[np.integer]], into: Tensor | None = None) -> Tensor:
        """The arrays, one behind the other, on the device.

        Args:
            arrays: The arrays.
            into: Where they go, if not into a new tensor: one dimension, as long as all of them.
        """
        self.fill(arrays)
        size = sum(map(len, arrays))
        if into is None:
            into = torch.empty(size, dtype=self._dtype, device=self._accelerator.device)
        into.copy_(self._memory[:size], non_blocking=True)
        self.seal()
        return into
