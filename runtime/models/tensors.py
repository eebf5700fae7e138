"""The tensors of a folder of safetensors, sharded or not, mapped and not read.

Format: https://github.com/huggingface/safetensors. This module knows names and shapes, and not
what a tensor is for.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boughs.kernels.ops import TORCH, Ops
from boughs.lang.errors import InvalidRequest, NotFound

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_SHOWN = 5


class TensorFiles:
    """All tensors of a model, of which it takes one after another as it is made.

    A model is made twice: first from files that are not read, so that `finish` names all that does
    not fit before any time is spent, then in earnest.

    Args:
        folder: Holds `model.safetensors`, or shards with their index.
        dtype: Of the tensors that are given out.
        device: Where they are given out; on torch's `meta` they have shapes only.
        ops: What the modules that are made of them compute with.

    Raises:
        NotFound: There are none, or a shard is missing.
        InvalidRequest: A file is cut short or no safetensors.
    """

    def __init__(
        self, folder: Path, dtype: torch.dtype, device: torch.device, ops: Ops = TORCH
    ) -> None:
        self.folder = folder
        self.dtype = dtype
        self.device = device
        self.ops = ops
        self._read = device.type != "meta"
        self._files: dict[str, Any] = {}
        for path in _shards(folder):
            file = _open(path)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                self._files[name] = file
        self._left = set(self._files)
        self._missing: list[str] = []
        self._wrong: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def take(self, name: str, *shape: int) -> Tensor:
        """One tensor. It stays a view of the mapped file where the file has this dtype.

        Where nothing is read, one that is missing or of another shape is noted for `finish`.
        """
        if self._read:
            tensor: Tensor = self._files[name].get_tensor(name)
            assert tensor.shape == shape, "a model takes what it took when nothing was read"
            return tensor.to(self.device, self.dtype)
        if name in self._files:
            self._left.discard(name)
            found = tuple(self._files[name].get_slice(name).get_shape())
            if found != shape:
                self._wrong.append(f"{name} is {list(found)} and not {list(shape)}")
        else:
            self._missing.append(name)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def ignore(self, pattern: str) -> None:
        """Let there be tensors that are not read, whose whole names match a regular expression."""
        self._left = {name for name in self._left if not re.fullmatch(pattern, name)}

    def finish(self) -> None:
        """Hold what was taken against what is there.

        Raises:
            InvalidRequest: Names the tensors that are missing, too many, or of another shape.
        """
        faults = [
            f"{what}: {', '.join(names[:_SHOWN])}"
            + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
            for what, names in (
                ("missing", self._missing),
                ("not of this model", sorted(self._left)),
                ("of another shape than config.json says", self._wrong),
            )
            if names
        ]
        if faults:
            raise InvalidRequest(f"the tensors in {self.folder}: {'; '.join(faults)}", "model_path")


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
