"""The memory of the page pool: keys and values of all layers, as NHD pages in one tensor.

Pages are zero until written, and zero pages cost no memory on the CPU. In int8 the elements of a
token and head share a float32 scale, which lies in a tensor of its own, page after page as they do.
This module hands out no page and knows no request; who may write where is decided by the page pool.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from .elements import ELEMENTS
from .store import store_int8

HUGE = 1 << 30
"""Bytes of a pool from which on it asks for the system's large pages, of some 2 MiB."""
CPU = torch.device("cpu")
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class RowCopy(Protocol):
    """An order to copy the first `rows` rows of page `source` to page `destination`."""

    @property
    def source(self) -> int:
        """The page that is read."""
        ...

    @property
    def destination(self) -> int:
        """The page that is written."""
        ...

    @property
    def rows(self) -> int:
        """How many rows, from the first on."""
        ...


class KVCache:
    """Pages of keys and values. K and V of a layer are views of equal strides into one tensor.

    Args:
        num_layers: Layers of the model.
        num_pages: Pages, each holding `page_size` tokens of every layer.
        page_size: Tokens a page.
        num_kv_heads: Key and value heads.
        head_dim: Width of a head.
        dtype: Of the elements. Floating point, or int8, which is rounded and scaled on the CPU.
        device: Where they are.

    Raises:
        ValueError: A size below 1; a dtype that is not there on this device.
        MemoryError: The machine does not give that much address space.
    """

    def __init__(  # noqa: PLR0917 -- the sizes of a tensor, in the order of its dimensions
        self,
        num_layers: int,
        num_pages: int,
        page_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device = CPU,
    ) -> None:
        shape = (num_layers, 2, num_pages, page_size, num_kv_heads, head_dim)
        if min(shape) < 1:
            raise ValueError(f"every size of a KV cache must be at least 1, got {shape}")
        self.scaled = dtype == torch.int8
        if self.scaled and device.type != "cpu":
            raise ValueError(f"a KV cache in int8 is there on the CPU alone, not on {device}")
        self.num_layers = num_layers
        self.num_pages = num_pages
        self.page_size = page_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        # Zero throughout: a kernel may multiply a row that nobody wrote by a weight of zero.
        self._data = _zeros(shape, dtype, device)
        self.device = self._data.device
        scales = shape[:-1] if self.scaled else (num_layers, 2, 0, page_size, num_kv_heads)
        self._scales = _zeros(scales, torch.float32, device)
        self._arrays: list[tuple[NDArray[Any], ...]] = []
        if self.scaled:
            self._store = store_int8()
        by_slot = self._data.view(num_layers, 2, num_pages * page_size, num_kv_heads, head_dim)
        if dtype in FLOAT8:
            by_slot = by_slot.view(torch.uint8)  # torch moves no float8 by index
        self._layers: list[tuple[Tensor, Tensor]] = [(layer[0], layer[1]) for layer in self._data]
        self._slots: list[tuple[Tensor, Tensor]] = [(layer[0], layer[1]) for layer in by_slot]

    def k(self, layer: int) -> Tensor:
        """The keys of a layer: [pages, page_size, kv_heads, head_dim], a view."""
        return self._layers[layer][0]

    def v(self, layer: int) -> Tensor:
        """The values of a layer: [pages, page_size, kv_heads, head_dim], a view."""
        return self._layers[layer][1]

    def k_scales(self, layer: int) -> Tensor:
        """What a layer's keys are to be multiplied by, float32 [pages, page_size, kv_heads].

        Without pages where the cache is not in int8.
        """
        return self._scales[layer, 0]

    def v_scales(self, layer: int) -> Tensor:
        """The same of its values."""
        return self._scales[layer, 1]

    def arrays(self, layer: int) -> tuple[NDArray[Any], ...]:
        """Keys, values and the scales of both, flat, as the compiled kernels read them; views.

        Made once, because this is asked for in every layer of every step.

        Raises:
            ValueError: A cache whose elements they do not read, or that is not on the CPU.
        """
        if not self._arrays:
            if self.dtype not in ELEMENTS or self._data.device.type != "cpu":
                raise ValueError(f"no compiled kernel reads a cache of {self.dtype}")
            seen = self._data.view(ELEMENTS[self.dtype].seen).numpy()
            self._arrays = [
                (k, v, *scales.reshape(2, -1))
                for (k, v), scales in zip(seen, self._scales.numpy(), strict=True)
            ]
        return self._arrays[layer]

    def read(self, layer: int, pages: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values of some pages of a layer, as numbers.

        Args:
            layer: The layer.
            pages: int64 [n].
            dtype: Of the result. In float64 nothing is rounded.

        Returns:
            Two new tensors [n * page_size, kv_heads, head_dim].
        """
        k, v = (x[pages].flatten(0, 1).to(dtype) for x in self._layers[layer])
        if self.scaled:
            k *= self.k_scales(layer)[pages].flatten(0, 1)[..., None].to(dtype)
            v *= self.v_scales(layer)[pages].flatten(0, 1)[..., None].to(dtype)
        return k, v

    def write(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        """Write T tokens of a layer.

        Args:
            layer: The layer.
            slots: int64 [T], all different but those of page 0: page * page_size + row.
            k: [T, kv_heads, head_dim].
            v: [T, kv_heads, head_dim].

        Raises:
            IndexError: A slot out of the pool.
        """
        keys, values = self._slots[layer]
        if self.scaled:
            self._write_int8(layer, slots, k, v)
            return
        keys.index_copy_(0, slots, self._stored(k))
        values.index_copy_(0, slots, self._stored(v))

    def _write_int8(self, layer: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        places = slots.numpy()
        if len(places) and not 0 <= places.min() <= places.max() < len(self._slots[layer][0]):
            raise IndexError(f"slots {places.min()} to {places.max()} in {self.num_pages} pages")
        for rows, stored, scales in zip(
            (k, v), self._slots[layer], self._scales[layer].flatten(1, 2), strict=True
        ):
            self._store(rows.float().numpy(), places, stored.numpy(), scales.numpy())

    def _stored(self, rows: Tensor) -> Tensor:
        """The rows as they are kept; float8 takes what is out of its range at the border."""
        if self.dtype not in FLOAT8:
            return rows.to(self.dtype)
        most = torch.finfo(self.dtype).max
        return rows.clamp(-most, most).to(self.dtype).view(torch.uint8)

    def copy_rows(self, orders: Iterable[RowCopy]) -> None:
        """Carry out copy orders, one after another, in all layers."""
        for order in orders:
            rows = self._data[:, :, order.source, : order.rows]
            self._data[:, :, order.destination, : order.rows] = rows
            if self.scaled:
                scales = self._scales[:, :, order.source, : order.rows]
                self._scales[:, :, order.destination, : order.rows] = scales

    @staticmethod
    def bytes_per_page(
        num_layers: int, page_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """What one page takes, K and V of all layers together, with their scales."""
        head = head_dim * dtype.itemsize + (4 if dtype == torch.int8 else 0)
        return 2 * num_layers * page_size * num_kv_heads * head


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A tensor of zeros, which on the CPU takes no memory until it is written."""
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or not size:
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.frombuffer(_memory(size), dtype=dtype).view(shape)


def _memory(size: int) -> mmap.mmap:
    """`size` bytes that are zero and take no memory until they are written.

    The system maps a page of its own on the first write, which `torch.zeros` would do for all.
    Large pools ask for large ones, which save a tenth of the time of reading many of ours.
    """
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {size >> 20} MiB for the KV cache: {error}") from error
    if size >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        # A system built without them refuses; nothing is lost but the gain.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
