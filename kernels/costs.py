"""What attention takes on this machine, and waking threads: what a plan weighs up.

Costs say which pages are worth reading once for several requests, and balance threads. They never
say how the sums of a row's own pieces are cut. `DEFAULT` was measured on one machine; `load` has
those of the machine and model at hand. This module knows no plan.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
import torch

from . import host, tables
from .backend import AttentionConfig
from .emit import LANES, LOG2_E
from .kv_cache import KVCache
from .merge import merge_parts
from .paged import EVERYTHING, FEW, is_few, run_pieces
from .tile import TILE
from .workers import Workers

log = logging.getLogger(__name__)

SAMPLE_BYTES = 3 << 19
"""Keys and values in float32 that a sample holds: more than fits a core's first cache."""

MANY = 192
"""Query vectors of a KV head, of up to 64 numbers each, with which a piece of many is measured."""

ROUNDS, WAKES = 25, 25
"""Times that a piece is computed, of which the quickest counts; times that a thread is woken, of
which the middle one does."""

PARTS, ROWS = 4, 16
"""Parts of a row, and rows, that are merged to see what that takes."""


@dataclass(frozen=True)
class Costs:
    """What pieces of attention take, for one shape of heads and one kind of cache.

    Attributes:
        read: Of a piece with few query vectors: bytes (in float32) that a core reads in a
            nanosecond,
        compute: and floating point operations that it then does in one.
        widen, multiply: The same of a piece with many, whose vectors count by whole vectors.
        piece: Nanoseconds that a piece takes whatever it reads.
        part: Nanoseconds to merge a part of a query vector.
        wake: Nanoseconds until another thread begins what it is asked for.
    """

    read: float = 85.0
    compute: float = 170.0
    widen: float = 20.0
    multiply: float = 200.0
    piece: float = 1_500.0
    part: float = 30.0
    wake: float = 20_000.0

    bounds: ClassVar[Mapping[str, tuple[float, float]]] = {
        "read": (2.0, 400.0),
        "compute": (2.0, 2_000.0),
        "widen": (2.0, 400.0),
        "multiply": (4.0, 4_000.0),
        "piece": (100.0, 20_000.0),
        "part": (4.0, 2_000.0),
        "wake": (5_000.0, 40_000.0),
    }

    @property
    def inline(self) -> float:
        """Nanoseconds of work below which waking other threads does not pay."""
        return 3 * self.wake

    def position(self, vectors: int, dim: int, *, few: bool) -> float:
        """Nanoseconds that a position of a KV head takes for so many query vectors."""
        if few:
            return 8 * dim / self.read + 4 * dim * vectors / self.compute
        vectors = -(-vectors // LANES) * LANES
        return 8 * dim / self.widen + 4 * dim * vectors / self.multiply


DEFAULT = Costs()
"""What two cores with AVX-512 took."""


def load(config: AttentionConfig, dtype: torch.dtype, folder: Path | None) -> tuple[Costs, str]:
    """The costs of this machine for a shape and a cache, and where they are from, in words.

    Args:
        config: The shape of the attention.
        dtype: Of the cache.
        folder: Where they are kept; None measures them for this process alone.
    """
    run_pieces(dtype)  # others need not wait for that, too
    merge_parts()
    return tables.keep(_name(config, dtype), Costs, lambda: measure(config, dtype), folder)


def measure(config: AttentionConfig, dtype: torch.dtype) -> Costs:
    """Measure the costs of a shape and a cache; takes some tenths of a second.

    What other processes take of a core is not counted, but for waking.
    """
    begun = time.perf_counter()
    sample = Sample(config, dtype)
    group, dim = config.num_heads // config.num_kv_heads, config.head_dim
    most, least = MANY * 64 // max(dim, 64) // group, 1
    piece = sample.piece(1)
    found = {"piece": piece}
    if is_few(group, dim):
        least = FEW // group + 1
        found["read"], found["compute"] = _rates(sample, 1, max(2, least - 1), piece, few=True)
    more = max(2 * least, most)
    found["widen"], found["multiply"] = _rates(sample, least, more, piece, few=False)
    found["part"] = best(merge_parts(), *_merge(config)) / (ROWS * config.num_heads * PARTS)
    if least > 2:  # what each vector more of a piece takes, to be written above all
        beside = sample.piece(least - 1) - piece
        found["part"] += max(0.0, beside) / (least - 2) / config.num_heads
    if host.cores() > 1:
        found["wake"] = _wake()
    log.debug("measured in %.2f s: %s", time.perf_counter() - begun, found)
    return tables.clamp(Costs, found)


class Sample:
    """Pieces over a cache of their own, whose pages lie in random order.

    Args:
        config: The shape of the attention.
        dtype: Of the cache.

    Attributes:
        positions: That the cache holds; whole tiles, two of them at least.
        dim: Of a head.
    """

    def __init__(self, config: AttentionConfig, dtype: torch.dtype) -> None:
        heads, dim, page = config.num_kv_heads, config.head_dim, TILE // 4
        self.positions = max(2, SAMPLE_BYTES // (heads * dim * 8) // TILE) * TILE
        self.dim = dim
        self._config, self._run = config, run_pieces(dtype)
        count = self.positions // page
        random = torch.Generator().manual_seed(0)
        kv = KVCache(1, count, page, heads, dim, dtype)
        keys = torch.randn(2, self.positions, heads, dim, generator=random)
        kv.write(0, torch.arange(self.positions), *keys)
        self._cache = kv.arrays(0)
        self._pages = torch.randperm(count, generator=random).to(torch.int32).numpy()
        self._indptr = np.array([0, count], np.int32)

    def arguments(self, rows: int, *, by_head: bool, cut: bool = False) -> tuple[Any, ...]:
        """What `paged.run_pieces` makes takes, for rows that see all positions.

        Args:
            rows: How many.
            by_head: Whether each KV head has pieces of its own.
            cut: Whether each tile has.
        """
        heads, kv_heads, dim = (
            self._config.num_heads, self._config.num_kv_heads, self._config.head_dim,
        )  # fmt: skip
        ranges = [range(h, h + 1) for h in range(kv_heads)] if by_head else [range(kv_heads)]
        width = TILE if cut else self.positions
        pieces, parts = [], 0
        for begin in range(0, self.positions, width):
            for mine in ranges:
                see = (begin, begin + width, self.positions)
                pieces.append((0, 0, rows, mine.start, mine.stop, *see, parts))
                parts += rows * len(mine) * heads // kv_heads
        q = torch.randn(rows, heads, dim, generator=torch.Generator().manual_seed(1)).numpy()
        cap = self._config.soft_cap
        scale = self._config.scale * (1 / cap if cap else LOG2_E)
        return (
            np.array(pieces, np.int32), 0, len(pieces), q, *self._cache, self._indptr, self._pages,
            EVERYTHING, np.float32(scale), np.float32(cap * LOG2_E), np.empty_like(q),
            np.empty((parts, dim + 2), np.float32),
        )  # fmt: skip

    def vectors(self, rows: int, *, few: bool) -> int:
        """Query vectors that count of so many rows; see `Costs.position`."""
        vectors = rows * self._config.num_heads // self._config.num_kv_heads
        return vectors if few else -(-vectors // LANES) * LANES

    def position(self, rows: int, piece: float, *, few: bool) -> float:
        """Nanoseconds that a position of a KV head takes for so many rows, given a piece's own."""
        pieces, *others = self.arguments(rows, by_head=not few)
        taken = best(self._run, pieces, *others)
        return max(taken - len(pieces) * piece, taken / 2) / (
            self.positions * self._config.num_kv_heads
        )

    def piece(self, rows: int) -> float:
        """Nanoseconds that a piece takes for so many rows, whatever it reads."""
        config = self._config
        few = is_few(rows * config.num_heads // config.num_kv_heads, config.head_dim)
        less, more = (self.arguments(rows, by_head=not few, cut=cut) for cut in (False, True))
        taken = best(self._run, *more) - best(self._run, *less)
        return taken / (len(more[0]) - len(less[0]))


def best(
    way: Callable[..., None], *arguments: Any, rounds: int = ROUNDS, before: Callable[[], Any] = int
) -> float:
    """The least nanoseconds of this thread that a call takes; `before` runs before each."""
    way(*arguments)
    taken = []
    for _ in range(rounds):
        before()
        started = time.thread_time_ns()
        way(*arguments)
        taken.append(time.thread_time_ns() - started)
    return float(min(taken))


def _name(config: AttentionConfig, dtype: torch.dtype) -> str:
    """What the table of a shape and a cache is called."""
    cap = "-cap" if config.soft_cap else ""
    heads = f"{config.num_heads}x{config.num_kv_heads}x{config.head_dim}"
    return f"attention-{str(dtype).removeprefix('torch.')}-{heads}{cap}"


def _rates(sample: Sample, less: int, more: int, piece: float, *, few: bool) -> tuple[float, float]:
    """Bytes, and operations, a nanosecond: the line through what two numbers of rows take."""
    vectors = [sample.vectors(rows, few=few) for rows in (less, more)]
    taken = [sample.position(rows, piece, few=few) for rows in (less, more)]
    each = (taken[1] - taken[0]) / (vectors[1] - vectors[0])
    read = taken[0] - each * vectors[0]
    if read <= 0:  # where more are done better than few: a line through nothing
        each = taken[1] / vectors[1]
    dim = sample.dim
    return 8 * dim / max(read, 1e-9), 4 * dim / max(each, 1e-9)


def _merge(config: AttentionConfig) -> tuple[Any, ...]:
    """What `merge.merge_parts` makes takes, for ROWS rows of PARTS parts each."""
    heads, kv_heads, dim = config.num_heads, config.num_kv_heads, config.head_dim
    each = ROWS * heads
    sources = [(0, ROWS, 0, part * each) for part in range(PARTS)]
    merges = np.array([(0, ROWS, 0, kv_heads, 0, PARTS)], np.int32)
    parts = np.ones((PARTS * each, dim + 2), np.float32)
    out = np.empty((ROWS, heads, dim), np.float32)
    return merges, np.array(sources, np.int32), parts, heads // kv_heads, out


def _wake() -> float:
    """Nanoseconds until another thread begins, while this one holds no GIL."""
    workers, taken = Workers(2), []
    for _ in range(WAKES):
        begun: list[int] = []
        ended = threading.Event()

        def note(_: None, begun: list[int] = begun, ended: threading.Event = ended) -> None:
            begun.append(time.perf_counter_ns())
            ended.set()

        started = time.perf_counter_ns()
        workers.invite(note)
        if ended.wait(0.1):
            taken.append(begun[0] - started)
    return median(taken) if taken else float("nan")
