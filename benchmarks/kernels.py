"""Paged attention on CPU: the `cpu` backend beside gathering the pages for torch's attention.

    python benchmarks/kernels.py [--threads 2] [--only reach gather cascade kinds]

Shapes are the demo model's (9 query and 3 KV heads of 64, pages of 16), pages lie in random order,
and layers take turns or follow one another, as in a model. Ways run in turn on the same batch; read
the ratios of their times, each the best of many, since other processes slow most calls down. With
one thread they are that thread's own, which others move least. Tables:

    reach    bytes a second of decodes, beside what torch reads in the same turns
    gather   the `cpu` backend beside torch's attention over gathered pages
    cascade  decodes under a shared prefix that is read once, beside each reading it
    kinds    decodes over a cache in bfloat16 and int8, beside float32
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable
from itertools import product

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # as the core process does; before torch is loaded

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as attention

from boughs.kernels.backend import AttentionConfig
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.choice import make_backend
from boughs.kernels.kv_cache import KVCache

HEADS, KV_HEADS, DIM, PAGE, LAYERS = 9, 3, 64, 16, 4
CONFIG = AttentionConfig(HEADS, KV_HEADS, DIM, PAGE)
PAGES = 11000  # 1 GiB and more, as a server's pool is
ROUNDS, SECONDS = 9, 1.0

# Requests, rows of each, positions that the last row sees.
DECODES = [(b, 1, length) for b in (1, 8, 32) for length in (128, 512, 1024, 4096)]
CHUNKS = [(1, 8, 2056), (1, 32, 2080), (1, 256, 256), (1, 256, 2304), (8, 32, 1024)]


def filled(dtype: torch.dtype, pages: int) -> KVCache:
    """A cache whose pages all hold random numbers."""
    kv = KVCache(LAYERS, pages, PAGE, KV_HEADS, DIM, dtype)
    slots = torch.arange(pages * PAGE)
    for layer in range(LAYERS):
        kv.write(layer, slots, *torch.randn(2, len(slots), KV_HEADS, DIM))
    return kv


def turns(*ways: Callable[[int], object]) -> list[float]:
    """The least seconds of each way. They take turns, and get the number of the turn."""
    times: list[list[float]] = [[] for _ in ways]
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begun = time.perf_counter()
    turn = 0
    while turn < ROUNDS or time.perf_counter() - begun < SECONDS:
        for way, taken in zip(ways, times, strict=True):
            started = clock()
            way(turn)
            taken.append(clock() - started)
        turn += 1
    return [min(taken) for taken in times]


def measure(kv: KVCache, requests: int, rows: int, length: int, threads: int) -> list[float]:
    """Seconds of (cpu, gather) for `requests` of `rows` queries over `length` positions."""
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
    """Seconds of (cascade, flat) for decodes that share `length` positions of 64 more."""
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


def decode(
    kv: KVCache, requests: int, length: int, threads: int, *, in_order: bool = False
) -> Callable[[int], None]:
    """A decode of `requests` rows over `length` positions each, in all layers."""
    each = -(-length // PAGE)
    pages = random.sample(range(1, kv.num_pages), requests * each)
    if in_order:
        pages = list(range(1, 1 + requests * each))
    tables = [pages[r * each : (r + 1) * each] for r in range(requests)]
    q = torch.randn(requests, HEADS, DIM)
    backend = make_backend("cpu", CONFIG, threads=threads, kv_dtype=kv.dtype)
    backend.plan(AttentionBatch.from_requests(tables, [length] * requests, [1] * requests, PAGE))

    def ours(turn: int) -> None:  # noqa: ARG001
        for layer in range(LAYERS):
            backend.run(layer, q, kv)

    return ours


def reach(kv: KVCache, threads: int) -> Table:
    """How much of the bandwidth that torch reads at decodes get."""
    pool = torch.randn(48 << 20)
    table = Table(title="decodes of one layer, float32; pages in random order, and one by one")
    for column in ("requests", "positions", "us", "GB/s", "torch reads, GB/s", "share", "in order"):
        table.add_column(column, justify="right")
    for requests, length in product((1, 8), (512, 4096, 16384)):
        ours = [decode(kv, requests, length, threads, in_order=order) for order in (False, True)]
        *taken, theirs = turns(*ours, lambda _: pool.sum())
        size = LAYERS * requests * length * KV_HEADS * DIM * 2 * 4
        most = pool.nbytes / theirs / 1e9
        read, in_order = (size / seconds / 1e9 for seconds in taken)
        table.add_row(
            *map(str, (requests, length)), f"{taken[0] / LAYERS * 1e6:.0f}", f"{read:.1f}",
            f"{most:.1f}", f"{read / most:.0%}", f"{in_order / most:.0%}",
        )  # fmt: skip
    return table


def kinds(kv: KVCache, threads: int) -> Table:
    """Decodes over narrower caches beside float32."""
    caches = [kv, *(filled(dtype, kv.num_pages) for dtype in (torch.bfloat16, torch.int8))]
    table = Table(title="decodes of one layer by what the cache holds, us (times faster)")
    for column in ("requests", "positions", "float32", "bfloat16", "int8"):
        table.add_column(column, justify="right")
    for requests, length in product((1, 8), (512, 4096, 16384)):
        taken = turns(*(decode(cache, requests, length, threads) for cache in caches))
        wide, *narrow = (seconds / LAYERS for seconds in taken)
        cells = [f"{wide * 1e6:.0f}", *(f"{x * 1e6:.0f} ({wide / x:.2f})" for x in narrow)]
        table.add_row(*map(str, (requests, length)), *cells)
    sizes = [KVCache.bytes_per_page(1, 1, KV_HEADS, DIM, cache.dtype) for cache in caches]
    table.add_row("", "bytes", *(f"{size} ({sizes[0] / size:.2f})" for size in sizes))
    return table


def ceilings(kv: KVCache) -> tuple[float, float]:
    """Bytes a second that torch sums up, and operations a second of its product of matrices."""
    pool = kv.k(0)
    square = torch.randn(1024, 1024)
    read, multiply = turns(lambda _: pool.sum(), lambda _: square @ square)
    return pool.nbytes / read, 2 * 1024**3 / multiply


def gather(kv: KVCache, threads: int) -> Table:
    """The backend beside torch's attention over gathered pages."""
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
    return table


def cascade(kv: KVCache, threads: int) -> Table:
    """Decodes under a prefix that is read once, beside each reading it."""
    table = Table(title="decodes under a shared prefix, one layer")
    for column in ("requests", "shared", "cascade, us", "flat, us"):
        table.add_column(column, justify="right")
    table.add_column("ratio", justify="right", style="bold")
    for requests, length in product((8, 32, 128), (512, 2048, 8192)):
        once, each = measure_shared(kv, requests, length, threads)
        table.add_row(
            *map(str, (requests, length)), f"{once * 1e6:.0f}", f"{each * 1e6:.0f}",
            f"{each / once:.1f}",
        )  # fmt: skip
    return table


TABLES = {"reach": reach, "gather": gather, "cascade": cascade, "kinds": kinds}


@torch.inference_mode()
def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kv = filled(torch.float32, PAGES)
    read, multiply = ceilings(kv)
    console = Console()
    console.print(
        f"{args.threads} threads read {read / 1e9:.1f} GB/s, do {multiply / 1e9:.0f} GFLOP/s"
    )
    for name in args.only:
        console.print(TABLES[name](kv, args.threads))


if __name__ == "__main__":
    main()
