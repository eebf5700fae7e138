"""Linear layers by rows and number format, beside torch's in float32.

    python benchmarks/linear.py [--threads 2] [--rows 1 8 32 256]

Shapes are the demo model's: 30 layers, and the head. Layers take turns, as in a step, so that small
caches are cold; ways take turns too. A number is the sum over all layers of the best time that one
of their shape took, since other processes slow most calls down; read the ratios. `int4` has its
head in int8, as the demo model's file has it. GB/s are the weights' bytes by the time at one row;
above the table stands what torch reads and multiplies in the same run, and below it what a start
measures for itself.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import asdict, fields

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # as the core process does; before torch is loaded

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import linear

from boughs.kernels.layer_costs import LayerCosts
from boughs.kernels.linear import Linear
from boughs.kernels.measure_layers import measure as measure_costs
from boughs.kernels.weight import Kind, quantize
from boughs.kernels.workers import Workers

LAYERS = 30
SHAPES = {(960, 576): LAYERS, (576, 576): LAYERS, (3072, 576): LAYERS, (576, 1536): LAYERS}
HEAD = (49152, 576)
KINDS: tuple[Kind, ...] = ("float32", "bfloat16", "int8", "int4")
SECONDS = 1.5

Layer = Callable[[Tensor], Tensor]


def plain(shape: tuple[int, int]) -> tuple[Layer, int]:
    """torch's layer, and its bytes."""
    weight = torch.randn(shape)
    return (lambda x: linear(x, weight)), weight.nbytes


def packed(shape: tuple[int, int], kind: Kind, workers: Workers) -> tuple[Layer, int]:
    """Our layer, and its bytes."""
    layer = Linear(quantize(torch.randn(shape).numpy(), kind), None, workers)
    return layer, layer.nbytes


def best(layers: list[Layer], x: Tensor) -> float:
    """The least seconds that one of the layers takes."""
    taken = []
    for layer in layers:
        started = time.perf_counter()
        layer(x)
        taken.append(time.perf_counter() - started)
    return min(taken)


def measure(ways: dict[str, list[Layer]], rows: int, inputs: int) -> dict[str, float]:
    """The least seconds of one layer of each way, which take turns."""
    x = torch.randn(rows, inputs)
    found = dict.fromkeys(ways, float("inf"))
    begun, turns = time.perf_counter(), 0
    while turns < 3 or time.perf_counter() - begun < SECONDS:
        for name, layers in ways.items():
            found[name] = min(found[name], best(layers, x))
        turns += 1
    return found


def ceilings() -> tuple[float, float]:
    """Bytes a second that torch sums up, and operations a second of its product of matrices."""
    pool, square = torch.randn(64 << 20), torch.randn(1024, 1024)
    read = min(best([torch.sum], pool) for _ in range(9))
    product = min(best([lambda x: x @ x], square) for _ in range(9))
    return pool.nbytes / read, 2 * 1024**3 / product


@torch.inference_mode()
def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 256])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    workers = Workers(args.threads)
    read, product = ceilings()
    console = Console()
    console.print(f"{args.threads} threads: {read / 1e9:.1f} GB/s, {product / 1e9:.0f} GFLOP/s")
    names = ["torch", *KINDS]
    totals = {rows: dict.fromkeys(names, 0.0) for rows in args.rows}
    sizes = dict.fromkeys(names, 0)
    for shape, count in [*SHAPES.items(), (HEAD, 1)]:
        ways: dict[str, list[Layer]] = {}
        for name in names:
            kind: Kind = "int8" if shape == HEAD and name == "int4" else name  # type: ignore[assignment]
            made = [
                plain(shape) if name == "torch" else packed(shape, kind, workers)
                for _ in range(count)
            ]
            ways[name] = [layer for layer, _ in made]
            sizes[name] += sum(size for _, size in made)
        for rows, total in totals.items():
            for name, seconds in measure(ways, rows, shape[1]).items():
                total[name] += count * seconds
    table = Table(title="all linear layers of a step, ms (times faster than torch)")
    table.add_column("rows", justify="right")
    for name in names:
        table.add_column(name, justify="right")
    for rows, total in totals.items():
        cells = [f"{total['torch'] * 1e3:.1f}"]
        cells += [f"{total[k] * 1e3:.1f} ({total['torch'] / total[k]:.1f})" for k in KINDS]
        table.add_row(str(rows), *cells)
    few = totals[min(totals)]
    table.add_row("GB/s", *(f"{sizes[name] / few[name] / 1e9:.1f}" for name in names))
    table.add_row("MB", *(f"{sizes[name] / 1e6:.0f}" for name in names))
    console.print(table, measured())


def measured() -> Table:
    """What a start measures of each kind, by which calls are cut into tasks."""
    table = Table(title="costs of linear layers on this machine, ns")
    for column in ("", *(field.name for field in fields(LayerCosts))):
        table.add_column(column, justify="right")
    for kind in KINDS:
        table.add_row(kind, *(f"{value:.3f}" for value in asdict(measure_costs(kind)).values()))
    return table


if __name__ == "__main__":
    main()
