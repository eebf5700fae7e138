"""Masks of one bit a token, applied to logits where they lie.

A mask is uint32 [words]: bit `i % 32` of word `i // 32` says whether token `i` is allowed. This
module knows neither grammars nor what is sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numba import float32, int64, uint32
from numpy.typing import NDArray
from torch import Tensor

from .compiled import compiled, entry_point, sources
from .lanes import most_allowed

Bits = NDArray[np.uint32]
Floats = NDArray[np.float32]

BLOCK = 32
"""Words of a mask of which the best token is looked for only where it is the best so far."""


def pack(allowed: NDArray[np.bool_]) -> Bits:
    """The mask of a bool [vocab]."""
    raw = np.packbits(allowed, bitorder="little")
    return np.pad(raw, (0, -len(raw) % 4)).view(np.uint32)


def unpack(bits: Bits, vocab: int) -> NDArray[np.bool_]:
    """A mask as bool [vocab]."""
    return np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab].view(bool)


def expand(bits: Bits, vocab: int, device: torch.device) -> Tensor:
    """Masks [..., words] as bool [..., vocab] on a device, to which only the bits are copied."""
    words = torch.from_numpy(bits.view(np.int32)).to(device)
    places = torch.arange(32, dtype=torch.int32, device=device)
    return ((words[..., None] >> places) & 1).bool().flatten(-2)[..., :vocab]


@cache
def forbid() -> Callable[..., None]:
    """Compile, or load from disk, the function that gives forbidden tokens minus infinity.

    Its arguments:
        logits: float32 [vocab]; changed in place.
        bits: uint32 [words].
    """
    version = sources()

    def run(logits: Floats, bits: Bits) -> None:
        version  # noqa: B018 -- see `entry_point`
        for word in range(len(bits)):
            b = bits[word]
            if b != np.uint32(0xFFFFFFFF):
                for token in range(word * 32, min(word * 32 + 32, len(logits))):
                    if not (b >> np.uint32(token % 32)) & np.uint32(1):
                        logits[token] = -np.inf

    return entry_point(run, float32[::1], uint32[::1])


@compiled
def _allows(bits: Bits, token: int) -> bool:
    return bool((bits[token >> 5] >> np.uint32(token & 31)) & np.uint32(1))


@cache
def best_allowed() -> Callable[..., None]:
    """Compile, or load from disk, the function that finds the best allowed token of some rows.

    Its arguments:
        logits: float32 [rows, vocab].
        rows: int64 [masks]; the row of each mask.
        bits: uint32 [masks, words].
        tokens: int64 [masks]; gets the allowed token with the highest logit, the first of equals;
            -1 where that is infinite, or one of the allowed is no number.
    """
    version = sources()

    def run(logits: Floats, rows: NDArray[np.int64], bits: Bits, tokens: NDArray[np.int64]) -> None:
        version  # noqa: B018 -- see `entry_point`
        vocab = logits.shape[1]
        whole = vocab // 32  # words each of whose bits is a token's
        for i in range(len(rows)):
            row, own, best, place = logits[rows[i]], bits[i], np.float32(-np.inf), 0
            for word in range(0, whole, BLOCK):
                top = most_allowed(row, word * 32, own, word, min(BLOCK, whole - word))
                if top > best:
                    best, place = top, word * 32
            for token in range(whole * 32, vocab):
                if _allows(own, token) and not row[token] <= best:
                    best, place = row[token] if row[token] < np.inf else np.float32(np.inf), token
            tokens[i] = -1
            if abs(best) < np.inf:
                while row[place] != best or not _allows(own, place):
                    place += 1
                tokens[i] = place

    return entry_point(run, float32[:, ::1], int64[::1], uint32[:, ::1], int64[::1])
