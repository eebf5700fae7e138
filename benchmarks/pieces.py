"""What a position of a KV head takes in a piece of attention, in both of its forms.

    python benchmarks/pieces.py [--kv-heads 3] [--group 3] [--dim 64] [--kind float32]

One thread computes some positions of all KV heads for more and more query vectors, in the form of a
decode (`few`) and in that of a prefill (`many`). FEW of `kernels/paged.py` is where these lines
meet; below stand the costs that a start measures on this machine (`kernels/costs.py`), by which a
plan chooses what to share. Times are those of the thread, the best of many: other processes move
them less than a clock's would be.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

import torch
from numba import njit
from rich.console import Console
from rich.table import Table

from boughs.kernels.backend import AttentionConfig
from boughs.kernels.costs import DEFAULT, Costs, Sample, best, measure
from boughs.kernels.few import compute_few
from boughs.kernels.many import compute_many

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@njit(nogil=True, error_model="numpy")
def few(pieces, first, end, q, k, v, ks, vs, _, pages, window, scale, cap, out, parts):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Compute pieces in the form of a decode."""
    for piece in pieces[first:end]:
        rows = q[piece[1] : piece[2]]
        compute_few(piece, rows, k, v, ks, vs, pages, window, scale, cap, out, parts)


@njit(nogil=True, error_model="numpy")
def many(pieces, first, end, q, k, v, ks, vs, _, pages, window, scale, cap, out, parts):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Compute pieces in the form of a prefill."""
    for piece in pieces[first:end]:
        rows = q[piece[1] : piece[2]]
        compute_many(piece, rows, k, v, ks, vs, pages, window, scale, cap, out, parts)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--group", type=int, default=3)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--kind", choices=("float32", "bfloat16", "int8"), default="float32")
    args = parser.parse_args()
    heads, group, dim = args.kv_heads, args.group, args.dim
    config, dtype = AttentionConfig(heads * group, heads, dim, 16), getattr(torch, args.kind)
    sample, found = Sample(config, dtype), measure(config, dtype)
    table = Table(
        title=f"nanoseconds of a position and KV head, {args.kind} of {dim} (as costs say)"
    )
    for column in ("query vectors", "few", "many"):
        table.add_column(column, justify="right")
    for rows in ROWS:
        cells = []
        for way, by_head in ((few, False), (many, True)):
            taken = best(way, *sample.arguments(rows, by_head=by_head))
            said = found.position(rows * group, dim, few=not by_head)
            cells.append(f"{taken / sample.positions / heads:.1f} ({said:.1f})")
        table.add_row(str(rows * group), *cells)
    Console().print(table, costs(found))


def costs(found: Costs) -> Table:
    """What was measured, beside what holds where nothing is."""
    table = Table(title="costs of attention on this machine")
    for column in ("", "measured", "default"):
        table.add_column(column, justify="right")
    for (name, value), default in zip(asdict(found).items(), asdict(DEFAULT).values(), strict=True):
        table.add_row(name, f"{value:.0f}", f"{default:.0f}")
    return table


if __name__ == "__main__":
    main()
