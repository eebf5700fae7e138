"""The model with its KV cache: from a step to logits.

Carries out the copy orders, plans the attention, runs the model, and reads off the logits of the
rows that are asked for. This module decides nothing about requests.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from boughs.kernels import bitmask, costs, filters, ops
from boughs.kernels.backend import AttentionBackend, AttentionConfig
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.choice import choose_backend, make_backend
from boughs.kernels.cpu import CpuBackend
from boughs.kernels.filters import Filters
from boughs.kernels.flashinfer import FlashInferBackend
from boughs.kernels.flashinfer_ops import FlashInferFilters, FlashInferOps
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.staging import Staging
from boughs.lang.home import default_home
from boughs.runtime.config import EngineConfig
from boughs.runtime.core.graphs import DecodeGraphs
from boughs.runtime.core.inputs import StepInputs
from boughs.runtime.core.memory import num_pages
from boughs.runtime.core.placement import Placement, place, refuse
from boughs.runtime.core.step import Step
from boughs.runtime.models.layers import make_maker
from boughs.runtime.models.load import load_config, load_model

log = logging.getLogger(__name__)


class Runner(Protocol):
    """What the core needs of a model: its sizes, its place, and the way from a step to logits."""

    vocab_size: int
    context_length: int
    num_pages: int
    eos_token_ids: tuple[int, ...]
    attention_name: str
    attention_why: str
    weights_name: str
    costs_from: str
    filters: Filters
    placement: Placement

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
        placement: Where the model runs; by default what the settings and the machine give.

    Raises:
        InvalidRequest: The settings do not fit the model.
        Unsupported: A model or a setting that we do not have; names those we have.
    """

    def __init__(
        self, config: EngineConfig, folder: Path, placement: Placement | None = None
    ) -> None:
        self.placement = where = placement or place(config)
        threads = config.threads or len(os.sched_getaffinity(0))
        torch.set_num_threads(threads)
        shape = load_config(folder, config.context_length)
        attention = shape.attention(config.page_size)
        try:  # before a weight is read
            chosen, self.attention_why = choose_backend(
                config.attention_backend, attention, where.gpu
            )
        except ValueError as error:
            raise refuse(error) from error
        self.filters: Filters = filters.TORCH
        small: ops.Ops = ops.TORCH
        if chosen == FlashInferBackend.name:
            assert where.gpu is not None, "flashinfer is chosen on a GPU alone"
            small = FlashInferOps(where.gpu.flashinfer)
            self.filters = FlashInferFilters(where.gpu.flashinfer)
        maker = make_maker(
            config.quantize, where.dtype, where.device, threads, default_home() / "costs"
        )
        self.model = load_model(
            folder,
            config.context_length,
            maker=maker,
            ops=small,
            kv_dtype=where.kv_dtype if chosen == CpuBackend.name else None,
        )
        self.weights_name = maker.describe()
        self.vocab_size = shape.vocab_size
        self.eos_token_ids = tuple(shape.eos_token_ids)
        self.context_length = shape.context_length
        self.page_size = config.page_size
        measured, self.costs_from = _costs(chosen, attention, where)
        self.attention: AttentionBackend = make_backend(
            chosen,
            attention,
            threads=threads,
            cascade=not config.disable_cascade,
            gpu=where.gpu,
            kv_dtype=where.kv_dtype,
            costs=measured,
        )
        self.attention_name = self.attention.name
        accelerator = where.gpu.accelerator if where.gpu else None
        sizes = (shape.num_kv_heads, shape.head_dim, where.kv_dtype)
        self.num_pages = num_pages(
            config.kv_memory,
            KVCache.bytes_per_page(shape.num_layers, config.page_size, *sizes),
            accelerator,
        )
        if where.gpu is None:  # nor does the first request with a grammar wait for a compiler
            bitmask.forbid()
            bitmask.best_allowed()
        self.kv = KVCache(shape.num_layers, self.num_pages, config.page_size, *sizes, where.device)
        self._staging = Staging(accelerator, torch.int64) if accelerator else None
        self._graphs = self._record(config)

    @torch.inference_mode()
    def _record(self, config: EngineConfig) -> DecodeGraphs | None:
        """Compile what a GPU's first steps would wait for, and record its decode steps."""
        if not isinstance(self.attention, FlashInferBackend):
            return None
        assert self.placement.gpu is not None, "flashinfer runs on a GPU alone"
        log.info("compiling FlashInfer's kernels, which takes minutes the first time")
        self._forward(_warm_up(self.page_size))
        self._forward(StepInputs.padding(1, self.page_size))
        if config.disable_cuda_graph or not self.model.recordable:
            return None
        pages = min(-(-self.context_length // self.page_size), self.num_pages - 1)
        graphs = DecodeGraphs(
            lambda ids, positions, slots: self.model.forward(
                ids, positions, slots, self.kv, self.attention
            ),
            self.attention,
            self.placement.gpu.accelerator,
            most=config.max_running_requests,
            pages=pages,
            num_pages=self.num_pages,
            page_size=self.page_size,
        )
        log.info("recorded decode steps of up to %d requests", graphs.rows[-1])
        return graphs

    @torch.inference_mode()
    def forward(self, step: Step) -> Tensor:
        """Compute the step's tokens; their rows are in the cache afterwards.

        Returns:
            [step.tokens, hidden]: hidden states in the order of the works.
        """
        self.kv.copy_rows(step.copies)
        inputs = StepInputs.from_step(step, self.page_size)
        if self._graphs is not None and self._graphs.takes(inputs):
            return self._graphs.forward(inputs)
        return self._forward(inputs)

    def _forward(self, inputs: StepInputs) -> Tensor:
        self.attention.plan(inputs.batch)
        if self._staging is None:
            parts = tuple(torch.from_numpy(array) for array in inputs.arrays)
        else:
            parts = self._staging.upload(inputs.arrays).view(3, -1).unbind()
        ids, positions, slots = parts
        return self.model.forward(ids, positions, slots, self.kv, self.attention)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [rows, vocab] of hidden states [rows, hidden]."""
        return self.model.logits(hidden)


def _costs(
    chosen: str, attention: AttentionConfig, where: Placement
) -> tuple[costs.Costs | None, str]:
    """What attention takes here, where that is measured, and where it is from."""
    if chosen != CpuBackend.name:
        return None, ""
    return costs.load(attention, where.kv_dtype, default_home() / "costs")


def _warm_up(page_size: int) -> StepInputs:
    """A prefill of nobody: one request of two rows, on page 0."""
    two = StepInputs.padding(2, page_size)
    batch = AttentionBatch.from_requests([[0, 0]], [2], [2], page_size)
    return StepInputs(batch, two.ids, two.positions, two.slots)
