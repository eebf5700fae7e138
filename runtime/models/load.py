"""From a folder to a model: which class computes which architecture.

This module knows no arithmetic and no file format.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch

from boughs.kernels.ops import TORCH, Ops
from boughs.lang.errors import NotFound

from .config import ModelConfig
from .gemma import Gemma
from .gguf import GgufFile
from .gguf_source import GgufSource
from .gpt2 import GPT2
from .layers import LayerMaker, PackedMaker
from .llama import FAMILY, Llama
from .model import Model
from .shards import Shards
from .store import one_gguf
from .tensors import Source, TensorFiles


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
    context_length: int | None = None,
    *,
    maker: LayerMaker | None = None,
    ops: Ops = TORCH,
    kv_dtype: torch.dtype | None = torch.float32,
) -> Model:
    """The model in `folder`, which `store.resolve` gave.

    Args:
        folder: Holds its config, and its weights as safetensors or GGUF.
        context_length: The longest request that it will meet, in tokens; default the longest that
            it was made for. Angles that depend on the length are those of this one for good.
        maker: Makes its linear layers; default on the CPU, as the files have them, for one thread.
        ops: What its layers compute with, beside matrices and attention.
        kv_dtype: Of the cache over which its layers are compiled as one list of calls, where they
            can be; over others, and with None, they run one by one.

    Raises:
        NotFound: There is no config, or there are no weights.
        Unsupported: An architecture or a feature that we do not have; names those we have.
        InvalidRequest: The weights do not fit the config, the context is too long, or numbers
            cannot be held as asked.
    """
    config = load_config(folder, context_length)
    source, make = _source(folder), MODELS[config.architecture]
    sketch = TensorFiles(source, None, ops)
    make(config, sketch)
    sketch.finish()
    return make(config, TensorFiles(source, maker or PackedMaker("auto", 1), ops, kv_dtype))


def _source(folder: Path) -> Source:
    if any(folder.glob("*.safetensors")):
        return Shards(folder)
    file = one_gguf(folder)
    if file is None:
        raise NotFound(f"{folder} holds neither safetensors nor a GGUF file")
    return GgufSource(GgufFile(file))
