"""The tensors of a GGUF file, as models take them.

This module knows names and shapes, and not what a tensor is for.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from boughs.kernels.weight import Weight

from .gguf import GgufFile
from .gguf_tensors import tensors


class GgufSource:
    """The tensors of a GGUF file under transformers' names.

    Args:
        file: The file.

    Raises:
        Unsupported: An architecture or a tensor that we do not know.
    """

    def __init__(self, file: GgufFile) -> None:
        self.place: Path = file.path
        self._entries = {entry.name: entry for entry in tensors(file)}

    @property
    def names(self) -> set[str]:
        """The names of its tensors."""
        return set(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, as transformers has it."""
        return self._entries[name].shape

    def format(self, name: str) -> str:
        """The number format of a tensor, such as `Q4_1`."""
        return self._entries[name].format

    def tensor(self, name: str) -> Tensor:
        """A tensor in float32."""
        return torch.from_numpy(
            np.array(self._entries[name].load(), order="C")
        )  # a copy: the file's may not be written

    def weight(self, name: str, *, turned: bool) -> Weight:
        """A matrix [out, in], in the file's own format if we have that, in float32 else.

        Args:
            name: Its name.
            turned: Whether transformers has it as [in, out].
        """
        entry = self._entries[name]
        assert entry.turned == turned, "what a converter turns is what transformers turns"
        return entry.weight()
