"""The layers of a model as a program of calls, where there is a call for all that they have.

What `forward` of a model does in torch, operation by operation, costs more for a few rows than the
arithmetic does; a program (`kernels.program`) does the same in one call. This module knows no
architecture.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from boughs.kernels.backend import AttentionBackend
from boughs.kernels.cpu import CpuBackend
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.linear import Linear
from boughs.kernels.ops import Angles
from boughs.kernels.program import Buffer, Program, Unrecordable

from .layers import Layer

log = logging.getLogger(__name__)

Record = Callable[[Program], tuple[Buffer, Buffer]]
"""Records all layers; the buffers that hold the rows first and last."""


@dataclass(frozen=True)
class Recorded:
    """The program of a model's layers."""

    program: Program

    def takes(self, kv: KVCache, attention: AttentionBackend) -> bool:
        """Whether attention can be a call of it."""
        return isinstance(attention, CpuBackend) and kv.dtype == self.program.kv_dtype

    def run(
        self,
        x: Tensor,
        angles: Mapping[str, Angles],
        slots: Tensor,
        kv: KVCache,
        attention: AttentionBackend,
    ) -> Tensor:
        """Hidden states after all layers [T, hidden] of embeddings [T, hidden].

        Args:
            x: The embeddings.
            angles: By the name of the rope.
            slots: int64 [T].
            kv: The cache, which `takes` took.
            attention: Has been planned for these rows; which `takes` took.
        """
        assert isinstance(attention, CpuBackend)
        turns = {name: torch.cat(pair).numpy() for name, pair in angles.items()}
        records = attention.records(kv)
        return torch.from_numpy(self.program.run(x.numpy(), kv, slots.numpy(), turns, records))


def record(layer: Layer, layers: Record, kv_dtype: torch.dtype | None) -> Recorded | None:
    """The program that `layers` records, if it can be.

    Args:
        layer: Any linear layer of the model, whose threads compute.
        layers: Records the model.
        kv_dtype: Of the cache that it will be run over; None where it will not be.
    """
    if kv_dtype is None:
        return None
    try:
        program = Program(packed(layer).workers, kv_dtype)
        into, out = layers(program)
    except Unrecordable as reason:
        log.debug("layers run one by one: there is no call for %s", reason)
        return None
    program.finish(into, out)
    return Recorded(program)


def packed(layer: Layer) -> Linear:
    """The layer, which must be packed.

    Raises:
        Unrecordable: It is not.
    """
    if not isinstance(layer, Linear):
        raise Unrecordable(f"a layer of {type(layer).__name__}")
    return layer
