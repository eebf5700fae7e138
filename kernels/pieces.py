"""How the attention of a batch is cut into pieces, and the pieces into tasks for threads.

How a request is cut depends on its own lengths alone, never on the batch it is in nor on the
number of threads, so that neither moves its results. This module computes no attention.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .backend import AttentionConfig
from .batch import AttentionBatch
from .paged import is_few
from .tile import TILE

VECTORS = 192
"""Query vectors of a KV head in a piece with many of them: enough to be bound by arithmetic."""

FEW_BYTES = 768 << 10
"""KV that a piece with few query vectors reads, about; some 60 microseconds."""

MANY_POSITIONS = 1024
"""Positions that a piece with many query vectors sees, about, times the pieces side by side."""

READ = 10.0
"""Bytes that a core reads in a nanosecond, about."""

COMPUTE = 100.0
"""Floating point operations that a core does in a nanosecond, about."""

INLINE = 60_000.0
"""Nanoseconds of work below which waking other threads (some 20,000) does not pay."""

TASKS = 4
"""Tasks a thread into which work is cut, so that a thread that is late does less."""


@dataclass
class Plan:
    """The pieces of a batch.

    Attributes:
        pieces: As `paged.run_pieces` takes them.
        merges: As `merge.merge_parts` takes them.
        parts: Parts that the pieces write.
        costs: Nanoseconds that each piece takes, roughly.
    """

    pieces: list[tuple[int, ...]] = field(default_factory=list)
    merges: list[tuple[int, ...]] = field(default_factory=list)
    parts: int = 0
    costs: list[float] = field(default_factory=list)

    def tasks(self, threads: int) -> list[tuple[int, int]]:
        """Ranges of pieces, of nearly equal cost, that threads take one after another."""
        if not self.pieces:
            return []
        total = sum(self.costs)
        if threads == 1 or total < INLINE:
            return [(0, len(self.pieces))]
        share = max(total / (threads * TASKS), INLINE / 2)
        tasks, first, cost = [], 0, 0.0
        for index, more in enumerate(self.costs):
            cost += more
            if cost >= share:
                tasks.append((first, index + 1))
                first, cost = index + 1, 0.0
        if first < len(self.pieces):
            tasks.append((first, len(self.pieces)))
        return tasks


def divide(batch: AttentionBatch, config: AttentionConfig, window: int = 0) -> Plan:
    """Cut a batch into pieces, for layers whose rows see `window` positions; 0 stands for all."""
    plan = Plan()
    group = config.num_heads // config.num_kv_heads
    for request, kv_len in enumerate(batch.kv_lens.tolist()):
        row, row_end = batch.qo_indptr[request : request + 2].tolist()
        rows = _Rows(request, row, row_end, kv_len, window or kv_len)
        if row == row_end:
            continue
        if is_few((row_end - row) * group, config.head_dim):
            _add_few(plan, rows, config)
        else:
            _add_many(plan, rows, config)
    return plan


@dataclass(frozen=True)
class _Rows:
    """Rows of a request, the positions up to the last of them, and how many of them a row sees."""

    request: int
    row: int
    row_end: int
    kv_end: int
    window: int

    @property
    def position(self) -> int:
        """Where the first row stands."""
        return self.kv_end - (self.row_end - self.row)

    @property
    def kv_begin(self) -> int:
        """The first position that the first row sees, and so any of them."""
        return max(0, self.position + 1 - self.window)

    def part(self, first: int, end: int) -> _Rows:
        """The rows from `first` to `end`, which end sooner and see less."""
        kv_end = self.kv_end - (self.row_end - end)
        return _Rows(self.request, first, end, kv_end, self.window)


def _add_few(plan: Plan, rows: _Rows, config: AttentionConfig) -> None:
    """One piece a range of positions: all rows and heads share the KV that is read."""
    size = config.num_kv_heads * config.head_dim * 8  # bytes of a position
    heads = range(config.num_kv_heads)
    _split(plan, rows, heads, config, most=FEW_BYTES // size, cost=size / READ)


def _add_many(plan: Plan, rows: _Rows, config: AttentionConfig) -> None:
    """Rows in nearly equal shares, and pieces of its own for every KV head."""
    group = config.num_heads // config.num_kv_heads
    count = rows.row_end - rows.row
    shares = -(-count // max(1, VECTORS // group))
    height = -(-count // shares)
    for first in range(rows.row, rows.row_end, height):
        share = rows.part(first, min(first + height, rows.row_end))
        work = 4 * (share.row_end - share.row) * group * config.head_dim  # of a position
        for head in range(config.num_kv_heads):
            heads = range(head, head + 1)
            _split(plan, share, heads, config, most=MANY_POSITIONS * shares, cost=work / COMPUTE)


def _split(
    plan: Plan, rows: _Rows, heads: range, config: AttentionConfig, *, most: int, cost: float
) -> None:
    """Add the pieces of some rows and heads: nearly equal ranges of about `most` positions."""
    seen = rows.kv_end - rows.kv_begin
    splits = -(-seen // max(most, TILE))
    width = -(-seen // (splits * TILE)) * TILE
    splits = -(-seen // width)
    place = (rows.row, rows.row_end, heads.start, heads.stop)
    count = (rows.row_end - rows.row) * len(heads) * (config.num_heads // config.num_kv_heads)
    if splits > 1:
        plan.merges.append((*place, plan.parts, splits))
    for begin in range(rows.kv_begin, rows.kv_end, width):
        end = min(begin + width, rows.kv_end)
        part = plan.parts if splits > 1 else -1
        plan.pieces.append((rows.request, *place, begin, end, rows.position, part))
        plan.costs.append(cost * (end - begin))
        plan.parts += count if splits > 1 else 0
