"""The cutting of attention into pieces, and of pieces into tasks for threads.

How rows are cut depends on their own number and length alone, never on the batch they are in, the
number of threads or what was measured, so that none of these moves their results. This module knows
no batch and computes no attention.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from .backend import AttentionConfig
from .costs import DEFAULT, Costs
from .paged import is_few
from .tile import TILE

VECTORS = 192
"""Query vectors of a KV head, of up to 64 numbers each, in a piece with many of them: enough to be
bound by arithmetic, and few enough that a core keeps their sums beside a tile."""

FEW_BYTES = 768 << 10
"""KV in float32 that a piece with few query vectors reads, about, or more; some 30 microseconds.
How it is stored moves no cut."""

FEW_PIECES = 16
"""Pieces with few query vectors into which a request is cut at most. Each begins with waiting for
memory, and more threads than these have little to gain from sharing one request."""

MANY_POSITIONS = 1024
"""Positions that a piece with many query vectors sees, about, times the pieces side by side."""

TASKS = 4
"""Tasks a thread into which work is cut, so that a thread that is late does less."""


@dataclass
class Plan:
    """The pieces of a batch.

    Attributes:
        pieces: As `paged.run_pieces` takes them.
        costs: Nanoseconds that each piece takes, roughly.
        parts: Parts that the pieces write.
        merges, sources: As `merge.merge_parts` takes them.
        rows: The order of the batch's rows that the pieces are about; None for their own.
        inline: Nanoseconds of work that one thread does best alone.
    """

    pieces: list[tuple[int, ...]] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    parts: int = 0
    merges: list[tuple[int, ...]] = field(default_factory=list)
    sources: list[tuple[int, ...]] = field(default_factory=list)
    rows: NDArray[np.int64] | None = None
    inline: float = DEFAULT.inline

    def tasks(self, threads: int) -> list[tuple[int, int]]:
        """Ranges of pieces, of nearly equal cost, that threads take one after another."""
        if not self.pieces:
            return []
        total = sum(self.costs)
        if threads == 1 or total < self.inline:
            return [(0, len(self.pieces))]
        share = max(total / (threads * TASKS), self.inline / 2)
        tasks, first, cost = [], 0, 0.0
        for index, more in enumerate(self.costs):
            cost += more
            if cost >= share:
                tasks.append((first, index + 1))
                first, cost = index + 1, 0.0
        if first < len(self.pieces):
            tasks.append((first, len(self.pieces)))
        return tasks


@dataclass(frozen=True)
class Rows:
    """Rows that follow one another, and the positions that they see.

    Attributes:
        request: Whose pages are read.
        row, row_end: The first row and the one behind the last.
        position: Where the first row stands; each other stands one behind the one before.
        kv_begin: The first position to read.
        kv_end: The one behind the last.
    """

    request: int
    row: int
    row_end: int
    position: int
    kv_begin: int
    kv_end: int

    @property
    def count(self) -> int:
        """How many there are."""
        return self.row_end - self.row


@dataclass(frozen=True)
class Source:
    """Where a piece wrote its parts.

    Attributes:
        row, row_end: Its rows.
        head, head_end: Its KV heads.
        part: Its first part.
    """

    row: int
    row_end: int
    head: int
    head_end: int
    part: int

    def has(self, row: int, row_end: int, head: int, head_end: int) -> bool:
        """Whether parts of all these rows and heads are among them."""
        return (
            self.row <= row
            and row_end <= self.row_end
            and self.head <= head
            and head_end <= self.head_end
        )


_is_few = lru_cache(maxsize=1024)(is_few)  # to call what is compiled takes longer than to look up


class Cutter:
    """Cuts rows into pieces and adds these to a plan.

    Args:
        config: The shape of the attention.
        costs: What pieces take. They say what a piece counts for, never how rows are cut.
        window: How many positions a row sees; 0 stands for all.

    Attributes:
        plan: What is being made.
        costs: As given.
    """

    def __init__(self, config: AttentionConfig, costs: Costs = DEFAULT, *, window: int = 0) -> None:
        self.plan = Plan(inline=costs.inline)
        self.costs = costs
        self._size = config.num_kv_heads * config.head_dim * 8  # of a position, in float32
        self._heads = config.num_kv_heads
        self._group = config.num_heads // config.num_kv_heads
        self._dim = config.head_dim
        self._window = window

    def is_few(self, rows: int) -> bool:
        """Whether so many rows are bound by reading, and share it."""
        return _is_few(rows * self._group, self._dim)

    def cost(self, rows: int) -> float:
        """Nanoseconds that a position of a KV head takes for so many rows, about."""
        return self.costs.position(rows * self._group, self._dim, few=self.is_few(rows))

    def add(self, rows: Rows) -> None:
        """Add all pieces of some rows, and what merges them."""
        for share in self._shares(rows):
            for heads in self._head_ranges(rows):
                ranges = self._ranges(share, rows)
                if len(ranges) == 1:
                    self._add_piece(share, heads, ranges[0], -1)
                    continue
                begin = [self._add_part(share, heads, kv) for kv in ranges]
                self._add_merge(share.row, share.row_end, heads, begin)

    def add_parts(self, rows: Rows) -> list[Source]:
        """Add pieces of some rows that others have more of."""
        return [
            self._add_part(share, heads, kv)
            for share in self._shares(rows)
            for heads in self._head_ranges(rows)
            for kv in self._ranges(share, rows)
        ]

    def merge(self, row: int, row_end: int, sources: list[Source]) -> None:
        """Have all parts of some rows merged; a source may have parts of others, too."""
        cuts = {row, row_end, *(s.row for s in sources), *(s.row_end for s in sources)}
        heads = {0, self._heads, *(s.head for s in sources), *(s.head_end for s in sources)}
        for first, end in pairwise(sorted(cut for cut in cuts if row <= cut <= row_end)):
            for head, head_end in pairwise(sorted(heads)):
                mine = [source for source in sources if source.has(first, end, head, head_end)]
                self._add_merge(first, end, range(head, head_end), mine)

    def _shares(self, rows: Rows) -> list[Rows]:
        """Rows in nearly equal shares; few are one share. Each ends where its last row does."""
        if self.is_few(rows.count):
            return [self._seen(rows)]
        shares = self._side_by_side(rows.count)
        height = -(-rows.count // shares)
        return [
            self._seen(
                replace(
                    rows,
                    row=first,
                    row_end=min(first + height, rows.row_end),
                    position=rows.position + first - rows.row,
                )
            )
            for first in range(rows.row, rows.row_end, height)
        ]

    def _side_by_side(self, rows: int) -> int:
        """Shares of so many rows."""
        vectors = VECTORS * 64 // max(self._dim, 64)
        return -(-rows // max(1, vectors // self._group))

    def _seen(self, rows: Rows) -> Rows:
        """Without the positions that none of the rows sees."""
        begin = 0 if not self._window else rows.position + 1 - self._window
        begin = max(rows.kv_begin, begin)
        end = min(rows.kv_end, rows.position + rows.count)
        if begin == rows.kv_begin and end == rows.kv_end:
            return rows
        return replace(rows, kv_begin=begin, kv_end=end)

    def _head_ranges(self, rows: Rows) -> list[range]:
        """Few rows read the KV of all heads as it lies; of many, each head has its own pieces."""
        if self.is_few(rows.count):
            return [range(self._heads)]
        return [range(head, head + 1) for head in range(self._heads)]

    def _ranges(self, share: Rows, rows: Rows) -> list[range]:
        """Nearly equal ranges of positions, whole tiles but the last."""
        if self.is_few(rows.count):
            most = max(FEW_BYTES // self._size, -(-(share.kv_end - share.kv_begin) // FEW_PIECES))
        else:
            most = MANY_POSITIONS * self._side_by_side(rows.count)
        begin, end = share.kv_begin, share.kv_end
        splits = -(-(end - begin) // max(most, TILE))
        width = -(-(end - begin) // (splits * TILE)) * TILE
        return [range(first, min(first + width, end)) for first in range(begin, end, width)]

    def _add_part(self, rows: Rows, heads: range, kv: range) -> Source:
        part = self.plan.parts
        self._add_piece(rows, heads, kv, part)
        self.plan.parts += rows.count * len(heads) * self._group
        return Source(rows.row, rows.row_end, heads.start, heads.stop, part)

    def _add_piece(self, rows: Rows, heads: range, kv: range, part: int) -> None:
        place = (rows.request, rows.row, rows.row_end, heads.start, heads.stop)
        self.plan.pieces.append((*place, kv.start, kv.stop, rows.position, part))
        cost = self.cost(rows.count) * len(heads) * len(kv)
        self.plan.costs.append(self.costs.piece + cost)

    def _add_merge(self, row: int, row_end: int, heads: range, sources: list[Source]) -> None:
        begin = len(self.plan.sources)
        self.plan.sources += [(s.row, s.row_end - s.row, s.head, s.part) for s in sources]
        end = len(self.plan.sources)
        self.plan.merges.append((row, row_end, heads.start, heads.stop, begin, end))
