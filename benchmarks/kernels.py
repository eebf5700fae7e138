"""Paged attention on CPU: the `cpu` backend beside gathering the pages for torch's attention.

    python benchmarks/kernels.py [--threads 2]

Shapes are the demo model's (9 query and 3 KV heads of 64, pages of 16), pages lie in random order,
and layers take turns, as in a model. Both ways run in turn on the same batch, the gathering one
with all requests of a batch in one call: read the ratio of their medians. GB/s and GFLOP/s are the
`cpu` backend's own; above the table stands what torch reads and multiplies in the same run.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # as the core process does; before torch is loaded

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attention

from boughs.kernels.backend import AttentionConfig, make_backend
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.kv_cache import KVCache

HEADS, KV_HEADS, DIM, PAGE, LAYERS = 9, 3, 64, 16, 4
CONFIG = AttentionConfig(HEADS, KV_HEADS, DIM, PAGE)
ROUNDS, SECONDS = 9, 1.0

# Requests, rows of each, positions that the last row sees.
DECODES = [(b, 1, length) for b in (1, 8, 32) for length in (128, 512, 1024, 4096)]
CHUNKS = [(1, 8, 2056), (1, 32, 2080), (1, 256, 256), (1, 256, 2304), (8, 32, 1024)]


def turns(*ways: Callable[[int], object]) -> list[float]:
    """Median seconds of each way. They take turns, and get the number of the turn."""
    times: list[list[float]] = [[] for _ in ways]
    begun = time.perf_counter()
    turn = 0
    while turn < ROUNDS or time.perf_counter() - begun < SECONDS:
        for way, taken in zip(ways, times, strict=True):
            started = time.perf_counter()
            way(turn)
            taken.append(time.perf_counter() - started)
        turn += 1
    return [statistics.median(taken) for taken in times]


def measure(kv: KVCache, requests: int, rows: int, length: int, threads: int) -> list[float]:
    """Median seconds of (cpu, gather) for `requests` of `rows` queries over `length` positions."""
    each = -(-length // PAGE)
    pages = random.sample(range(1, kv.num_pages), requests * each)
    tables = [pages[r * each : (r + 1) * each] for r in range(requests)]
    index = torch.tensor(tables)
    q = torch.randn(requests * rows, HEADS, DIM)
    backend = make_backend("cpu", CONFIG, threads=threads)
    backend.plan(AttentionBatch.from_requests(tables, [length] * requests, [rows] * requests, PAGE))
    mask = torch.ones(rows, length, dtype=torch.bool).tril(length - rows) if rows > 1 else None

    def ours(turn: int) -> Tensor:
        return backend.run(turn % LAYERS, q, kv)

    def gather(turn: int) -> Tensor:
        keys, values = (
            x[index].flatten(1, 2)[:, :length].transpose(1, 2)
            for x in (kv.k(turn % LAYERS), kv.v(turn % LAYERS))
        )
        queries = q.view(requests, rows, HEADS, DIM).transpose(1, 2)
        made = attention(queries, keys, values, mask, enable_gqa=True)
        return made.transpose(1, 2).reshape(-1, HEADS, DIM)

    torch.testing.assert_close(ours(0), gather(0), rtol=1e-3, atol=1e-4)
    return turns(ours, gather)


def measure_shared(kv: KVCache, requests: int, length: int, threads: int) -> list[float]:
    """Median seconds of (cascade, flat) for decodes that share `length` positions of 64 more."""
    each, own = length // PAGE, 64 // PAGE
    pages = random.sample(range(1, kv.num_pages), each + requests * own)
    tables = [pages[:each] + pages[each + r * own :][:own] for r in range(requests)]
    q = torch.randn(requests, HEADS, DIM)
    batch = AttentionBatch.from_requests(tables, [length + 60] * requests, [1] * requests, PAGE)
    ways = []
    for cascade in (True, False):
        backend = make_backend("cpu", CONFIG, threads=threads, cascade=cascade)
        backend.plan(batch)
        ways.append(lambda turn, backend=backend: backend.run(turn % LAYERS, q, kv))
    torch.testing.assert_close(ways[0](0), ways[1](0), rtol=1e-3, atol=1e-4)
    return turns(*ways)


def ceilings(kv: KVCache) -> tuple[float, float]:
    """Bytes a second that torch sums up, and operations a second of its product of matrices."""
    pool = kv.k(0)
    square = torch.randn(1024, 1024)
    read, product = turns(lambda _: pool.sum(), lambda _: square @ square)
    return pool.nbytes / read, 2 * 1024**3 / product


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    kv = KVCache(LAYERS, 9000, PAGE, KV_HEADS, DIM)
    for layer in range(LAYERS):
        kv.k(layer).normal_()
        kv.v(layer).normal_()
    read, product = ceilings(kv)
    console = Console()
    console.print(f"{threads} threads read {read / 1e9:.1f} GB/s, do {product / 1e9:.0f} GFLOP/s")
    table = Table(title="attention of one layer")
    for column in ("requests", "rows", "positions", "cpu, us", "GB/s", "GFLOP/s", "gather, us"):
        table.add_column(column, justify="right")
    table.add_column("ratio", justify="right", style="bold")
    for requests, rows, length in DECODES + CHUNKS:
        ours, theirs = measure(kv, requests, rows, length, threads)
        size = requests * length * KV_HEADS * DIM * 2 * 4
        work = 4 * requests * rows * HEADS * DIM * (length - (rows - 1) / 2)
        table.add_row(
            *map(str, (requests, rows, length)),
            *(f"{ours * 1e6:.0f}", f"{size / ours / 1e9:.1f}", f"{work / ours / 1e9:.0f}"),
            *(f"{theirs * 1e6:.0f}", f"{theirs / ours:.1f}"),
        )
    console.print(table)
    table = Table(title="decodes under a shared prefix, one layer")
    for column in ("requests", "shared", "cascade, us", "flat, us"):
        table.add_column(column, justify="right")
    table.add_column("ratio", justify="right", style="bold")
    for requests in (8, 32, 128):
        for length in (512, 2048, 8192):
            once, each = measure_shared(kv, requests, length, threads)
            table.add_row(
                *map(str, (requests, length)), f"{once * 1e6:.0f}", f"{each * 1e6:.0f}",
                f"{each / once:.1f}",
            )  # fmt: skip
    console.print(table)


if __name__ == "__main__":
    main()
