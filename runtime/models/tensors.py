"""The tensors of a folder of safetensors, sharded or not, mapped and not read.

Format: https://github.com/huggingface/safetensors. This module knows names and shapes, and not
what a tensor is for.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from boughs.lang.errors import InvalidRequest, NotFound

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_SHOWN = 5


class TensorFiles:
    """All tensors of a model.

    Args:
        folder: Holds `model.safetensors`, or shards with their index.

    Raises:
        NotFound: There are none, or a shard is missing.
        InvalidRequest: A file is cut short or no safetensors.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        for path in _shards(folder):
            file = _open(path)
            for name in file.keys():  # noqa: SIM118 - not a mapping
                self._files[name] = file

    def check(self, shapes: Mapping[str, tuple[int, ...]], ignored: Iterable[str] = ()) -> None:
        """Hold the files against what a model needs.

        Args:
            shapes: The shape of every tensor that the model has.
            ignored: Names that may be there and are not read.

        Raises:
            InvalidRequest: Names the tensors that are missing, too many, or of another shape.
        """
        missing = [name for name in shapes if name not in self._files]
        extra = sorted(self._files.keys() - shapes.keys() - set(ignored))
        wrong = []
        for name, shape in shapes.items():
            if name in self._files:
                found = tuple(self._files[name].get_slice(name).get_shape())
                if found != shape:
                    wrong.append(f"{name} is {list(found)} and not {list(shape)}")
        faults = [
            f"{what}: {', '.join(names[:_SHOWN])}"
            + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
            for what, names in (
                ("missing", missing),
                ("not of this model", extra),
                ("of another shape than config.json says", wrong),
            )
            if names
        ]
        if faults:
            raise InvalidRequest(f"the tensors in {self.folder}: {'; '.join(faults)}", "model_path")

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        """One tensor. It stays a view of the mapped file where the file has this dtype."""
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.to(dtype)


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
