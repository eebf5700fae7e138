"""Where a model runs and in what number format: settings and machine together decide.

What cannot be is refused by name, with what to do instead. This module knows no model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from boughs.kernels.accelerator import Cuda
from boughs.kernels.choice import Gpu
from boughs.kernels.flashinfer_load import NoFlashInfer, load_flashinfer
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.runtime.config import EngineConfig

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
GPU_KV_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
CPU_KV_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
"""Of the KV cache, beside that of the activations."""
CPU_TOKENS, GPU_TOKENS = 256, 8192
"""What a step computes at most, where the settings do not say."""


@dataclass(frozen=True)
class Placement:
    """Where and how a model runs.

    Attributes:
        device: Of weights, activations and the KV cache.
        dtype: Of weights and activations.
        kv_dtype: Of the KV cache.
        max_batched_tokens: Tokens that one step may compute.
        why: Why this device.
        gpu: What there is to run on it with; None on the CPU.
    """

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    max_batched_tokens: int
    why: str
    gpu: Gpu | None = None


def place(config: EngineConfig) -> Placement:
    """Where the model of `config` runs on this machine.

    Raises:
        Unsupported: The settings ask for what this machine or this device lacks.
    """
    if config.device == "cpu":
        return _on_cpu(config, "asked for")
    if config.device == "auto" and not torch.cuda.is_available():
        return _on_cpu(config, "auto: torch sees no GPU")
    if config.device == "cuda" and not torch.cuda.is_available():
        built = "" if torch.version.cuda else "; this torch is built without CUDA"
        raise Unsupported(f"device: torch sees no GPU{built}; use device=cpu", "device")
    flashinfer, missing = None, ""
    if config.attention_backend != "reference":
        try:
            flashinfer = load_flashinfer()
        except NoFlashInfer as error:
            missing = str(error)
            if config.device == "auto" and config.attention_backend != "flashinfer":
                return _on_cpu(config, f"auto: {missing}")
    accelerator = Cuda(torch.cuda.current_device())
    dtype = DTYPES["bfloat16" if config.dtype == "auto" else config.dtype]
    kv_dtype = _kv_dtype(
        config, {**GPU_KV_DTYPES, str(dtype).removeprefix("torch."): dtype}, dtype, "on a GPU"
    )
    return Placement(
        device=accelerator.device,
        dtype=dtype,
        kv_dtype=kv_dtype,
        max_batched_tokens=config.max_batched_tokens or GPU_TOKENS,
        why=f"{config.device}: {torch.cuda.get_device_name()}",
        gpu=Gpu(accelerator, flashinfer, missing, dtype, kv_dtype),
    )


def _on_cpu(config: EngineConfig, why: str) -> Placement:
    if config.dtype not in {"auto", "float32"}:
        raise Unsupported(
            f"dtype: {config.dtype} is not there on the CPU ({why}); use float32 or auto, "
            "or device=cuda",
            "dtype",
        )
    kv_dtype = _kv_dtype(config, CPU_KV_DTYPES, torch.float32, f"on the CPU ({why})")
    if config.attention_backend == "flashinfer":
        reason = why if config.device == "auto" else "device=cpu"
        raise Unsupported(
            f"attention_backend: flashinfer needs a GPU ({reason}); use attention_backend=auto",
            "attention_backend",
        )
    return Placement(
        device=torch.device("cpu"),
        dtype=torch.float32,
        kv_dtype=kv_dtype,
        max_batched_tokens=config.max_batched_tokens or CPU_TOKENS,
        why=why,
    )


def _kv_dtype(
    config: EngineConfig, known: dict[str, torch.dtype], auto: torch.dtype, where: str
) -> torch.dtype:
    """The dtype of the KV cache, of those that are known here."""
    name = config.kv_cache_dtype
    if name != "auto" and name not in known:
        raise Unsupported(
            f"kv_cache_dtype: {name} is not there {where}; use auto or {', '.join(known)}",
            "kv_cache_dtype",
        )
    return known.get(name, auto)


def refuse(error: ValueError) -> InvalidRequest:
    """The error of a user whose attention backend cannot be had."""
    return InvalidRequest(f"attention_backend: {error}", "attention_backend")
