"""The costs of linear layers on this machine, measured once for each number format.

This module knows no model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from . import tables
from .calls import Words
from .costs import best
from .layer_costs import LayerCosts
from .linear import Linear
from .team import LINE, run_tasks
from .weight import Floats, Kind, quantize
from .workers import Workers

SIZE, ROWS = 1024, 16
"""Inputs and outputs of the layer that is measured, and the rows with which it is beside one."""

ROUNDS, OTHERS = 9, 64 << 20
"""Times that it is, and bytes that are read before each: a step reads a whole model before it comes
to a layer again, so that no cache holds that."""


def load(kind: Kind, folder: Path | None) -> tuple[LayerCosts, str]:
    """The costs of layers of a kind, and where they are from, in words; see `tables.keep`."""
    return tables.keep(f"linear-{kind}", LayerCosts, lambda: measure(kind), folder)


def measure(kind: Kind) -> LayerCosts:
    """Measure the costs of layers of a kind; takes some tenths of a second."""
    weight = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    layer = Linear(quantize(weight, kind), None, Workers(1))
    others = np.ones(OTHERS // 4, np.float32)
    one, many = (_taken(layer, rows, others) for rows in (1, ROWS))
    compute = (many[-1] - one[-1]) / (ROWS - 1) / weight.size
    found = {"compute": compute, "read": one[-1] / weight.size - compute}
    if len(many) > 1:
        found["encode"] = many[0] / ROWS / SIZE
    return tables.clamp(LayerCosts, found)


def _taken(layer: Linear, rows: int, others: Floats) -> list[float]:
    """Nanoseconds that each call of a layer takes for so many rows."""
    *first, product = layer.calls(0, SIZE, 2 * SIZE)
    memory = np.random.default_rng(0).standard_normal(rows * 3 * SIZE, np.float32)
    step = np.array([rows, memory.ctypes.data])
    run, once = run_tasks(), np.ones(1, np.int64)

    def compute(call: Any, args: Words, _: object) -> None:
        place = np.array([[call.address, args.ctypes.data]])
        run(place, once, step, np.zeros((1, 2, LINE), np.int64))

    taken = [best(compute, *call, rounds=ROUNDS) for call in first]  # rows are not far in a step
    return [*taken, best(compute, *product, rounds=ROUNDS, before=others.sum)]
