"""The tensors of a folder of safetensors, sharded or not, mapped and not read.

Format: https://github.com/huggingface/safetensors. This module knows names and shapes, and not
what a tensor is for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boughs.kernels.weight import Weight
from boughs.lang.errors import InvalidRequest, NotFound

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"


class Shards:
    """The safetensors of a model.

    Args:
        folder: Holds `model.safetensors`, or shards with their index.

    Raises:
        NotFound: There are none, or a shard is missing.
        InvalidRequest: A file is cut short or no safetensors.
    """

    def __init__(self, folder: Path) -> None:
        self.place = folder
        self._files: dict[str, Any] = {}
        for path in _shards(folder):
            file = _open(path)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                self._files[name] = file

    @property
    def names(self) -> set[str]:
        """The names of its tensors."""
        return set(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self._files[name].get_slice(name).get_shape())

    def format(self, name: str) -> str:
        """The number format of a tensor, such as `BF16`."""
        return str(self._files[name].get_slice(name).get_dtype())

    def tensor(self, name: str) -> Tensor:
        """A tensor in float32; a view of the mapped file where that has it so."""
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.float()

    def weight(self, name: str, *, turned: bool) -> Weight:
        """A matrix, in bfloat16 where the file has it so and in float32 else.

        Args:
            name: Its name.
            turned: Whether the file holds it as [in, out].
        """
        tensor: Tensor = self._files[name].get_tensor(name)
        if turned:
            tensor = tensor.t().contiguous()
        if tensor.dtype == torch.bfloat16:
            return Weight("bfloat16", tensor.view(torch.uint16).numpy())
        return Weight("float32", tensor.float().numpy())


def _shards(folder: Path) -> list[Path]:
    index = folder / _INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise InvalidRequest(f"{index} cannot be read: {error}", "model_path") from error
        paths = [folder / name for name in names]
    else:
        paths = [folder / _WHOLE]
    for path in paths:
        if not path.is_file():
            raise NotFound(f"{path} is missing")
    return paths


def _open(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise InvalidRequest(f"{path} cannot be read: {error}", "model_path") from error
