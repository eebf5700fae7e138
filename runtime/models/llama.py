"""Llama, and the models that compute as it does: Mistral, Qwen2.

The forward pass over a batch of T tokens of any requests. Shapes are in comments: T tokens,
R rows, H query heads, K KV heads, D head width. Which pages a token reads is known to the
attention backend alone, which has been given its plan before; this module knows no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from boughs.kernels.backend import AttentionBackend
from boughs.kernels.kv_cache import KVCache

from .config import ModelConfig
from .store import weights
from .tensors import TensorFiles


class Model(Protocol):
    """A decoder that keeps its keys and values in pages."""

    config: ModelConfig

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: KVCache,
        attention: AttentionBackend,
    ) -> Tensor:
        """Compute T tokens and write their keys and values into the cache.

        Args:
            input_ids: int64 [T].
            positions: int64 [T], of each token in its request.
            slots: int64 [T], the row of the cache that each token's keys and values go to.
            kv: The cache.
            attention: Has been planned for exactly these tokens.

        Returns:
            [T, hidden]: hidden states after the last norm.
        """

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, vocab] of hidden states [R, hidden]."""


@dataclass(frozen=True)
class _Layer:
    """The weights of one layer. What reads the same input is one matrix."""

    input_norm: Tensor  # [hidden]
    qkv: Tensor  # [(H + 2 K) D, hidden]
    qkv_bias: Tensor | None
    output: Tensor  # [hidden, H D]
    output_bias: Tensor | None
    mlp_norm: Tensor  # [hidden]
    gate_up: Tensor  # [2 intermediate, hidden]
    gate_up_bias: Tensor | None
    down: Tensor  # [hidden, intermediate]
    down_bias: Tensor | None


class Llama:
    """A decoder of the Llama family.

    Args:
        config: Its shape.
        files: Its tensors, which must be those of `config`.
        dtype: Of weights and activations.

    Raises:
        InvalidRequest: The files do not fit the config.
    """

    def __init__(self, config: ModelConfig, files: TensorFiles, dtype: torch.dtype) -> None:
        self.config = config
        files.check(_shapes(config), _ignored(config))
        self._embedding = files.load("model.embed_tokens.weight", dtype)  # [vocab, hidden]
        self._layers = [_load_layer(config, files, i, dtype) for i in range(config.num_layers)]
        self._norm = files.load("model.norm.weight", dtype)  # [hidden]
        self._head = (  # [vocab, hidden]
            self._embedding if config.tie_word_embeddings else files.load("lm_head.weight", dtype)
        )
        self._frequencies = torch.tensor(config.rope_frequencies)  # float32 [D / 2]

    @torch.inference_mode()
    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        slots: Tensor,
        kv: KVCache,
        attention: AttentionBackend,
    ) -> Tensor:
        """Compute T tokens; see `Model.forward`."""
        x = embedding(input_ids, self._embedding)  # [T, hidden]
        angles = positions[:, None].float() * self._frequencies  # [T, D / 2]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for index, layer in enumerate(self._layers):
            normed = self._rms_norm(x, layer.input_norm)
            q, k, v = self._project(normed, layer, cos, sin)
            kv.write(index, slots, k, v)
            mixed = attention.run(index, q, kv)  # [T, H, D]
            x = x + linear(mixed.flatten(1), layer.output, layer.output_bias)
            x = x + _mlp(self._rms_norm(x, layer.mlp_norm), layer)
        return self._rms_norm(x, self._norm)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, vocab] of hidden states [R, hidden]."""
        return linear(hidden, self._head).float()

    def _project(
        self, x: Tensor, layer: _Layer, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [T, H, D], keys and values [T, K, D]; queries and keys are rotated."""
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        both = linear(x, layer.qkv, layer.qkv_bias)
        both = both.view(len(x), heads + 2 * kv_heads, self.config.head_dim)
        rotated = _rotate(both[:, : heads + kv_heads], cos, sin)
        return rotated[:, :heads], rotated[:, heads:], both[:, heads + kv_heads :]

    def _rms_norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


def load_model(folder: Path, dtype: torch.dtype = torch.float32) -> Model:
    """The model in `folder`, which `store.resolve` gave.

    Raises:
        NotFound: There is no config, or there are no weights.
        Unsupported: An architecture or a feature that we do not have.
        InvalidRequest: The weights do not fit the config.
    """
    config = ModelConfig.from_folder(folder)
    return Llama(config, TensorFiles(weights(folder)), dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn row i and row i + D / 2 of every head [T, heads, D] by the angles [T, D / 2]."""
    cos, sin = cos[:, None], sin[:, None]  # [T, 1, D / 2]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _mlp(x: Tensor, layer: _Layer) -> Tensor:
    gate, up = linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
    return linear(silu(gate) * up, layer.down, layer.down_bias)


def _load_layer(config: ModelConfig, files: TensorFiles, index: int, dtype: torch.dtype) -> _Layer:
    prefix = f"model.layers.{index}"

    def weight(*names: str) -> Tensor:
        parts = [files.load(f"{prefix}.{name}.weight", dtype) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def bias(present: bool, *names: str) -> Tensor | None:
        if not present:
            return None
        return torch.cat([files.load(f"{prefix}.{name}.bias", dtype) for name in names])

    qkv = [f"self_attn.{kind}_proj" for kind in "qkv"]
    gate_up = ["mlp.gate_proj", "mlp.up_proj"]
    return _Layer(
        input_norm=weight("input_layernorm"),
        qkv=weight(*qkv),
        qkv_bias=bias(config.qkv_bias, *qkv),
        output=weight("self_attn.o_proj"),
        output_bias=bias(config.output_bias, "self_attn.o_proj"),
        mlp_norm=weight("post_attention_layernorm"),
        gate_up=weight(*gate_up),
        gate_up_bias=bias(config.mlp_bias, *gate_up),
        down=weight("mlp.down_proj"),
        down_bias=bias(config.mlp_bias, "mlp.down_proj"),
    )


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model, under transformers' names."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    matrices = {
        "self_attn.q_proj": (q_rows, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv_rows, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv_rows, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q_rows, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        for name, (rows, columns, biased) in matrices.items():
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            if biased:
                shapes[f"{prefix}.{name}.bias"] = (rows,)
    return shapes


def _ignored(config: ModelConfig) -> list[str]:
    """Tensors that some checkpoints hold and no model reads: old tables of rope, a tied head."""
    tables = [f"model.layers.{i}.self_attn.rotary_emb.inv_freq" for i in range(config.num_layers)]
    return [*tables, "lm_head.weight"]
