"""The tensors of a model's files, of which it takes one after another as it is made.

This module knows names and shapes, neither a file format nor what a tensor is for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from boughs.kernels.ops import TORCH, Ops
from boughs.kernels.weight import Weight
from boughs.lang.errors import InvalidRequest

from .layers import Layer, LayerMaker, Table, Unread

_SHOWN = 5


class Source(Protocol):
    """Files that hold tensors, under transformers' names."""

    @property
    def place(self) -> Path:
        """Where they are, for errors."""

    @property
    def names(self) -> set[str]:
        """The names of the tensors."""

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, as transformers has it."""

    def format(self, name: str) -> str:
        """The number format of a tensor, as the file names it."""

    def tensor(self, name: str) -> Tensor:
        """A tensor in float32."""

    def weight(self, name: str, *, turned: bool) -> Weight:
        """A matrix [out, in] in the file's own format if we have that, in float32 else.

        `turned` says that transformers has it as [in, out].
        """


class TensorFiles:
    """All tensors of a model.

    A model is made twice: first from files that are not read, so that `finish` names all that does
    not fit before any time is spent, then in earnest.

    Args:
        source: Where they come from.
        maker: Makes layers of them, and says where other tensors are given out and in what dtype.
            Without, nothing is read: tensors have shapes only (torch's `meta` device), and layers
            cannot compute.
        ops: What the modules that are made of them compute with.
        kv_dtype: Of the cache that layers are compiled for, where there is one.

    Attributes:
        device: Where tensors are given out.
        ops, kv_dtype: As given.
    """

    def __init__(
        self,
        source: Source,
        maker: LayerMaker | None,
        ops: Ops = TORCH,
        kv_dtype: torch.dtype | None = None,
    ) -> None:
        self.device = maker.device if maker else torch.device("meta")
        self.ops = ops
        self.kv_dtype = kv_dtype
        self._source = source
        self._maker = maker
        self._names = source.names
        self._left = set(self._names)
        self._missing: list[str] = []
        self._wrong: list[str] = []

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def take(self, name: str, *shape: int) -> Tensor:
        """One tensor, in the maker's dtype.

        Where nothing is read, one that is missing or of another shape is noted for `finish`.
        """
        if self._maker is None:
            self._note(name, shape)
            return torch.empty(shape, device="meta")
        tensor = self._source.tensor(name)
        assert tensor.shape == shape, "a model takes what it took when nothing was read"
        return tensor.to(self._maker.device, self._maker.dtype)

    def linear(
        self,
        rows: Mapping[str, int],
        inputs: int,
        *,
        biased: bool = False,
        turned: bool = False,
        exact: bool = False,
    ) -> Layer:
        """A linear layer of one matrix or several that read the same inputs, side by side.

        Args:
            rows: The outputs of each matrix, by its name without `.weight`.
            inputs: Inputs of each.
            biased: Whether each has a bias too.
            turned: Whether the files hold the matrices as [in, out].
            exact: Whether they are never rounded.
        """
        bias = torch.cat([self.take(f"{n}.bias", r) for n, r in rows.items()]) if biased else None
        if self._maker is None:
            for name, outputs in rows.items():
                self._note(f"{name}.weight", (inputs, outputs) if turned else (outputs, inputs))
            return Unread()
        read = [self._read(name, turned=turned) for name in rows]
        return self._maker.linear(read, bias, exact=exact)

    def table(self, name: str, rows: int, width: int) -> Table:
        """A matrix with a row for each token: the embedding, the head, or both in one."""
        if self._maker is None:
            self._note(f"{name}.weight", (rows, width))
            return Unread()
        return self._maker.table(self._read(name, turned=False))

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
            raise InvalidRequest(
                f"the tensors in {self._source.place}: {'; '.join(faults)}", "model_path"
            )

    def _read(self, name: str, *, turned: bool) -> tuple[str, str, Weight]:
        """Name, format in the file, and matrix."""
        full = f"{name}.weight"
        return full, self._source.format(full), self._source.weight(full, turned=turned)

    def _note(self, name: str, shape: tuple[int, ...]) -> None:
        if name not in self._names:
            self._missing.append(name)
            return
        self._left.discard(name)
        found = self._source.shape(name)
        if found != shape:
            self._wrong.append(f"{name} is {list(found)} and not {list(shape)}")
