"""What a position of a KV head takes in a piece of attention, in both of its forms.

    python benchmarks/pieces.py [--kv-heads 3] [--group 3] [--dim 64] [--kind float32]

One thread computes 1,024 positions of all KV heads for more and more query vectors, in the form of
a decode (`few`) and in that of a prefill (`many`). The constants READ, COMPUTE, WIDEN, MULTIPLY of
`kernels/cut.py` and FEW of `kernels/paged.py` are lines through these numbers. Times are those of
the thread, the best of many: other processes move them less than a clock's would be.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from rich.console import Console
from rich.table import Table

from boughs.kernels.few import compute_few
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.many import compute_many
from boughs.kernels.paged import EVERYTHING

POSITIONS, PAGE, ROUNDS = 1024, 16, 12
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@njit(nogil=True, error_model="numpy")
def few(pieces, q, k, v, ks, vs, pages, out, parts):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Compute pieces in the form of a decode."""
    one, none = np.float32(1), np.float32(0)
    for piece in pieces:
        rows = q[piece[1] : piece[2]]
        compute_few(piece, rows, k, v, ks, vs, pages, EVERYTHING, one, none, out, parts)


@njit(nogil=True, error_model="numpy")
def many(pieces, q, k, v, ks, vs, pages, out, parts):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Compute pieces in the form of a prefill."""
    one, none = np.float32(1), np.float32(0)
    for piece in pieces:
        rows = q[piece[1] : piece[2]]
        compute_many(piece, rows, k, v, ks, vs, pages, EVERYTHING, one, none, out, parts)


def best(way: Callable[..., None], *arguments: Any) -> float:
    """The least seconds of this thread that a call takes, once it is compiled."""
    way(*arguments)
    taken = []
    for _ in range(ROUNDS):
        started = time.thread_time()
        way(*arguments)
        taken.append(time.thread_time() - started)
    return min(taken)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--group", type=int, default=3)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--kind", choices=("float32", "bfloat16", "int8"), default="float32")
    args = parser.parse_args()
    heads, group, dim = args.kv_heads, args.group, args.dim
    count = POSITIONS // PAGE
    kv = KVCache(1, count, PAGE, heads, dim, getattr(torch, args.kind))
    kv.write(0, torch.arange(POSITIONS), *torch.randn(2, POSITIONS, heads, dim))
    pages = np.random.default_rng(0).permutation(count).astype(np.int32)
    table = Table(title=f"nanoseconds of a position and KV head, {args.kind} of {dim}")
    for column in ("query vectors", "few", "many"):
        table.add_column(column, justify="right")
    for rows in ROWS:
        q = torch.randn(rows, heads * group, dim).numpy()
        out, parts = np.empty_like(q), np.empty((rows * heads * group, dim + 2), np.float32)
        ends = (0, POSITIONS, POSITIONS)
        whole = np.array([[0, 0, rows, 0, heads, *ends, 0]], np.int32)
        by_head = [[0, 0, rows, h, h + 1, *ends, h * rows * group] for h in range(heads)]
        split = np.array(by_head, np.int32)
        taken = [
            best(form, pieces, q, *kv.arrays(0), pages, out, parts)
            for form, pieces in ((few, whole), (many, split))
        ]
        each = [f"{seconds * 1e9 / POSITIONS / heads:.1f}" for seconds in taken]
        table.add_row(str(rows * group), *each)
    Console().print(table)


if __name__ == "__main__":
    main()
