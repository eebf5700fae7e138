"""Paged attention on CPU: the `cpu` backend beside gathering the pages for torch's attention.

    python benchmarks/kernels.py

Shapes are the demo model's (9 query and 3 KV heads of 64, pages of 16). Both ways run in turn, on
the same batch; read the ratio of their medians.
"""

from __future__ import annotations

import statistics
import time

import torch
from rich.console import Console
from rich.table import Table
from torch.nn.functional import scaled_dot_product_attention as attention

from boughs.kernels.backend import AttentionConfig, make_backend
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.kv_cache import KVCache

HEADS, KV_HEADS, DIM, PAGE = 9, 3, 64, 16
ROUNDS = 9
CASES = [(1, 1, 512), (1, 1, 4096), (8, 1, 1024), (32, 1, 512), (1, 256, 256), (1, 256, 2048)]


def measure(requests: int, rows: int, length: int) -> tuple[float, float]:
    """Median seconds of (cpu, gather) for `requests` of `rows` queries over `length` positions."""
    each = -(-length // PAGE)
    tables = [list(range(1 + r * each, 1 + (r + 1) * each)) for r in range(requests)]
    kv = KVCache(1, 1 + requests * each, PAGE, KV_HEADS, DIM)
    kv.k(0).normal_()
    kv.v(0).normal_()
    q = torch.randn(requests * rows, HEADS, DIM)
    config = AttentionConfig(num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_size=PAGE)
    backend = make_backend("cpu", config)
    backend.plan(AttentionBatch.from_requests(tables, [length] * requests, [rows] * requests, PAGE))
    mask = torch.ones(rows, length, dtype=torch.bool).tril(length - rows)

    def gather() -> torch.Tensor:
        parts = []
        for r, table in enumerate(tables):
            keys, values = (
                x[table].flatten(0, 1)[:length].transpose(0, 1) for x in (kv.k(0), kv.v(0))
            )
            query = q[r * rows : (r + 1) * rows].transpose(0, 1)
            made = attention(query[None], keys[None], values[None], mask, enable_gqa=True)
            parts.append(made[0].transpose(0, 1))
        return torch.cat(parts)

    torch.testing.assert_close(backend.run(0, q, kv), gather(), rtol=1e-3, atol=1e-4)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for run, taken in zip((lambda: backend.run(0, q, kv), gather), times, strict=True):
            started = time.perf_counter()
            run()
            taken.append(time.perf_counter() - started)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Print the table."""
    table = Table(title="attention of one layer")
    for column in ("requests", "rows each", "positions", "cpu, us", "gather, us", "ratio"):
        table.add_column(column, justify="right")
    for case in CASES:
        ours, theirs = measure(*case)
        table.add_row(
            *map(str, case), f"{ours * 1e6:.0f}", f"{theirs * 1e6:.0f}", f"{theirs / ours:.1f}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
