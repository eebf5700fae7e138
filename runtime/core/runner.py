"""The model with its KV cache: from a step to logits.

Builds the batch's tensors, carries out the copy orders, runs the model, and reads off the logits
of the rows that are asked for. This module decides nothing about requests.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from boughs.kernels.backend import make_backend
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.kv_cache import KVCache
from boughs.lang.errors import InvalidRequest
from boughs.runtime.config import EngineConfig, parse_bytes
from boughs.runtime.core.step import Step, Work
from boughs.runtime.models.load import load_model

DTYPES = {"float32": torch.float32}
KV_SHARE = 0.4
KV_MOST = 8 << 30


class Runner(Protocol):
    """What the core needs of a model: its sizes, and the way from a step to logits."""

    vocab_size: int
    context_length: int
    num_pages: int
    eos_token_ids: tuple[int, ...]
    attention_name: str

    def forward(self, step: Step) -> Tensor:
        """Compute the step's tokens; hidden states [step.tokens, hidden] of all of them."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """The logits [rows, vocab], float32, of hidden states [rows, hidden]."""
        ...


class ModelRunner:
    """A loaded model and the memory of its pages.

    Args:
        config: The engine's settings.
        folder: The model's folder.
    """

    def __init__(self, config: EngineConfig, folder: Path) -> None:
        threads = config.threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(threads)
        dtype = DTYPES[config.dtype]
        self.model = load_model(folder, dtype, config.context_length)
        model = self.model.config
        self.vocab_size = model.vocab_size
        self.eos_token_ids = tuple(model.eos_token_ids)
        self.context_length = model.context_length
        self.page_size = config.page_size
        per_page = KVCache.bytes_per_page(
            model.num_layers, config.page_size, model.num_kv_heads, model.head_dim, dtype
        )
        self.num_pages = kv_bytes(config.kv_memory) // per_page
        if self.num_pages < 2:
            raise InvalidRequest(
                f"kv_memory: {config.kv_memory} holds {self.num_pages} pages of {per_page} bytes; "
                f"at least 2 are needed",
                "kv_memory",
            )
        self.kv = KVCache(
            model.num_layers,
            self.num_pages,
            config.page_size,
            model.num_kv_heads,
            model.head_dim,
            dtype,
        )
        self.attention = make_backend(
            config.attention_backend,
            model.attention(config.page_size),
            threads=threads,
            cascade=not config.disable_cascade,
        )
        self.attention_name = self.attention.name

    @torch.inference_mode()
    def forward(self, step: Step) -> Tensor:
        """Compute the step's tokens; their rows are in the cache afterwards.

        Returns:
            float32 [step.tokens, hidden]: hidden states in the order of the works.
        """
        self.kv.copy_rows(step.copies)
        works = step.works
        tables = [_pages(work) for work in works]
        batch = AttentionBatch.from_requests(
            tables,
            [work.start + work.count for work in works],
            [work.count for work in works],
            self.page_size,
        )
        ids = np.fromiter(
            chain.from_iterable(
                work.request.tokens[work.start : work.start + work.count] for work in works
            ),
            dtype=np.int64,
            count=step.tokens,
        )
        positions = np.concatenate(
            [np.arange(work.start, work.start + work.count, dtype=np.int64) for work in works]
        )
        slots = np.concatenate(
            [
                _slots(np.asarray(table, dtype=np.int64), work, self.page_size)
                for table, work in zip(tables, works, strict=True)
            ]
        )
        self.attention.plan(batch)
        return self.model.forward(
            torch.from_numpy(ids),
            torch.from_numpy(positions),
            torch.from_numpy(slots),
            self.kv,
            self.attention,
        )

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, vocab] of hidden states [rows, hidden]."""
        return self.model.logits(hidden)


def _pages(work: Work) -> Sequence[int]:
    assert work.request.sequence is not None
    return work.request.sequence.pages


def _slots(table: np.ndarray, work: Work, page_size: int) -> np.ndarray:
    positions = np.arange(work.start, work.start + work.count)
    slots: np.ndarray = table[positions // page_size] * page_size + positions % page_size
    return slots


def kv_bytes(asked: str | None) -> int:
    """Bytes for the KV cache: what was asked for, or 40 % of the free memory, at most 8 GiB."""
    if asked is not None:
        return parse_bytes(asked)
    return min(int(free_memory() * KV_SHARE), KV_MOST)


def free_memory() -> int:
    """Bytes that this process could still take: the machine's, or its cgroup's if that is less."""
    free = [
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    ]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free.append(int(limit.read_text()) - int(used.read_text()))
    return max(0, min(free))
