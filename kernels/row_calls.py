"""The small kernels of a layer as calls of a program: norm, rotation, gated activation.

Each is about rows of the program's memory, where a buffer of so many floats a row begins `offset`
floats a row behind the start. What a row gives depends on that row alone. This module knows no
weight of a linear layer and no attention.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from .calls import Words, callable_by_address, elements_at, floats_at, rows_at, words_at
from .compiled import Callee, compiled, sources
from .elements import ELEMENTS
from .emit import LANES
from .lanes import GELU_TANH, SILU, activate, sum_squares
from .store import STORES
from .weight import Floats

(
    ROWS, MEMORY, SLOTS, KEYS, VALUES, PLANE, KEY_SCALES, VALUE_SCALES, SCALE_PLANE, STEP,
) = range(10)  # fmt: skip
"""Words of a step: T; addresses of the program's memory, of the slots, of the keys and values of
the first layer; bytes from one layer's to the next; the same of their scales, and their bytes. From
STEP on a program has words of its own."""

PLACES = 15
"""Word of attention's record: address of where each row's queries go, or 0; see `attend`."""

GATES = {"silu": SILU, "gelu_new": GELU_TANH, "gelu_pytorch_tanh": GELU_TANH}
"""The activations that there is a kernel for, under transformers' names."""


@compiled
def buffer_at(step: Words, offset: int, width: int) -> Floats:
    """[T, width] of the program's memory."""
    return rows_at(step[MEMORY] + 4 * step[ROWS] * offset, step[ROWS], width)


@cache
def norm() -> Any:
    """RMS norm, behind a sum if there is something to add.

    args: offset of x; offset of what is added to x first, -1 for nothing; offset of the result;
    width; address of float32 [width + 1]: the weight, then epsilon.
    """
    version = sources()

    def run(args: Words, step: Words, task: int, tasks: int) -> None:
        version  # noqa: B018 -- see `callable_by_address`
        width = args[3]
        x, out = buffer_at(step, args[0], width), buffer_at(step, args[2], width)
        weight = floats_at(args[4], width + 1)
        for i in range(len(x) * task // tasks, len(x) * (task + 1) // tasks):
            row, made = x[i], out[i]
            if args[1] >= 0:
                more = buffer_at(step, args[1], width)[i]
                for j in range(width):
                    row[j] += more[j]
            scale = _inverse_root(row, 0, width, weight[width])
            for j in range(width):
                made[j] = row[j] * scale * weight[j]

    return callable_by_address(run)


@compiled
def _inverse_root(x: Floats, start: int, width: int, eps: float) -> float:
    mean = sum_squares(x, start, width) / np.float32(width)
    scale: float = np.float32(1) / np.sqrt(mean + eps)
    return scale


@cache
def rotate(kv_dtype: torch.dtype) -> Any:
    """Norm and rotation of queries and keys; keys and values go into a cache of that dtype.

    args: offset and width of a buffer of queries, keys and values; H, K, D; how many elements of a
    head are rotated; word of the step that holds the address of cosines and sines
    [2, T, rotated / 2]; the layer; address of float32 [(H + K) D + 1], the weight of a norm of
    every head and epsilon, or 0; offset of the queries [T, H D] that are made; word of the step
    that holds the address of attention's record.
    """
    version, kind = sources(), ELEMENTS[kv_dtype]
    store = Callee(STORES[kv_dtype], kv_dtype)
    stored_at = Callee(elements_at(kind.stored), kv_dtype)
    width, scaled = kind.stored.bitwidth // 8, int(kind.scaled)

    def run(args: Words, step: Words, task: int, tasks: int) -> None:
        version  # noqa: B018 -- see `callable_by_address`
        rows = buffer_at(step, args[0], args[1])
        heads, kv_heads, dim = args[2], args[3], args[4]
        half = args[5] // 2
        angles = rows_at(step[args[6]], 2 * len(rows), half)
        slots, queries = words_at(step[SLOTS], len(rows)), buffer_at(step, args[9], heads * dim)
        places = words_at(step[args[10]], PLACES + 1)[PLACES]
        turned, size = (heads + kv_heads) * dim, kv_heads * dim
        for i in range(len(rows) * task // tasks, len(rows) * (task + 1) // tasks):
            row, cos, sin = rows[i], angles[i], angles[len(rows) + i]
            for start in range(0, turned, dim):
                if args[8]:
                    weight = floats_at(args[8], turned + 1)
                    scale = _inverse_root(row, start, dim, weight[turned])
                    for j in range(start, start + dim):
                        row[j] = row[j] * scale * weight[j]
                for j in range(half):
                    a, b = row[start + j], row[start + half + j]
                    row[start + j] = a * cos[j] - b * sin[j]
                    row[start + half + j] = b * cos[j] + a * sin[j]
            place = words_at(places, len(rows))[i] if places else i
            for j in range(heads * dim):
                queries[place, j] = row[j]
            shift = args[7] * step[PLANE] + slots[i] * size * width
            scales = args[7] * step[SCALE_PLANE] + slots[i] * kv_heads * 4
            for start, to, scale in (
                (heads * dim, step[KEYS], step[KEY_SCALES]),
                (turned, step[VALUES], step[VALUE_SCALES]),
            ):
                store(
                    row[start : start + size], stored_at(to + shift, (size,)),
                    floats_at(scale + scales, kv_heads * scaled), dim,
                )  # fmt: skip

    return callable_by_address(run)


@cache
def gate() -> Any:
    """The activation of the first half of a buffer times the second half.

    args: offset of the buffer; its width; offset of the result, half as wide; which of GATES.
    """
    version = sources()

    def run(args: Words, step: Words, task: int, tasks: int) -> None:
        version  # noqa: B018 -- see `callable_by_address`
        width = args[1] // 2
        x, out = buffer_at(step, args[0], args[1]), buffer_at(step, args[2], width)
        flat, made = x.reshape(-1), out.reshape(-1)
        for i in range(len(x) * task // tasks, len(x) * (task + 1) // tasks):
            for j in range(0, width, LANES):
                activate(args[3], flat, i * args[1] + j, width, made, i * width + j)

    return callable_by_address(run)
