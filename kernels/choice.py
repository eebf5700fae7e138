"""The way to an attention backend by name, for a model's attention and what there is to run it on.

This module knows no model, no request and no arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from .accelerator import Accelerator
from .backend import AttentionBackend, AttentionConfig
from .costs import DEFAULT, Costs
from .cpu import CpuBackend
from .flashinfer import FlashInferBackend
from .flashinfer_limits import lacks
from .reference import ReferenceBackend

BACKENDS = ("auto", "flashinfer", "cpu", "reference")


@dataclass(frozen=True)
class Gpu:
    """What there is to run on a GPU with.

    Attributes:
        accelerator: The device.
        flashinfer: The `flashinfer` module, or what stands in for it; None where it is missing.
        missing: Then, why, and what to do about it.
        dtype: Of queries and results.
        kv_dtype: Of the cache.
    """

    accelerator: Accelerator
    flashinfer: Any | None
    missing: str
    dtype: torch.dtype
    kv_dtype: torch.dtype


def choose_backend(name: str, config: AttentionConfig, gpu: Gpu | None = None) -> tuple[str, str]:
    """Which attention backend `name` stands for here, and why.

    Args:
        name: `flashinfer` runs on a GPU; `cpu` reads pages in place, in float32; `reference` is
            slow and takes any dtype and device; `auto` is the fastest of those that run here.
        config: The shape of the model's attention.
        gpu: Where the model is on one.

    Raises:
        ValueError: An unknown name, or a backend that does not run here; says why.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown attention backend {name!r}; there are {', '.join(BACKENDS)}")
    if gpu is None:
        if name == "flashinfer":
            raise ValueError("the attention backend flashinfer runs on a GPU alone: device=cuda")
        if name == "auto":
            return "cpu", "auto: the only compiled backend there is without a GPU"
        return name, "asked for"
    if name == "cpu":
        raise ValueError("the attention backend cpu does not run on a GPU: device=cpu")
    lacking = lacks(config, gpu.dtype, gpu.kv_dtype)
    if name == "auto" and gpu.flashinfer is not None and lacking is not None:
        return "reference", f"auto: FlashInfer has no kernel for {lacking}"
    if name == "reference":
        return name, "asked for"
    if gpu.flashinfer is None:
        raise ValueError(f"{gpu.missing}; or attention_backend=reference, which is slow")
    if lacking is not None:
        raise ValueError(f"FlashInfer has no kernel for {lacking}")
    return "flashinfer", "asked for" if name == "flashinfer" else "auto: FlashInfer on a GPU"


def make_backend(
    name: str,
    config: AttentionConfig,
    *,
    threads: int | None = None,
    cascade: bool = False,
    gpu: Gpu | None = None,
    kv_dtype: torch.dtype = torch.float32,
    costs: Costs | None = None,
) -> AttentionBackend:
    """The attention backend called `name`; see `choose_backend`.

    Args:
        name: One of `BACKENDS`.
        config: The shape of the model's attention.
        threads: Threads to compute on; default one. `reference` computes on torch's own.
        cascade: Whether prefixes that requests share are read once a step for all of them, where
            that pays; results then depend on the batch within rounding. Not for `reference`.
        gpu: Where the model is on one.
        kv_dtype: Of the cache, for `cpu`: one of `elements.ELEMENTS`. `reference` takes any, and
            that of `flashinfer` is the GPU's.
        costs: What attention takes on this machine, for `cpu`; default what it took on one.

    Raises:
        ValueError: An unknown name, or a backend that does not run here; says why.
    """
    chosen, why = choose_backend(name, config, gpu)
    if chosen == "cpu":
        return CpuBackend(
            config, threads or 1, why, cascade=cascade, kv_dtype=kv_dtype, costs=costs or DEFAULT
        )
    if chosen == "reference":
        return ReferenceBackend(config, why)
    assert gpu is not None, "flashinfer is chosen on a GPU alone"
    return FlashInferBackend(
        config,
        why,
        flashinfer=gpu.flashinfer,
        accelerator=gpu.accelerator,
        dtype=gpu.dtype,
        kv_dtype=gpu.kv_dtype,
        cascade=cascade,
    )
