"""GPT-2: learned positions, layer norms with a bias, an MLP without a gate.

The forward pass over a batch of T tokens of any requests. Shapes are in comments: T tokens, H
heads, D head width. This module knows no request.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm

from boughs.kernels.backend import AttentionBackend
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.ops import Activation
from boughs.lang.errors import Unsupported

from .attention import Pages
from .config import ModelConfig
from .layers import Layer
from .mlp import activation
from .tensors import TensorFiles


@dataclass(frozen=True)
class _Norm:
    weight: Tensor  # [hidden]
    bias: Tensor  # [hidden]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class _Layer:
    attention_norm: _Norm
    query_scale: float
    qkv: Layer
    output: Layer
    mlp_norm: _Norm
    up: Layer
    down: Layer


class GPT2:
    """A decoder of the GPT-2 family.

    Args:
        config: Its shape.
        files: Its tensors, which must be those of `config`.

    Raises:
        Unsupported: A feature that we do not have.
    """

    def __init__(self, config: ModelConfig, files: TensorFiles) -> None:
        self.config = config
        details, hidden = config.details, config.hidden_size
        if details.add_cross_attention:
            raise Unsupported("attention to an encoder is not supported", "model_path")
        # The oldest files were saved without the head, and so without its name for the rest.
        root = "transformer." if "transformer.wte.weight" in files else ""
        self._act: Activation = activation(details.activation_function)
        self._embedding = files.table(f"{root}wte", config.vocab_size, hidden)
        self._positions = files.take(f"{root}wpe.weight", config.max_position, hidden)
        self._layers = [
            _take_layer(config, files, f"{root}h.{index}", index)
            for index in range(config.num_layers)
        ]
        self._norm = _take_norm(config, files, f"{root}ln_f")
        self._head = (
            self._embedding
            if config.tie_word_embeddings
            else files.table("lm_head", config.vocab_size, hidden)
        )
        files.ignore(r"lm_head\.weight")  # of a tied model
        files.ignore(r".*\.attn\.(masked_)?bias")  # old tables of what a token sees

    recordable = True

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
        x = self._embedding.rows(input_ids) + embedding(positions, self._positions)
        pages, shape = Pages(kv, slots, attention), (len(x), 3, -1, self.config.head_dim)
        for index, layer in enumerate(self._layers):
            q, k, v = layer.qkv(layer.attention_norm(x)).view(shape).unbind(1)  # [T, H, D]
            x = x + layer.output(pages.attend(index, q * layer.query_scale, k, v))
            x = x + layer.down(self._act(layer.up(layer.mlp_norm(x))))
        return self._norm(x)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, vocab] of hidden states [R, hidden]."""
        return self._head(hidden).float()


def _take_norm(config: ModelConfig, files: TensorFiles, name: str) -> _Norm:
    weight, bias = (files.take(f"{name}.{kind}", config.hidden_size) for kind in ("weight", "bias"))
    return _Norm(weight, bias, config.details.layer_norm_epsilon)


def _take_linear(files: TensorFiles, name: str, outputs: int, inputs: int) -> Layer:
    """The files hold these matrices as [in, out]."""
    return files.linear({name: outputs}, inputs, biased=True, turned=True)


def _take_layer(config: ModelConfig, files: TensorFiles, prefix: str, index: int) -> _Layer:
    hidden = config.hidden_size
    inner = int(config.details.n_inner or 4 * hidden)
    return _Layer(
        attention_norm=_take_norm(config, files, f"{prefix}.ln_1"),
        # The backend has one scale for all layers, so the queries take the layer's own.
        query_scale=1 / (index + 1) if config.details.scale_attn_by_inverse_layer_idx else 1.0,
        qkv=_take_linear(files, f"{prefix}.attn.c_attn", 3 * hidden, hidden),
        output=_take_linear(files, f"{prefix}.attn.c_proj", hidden, hidden),
        mlp_norm=_take_norm(config, files, f"{prefix}.ln_2"),
        up=_take_linear(files, f"{prefix}.mlp.c_fc", inner, hidden),
        down=_take_linear(files, f"{prefix}.mlp.c_proj", hidden, inner),
    )
