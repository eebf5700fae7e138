"""Compile before a first start what it would compile; what is kept on disk is all that this leaves.

    python -m boughs.kernels.ahead int4 int8 --cache float32

compiles linear layers of these number formats, small kernels, and attention over a cache of this
dtype. To do so in a process beside the first start's own was tried: it saved 8 % of the time on two
idle cores and cost as much on busy ones, since attention alone is two thirds. This module knows no
model.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import numpy as np
import torch

from . import attend, bitmask, row_calls
from .elements import ELEMENTS
from .flashinfer_limits import name_of
from .linear import Linear
from .merge import merge_parts
from .paged import run_pieces
from .products import KINDS
from .weight import GROUP, Kind, quantize
from .workers import Workers


def compile_layers(kinds: Iterable[Kind]) -> None:
    """Compile, or load from disk, linear layers in some number formats and what goes with them."""
    workers = Workers(1)
    for kind in kinds:
        Linear(quantize(np.zeros((1, GROUP), np.float32), kind), None, workers)
    for small in (row_calls.norm, row_calls.gate, bitmask.forbid, bitmask.best_allowed):
        small()


def compile_attention(dtype: torch.dtype) -> None:
    """Compile, or load from disk, attention over a cache of a dtype."""
    run_pieces(dtype)
    merge_parts()
    row_calls.rotate(dtype)
    attend.attend(dtype)
    attend.merge()
    attend.reorder()


def main() -> None:
    """Compile what the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="+", choices=KINDS)
    parser.add_argument("--cache", choices=[name_of(dtype) for dtype in ELEMENTS])
    args = parser.parse_args()
    compile_layers(args.kinds)
    if args.cache:
        compile_attention(getattr(torch, args.cache))


if __name__ == "__main__":
    main()
