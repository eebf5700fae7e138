"""From a folder to a model: which class computes which architecture.

This module knows no arithmetic and no file format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from boughs.kernels.kv_cache import CPU
from boughs.kernels.ops import TORCH, Ops

from .config import ModelConfig
from .gemma import Gemma
from .gpt2 import GPT2
from .llama import FAMILY, Llama
from .model import Model
from .store import weights
from .tensors import TensorFiles


class _Make(Protocol):
    def __call__(self, config: ModelConfig, files: TensorFiles) -> Model: ...


MODELS: dict[str, _Make] = {
    **dict.fromkeys(FAMILY, Llama),
    "Gemma2ForCausalLM": Gemma,
    "Gemma3ForCausalLM": Gemma,
    "Gemma3ForConditionalGeneration": Gemma,
    "GPT2LMHeadModel": GPT2,
}
"""What makes the model of each architecture, under transformers' names."""


def load_config(folder: Path, context_length: int | None = None) -> ModelConfig:
    """The shape of the model in `folder`; see `ModelConfig.from_folder`."""
    return ModelConfig.from_folder(folder, tuple(MODELS), context_length)


def load_model(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    context_length: int | None = None,
    *,
    device: torch.device = CPU,
    ops: Ops = TORCH,
) -> Model:
    """The model in `folder`, which `store.resolve` gave.

    Args:
        folder: Holds its config, and its weights as safetensors or GGUF.
        dtype: Of weights and activations.
        context_length: The longest request that it will meet, in tokens; default the longest that
            it was made for. Angles that depend on the length are those of this one for good.
        device: Where weights and activations are.
        ops: What its layers compute with, beside matrices and attention.

    Raises:
        NotFound: There is no config, or there are no weights.
        Unsupported: An architecture or a feature that we do not have; names those we have.
        InvalidRequest: The weights do not fit the config, or the context is too long.
    """
    config = load_config(folder, context_length)
    source, make = weights(folder), MODELS[config.architecture]
    sketch = TensorFiles(source, dtype, torch.device("meta"), ops)
    make(config, sketch)
    sketch.finish()
    return make(config, TensorFiles(source, dtype, device, ops))
