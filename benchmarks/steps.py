"""A decode of all layers of the demo model: as one list of compiled calls, and layer by layer.

    GOMP_SPINCOUNT=0 python benchmarks/steps.py [--model smollm2-135m] [--threads 2]

Over a cache of each kind. Ways run in turn on the same rows; read the ratios of their times, each
the best of many, since other processes slow most steps down. The head is left out.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Callable

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # as the core process does; before torch is loaded

import torch
from rich.console import Console
from rich.table import Table

from boughs.kernels.batch import AttentionBatch
from boughs.kernels.choice import make_backend
from boughs.kernels.elements import ELEMENTS
from boughs.kernels.kv_cache import KVCache
from boughs.runtime.models.layers import PackedMaker
from boughs.runtime.models.load import load_model
from boughs.runtime.models.model import Model
from boughs.runtime.models.store import resolve

PAGE, ROUNDS = 16, 25
SHAPES = [(1, 128), (1, 2048), (8, 128), (8, 2048)]  # requests, positions of each


def step(
    model: Model, kv_dtype: torch.dtype, threads: int, requests: int, length: int
) -> Callable[[], object]:
    """A decode of so many requests, the last of `length` positions each, ready to be run."""
    shape = model.config
    each = -(-length // PAGE)
    sizes = (PAGE, shape.num_kv_heads, shape.head_dim, kv_dtype)
    kv = KVCache(shape.num_layers, requests * each + 1, *sizes)
    slots = torch.arange(kv.num_pages * PAGE)
    for layer in range(shape.num_layers):
        kv.write(layer, slots, *torch.randn(2, len(slots), shape.num_kv_heads, shape.head_dim))
    pages = random.Random(0).sample(range(1, kv.num_pages), requests * each)
    tables = [pages[r * each : (r + 1) * each] for r in range(requests)]
    attention = make_backend("cpu", shape.attention(PAGE), threads=threads, kv_dtype=kv_dtype)
    batch = AttentionBatch.from_requests(tables, [length] * requests, [1] * requests, PAGE)
    row = (length - 1) % PAGE
    last = torch.tensor([table[-1] * PAGE + row for table in tables])
    positions = torch.full((requests,), length - 1)
    ids = torch.arange(100, 100 + requests)

    def run() -> object:
        attention.plan(batch)
        return model.forward(ids, positions, last, kv, attention)

    return run


def best(ways: list[Callable[[], object]]) -> list[float]:
    """The least seconds of each way. They take turns."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(ROUNDS):
        for way, taken in zip(ways, times, strict=True):
            started = time.perf_counter()
            way()
            taken.append(time.perf_counter() - started)
    return [min(taken) for taken in times]


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = resolve(args.model)

    def load(kv_dtype: torch.dtype | None) -> Model:
        return load_model(folder, maker=PackedMaker("auto", args.threads), kv_dtype=kv_dtype)

    layers, programs = load(None), {kind: load(kind) for kind in ELEMENTS}
    table = Table(title=f"ms of a decode, {args.threads} threads")
    for name in ("requests", "positions", "cache", "layer by layer", "calls", "times faster"):
        table.add_column(name, justify="right")
    for shape in SHAPES:
        ways = [
            step(model, kind, args.threads, *shape)
            for kind, program in programs.items()
            for model in (layers, program)
        ]
        found = best(ways)
        for kind, before, after in zip(ELEMENTS, found[::2], found[1::2], strict=True):
            table.add_row(
                *map(str, shape),
                str(kind).removeprefix("torch."),
                *(f"{1e3 * seconds:.1f}" for seconds in (before, after)),
                f"{before / after:.2f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
