"""Gemma 2 (https://arxiv.org/abs/2408.00118) and the text part of Gemma 3 (2503.19786).

What sets them apart from Llama: a norm behind attention and MLP as well as before, norms that
multiply by 1 + weight, a scaled embedding, layers with a sliding window between full ones, soft
caps of scores and logits (2), norms of queries and keys and a rope of its own for the layers with a
window (3). The forward pass is over a batch of T tokens of any requests. This module knows no
request and no image: of a model that takes images, this is the part about text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boughs.kernels.backend import AttentionBackend
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.program import Buffer, Program, Rope as ProgramRope
from boughs.lang.errors import Unsupported

from .attention import Attention, Pages, take_attention
from .config import ModelConfig
from .mlp import GatedMlp, gated
from .norm import RmsNorm
from .recorded import record
from .rope import Rope, make_rope
from .tensors import TensorFiles


@dataclass(frozen=True)
class _Layer:
    rope: str
    before_attention: RmsNorm
    attention: Attention
    after_attention: RmsNorm
    before_mlp: RmsNorm
    mlp: GatedMlp
    after_mlp: RmsNorm


class Gemma:
    """A decoder of the Gemma family.

    Args:
        config: Its shape.
        files: Its tensors, which must be those of `config`.

    Raises:
        Unsupported: A feature that we do not have.
    """

    def __init__(self, config: ModelConfig, files: TensorFiles) -> None:
        self.config = config
        self._ops = files.ops
        details = config.details
        if getattr(details, "use_bidirectional_attention", None):
            raise Unsupported("attention to later tokens is not supported", "model_path")
        vocab, hidden = config.vocab_size, config.hidden_size
        # A model that takes images too keeps its text part under a name.
        root = "language_model." if "language_model.model.norm.weight" in files else ""
        self._ropes = _ropes(config, files.device)
        self._embedding = files.table(f"{root}model.embed_tokens", vocab, hidden)
        self._layers = [
            _take_layer(config, files, f"{root}model.layers.{index}", index)
            for index in range(config.num_layers)
        ]
        self._norm = _take_norm(config, files, f"{root}model.norm")
        self._head = (
            self._embedding
            if config.tie_word_embeddings
            else files.table(f"{root}lm_head", vocab, hidden)
        )
        self._program = record(self._layers[0].attention.qkv, self._record, files.kv_dtype)
        self._logit_cap = details.final_logit_softcapping
        files.ignore(r"(.*\.)?lm_head\.weight")  # of a tied model
        files.ignore(r"(vision_tower|multi_modal_projector)\..*")

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
        x = self._embedding.rows(input_ids)  # [T, hidden]
        # The factor is rounded to the dtype of the weights, as in training.
        x = x * torch.tensor(self.config.hidden_size**0.5, dtype=x.dtype)
        angles = {
            kind: rope.angles(positions, x.dtype, self._ops) for kind, rope in self._ropes.items()
        }
        if self._program is not None and self._program.takes(kv, attention):
            return self._program.run(x, angles, slots, kv, attention)
        pages = Pages(kv, slots, attention)
        for layer in self._layers:
            mixed = layer.attention(layer.before_attention(x), angles[layer.rope], pages)
            x = x + layer.after_attention(mixed)
            x = x + layer.after_mlp(layer.mlp(layer.before_mlp(x)))
        return self._norm(x)

    def _record(self, program: Program) -> tuple[Buffer, Buffer]:
        """The layers as calls: what they read, and the last norm."""
        x, more = program.buffer("x", self.config.hidden_size), None
        shape = self.config.attention(page_size=1)  # a program takes pages of any size
        for index, layer in enumerate(self._layers):
            name = layer.rope
            rope = ProgramRope(name, 2 * len(self._ropes[name].frequencies))
            normed = program.norm(x, layer.before_attention.recorded(), add=more)
            mixed = layer.attention.record(program, normed, rope, shape.window(index))
            more = program.norm(mixed, layer.after_attention.recorded(), name="more")
            normed = program.norm(x, layer.before_mlp.recorded(), add=more)
            made = layer.mlp.record(program, normed)
            more = program.norm(made, layer.after_mlp.recorded(), name="more")
        return x, program.norm(x, self._norm.recorded(), add=more)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, vocab] of hidden states [R, hidden]."""
        logits = self._head(hidden).float()
        if self._logit_cap is not None:
            logits = self._logit_cap * torch.tanh(logits / self._logit_cap)
        return logits


def _ropes(config: ModelConfig, device: torch.device) -> dict[str, Rope]:
    """The rope of each kind of layer: one for all in Gemma 2, one each in Gemma 3."""
    parameters = config.details.rope_parameters
    kinds = sorted(set(config.details.layer_types))
    return {
        kind: make_rope(
            parameters.get(kind, parameters),
            config.head_dim,
            config.max_position,
            config.context_length,
        ).to(device)
        for kind in kinds
    }


def _take_norm(config: ModelConfig, files: TensorFiles, name: str) -> RmsNorm:
    weight = files.take(f"{name}.weight", config.hidden_size)
    return RmsNorm(weight, config.details.rms_norm_eps, files.ops, plus_one=True)


def _take_layer(config: ModelConfig, files: TensorFiles, prefix: str, index: int) -> _Layer:
    details, hidden = config.details, config.hidden_size
    inner, biased = int(details.intermediate_size), bool(details.attention_bias)
    both = {f"{prefix}.mlp.{name}_proj": inner for name in ("gate", "up")}
    return _Layer(
        rope=details.layer_types[index],
        before_attention=_take_norm(config, files, f"{prefix}.input_layernorm"),
        attention=take_attention(
            config,
            files,
            f"{prefix}.self_attn",
            index,
            eps=details.rms_norm_eps,
            qkv_bias=biased,
            output_bias=biased,
            head_norm=details.model_type == "gemma3_text",
            norm_offset=1.0,
        ),
        after_attention=_take_norm(config, files, f"{prefix}.post_attention_layernorm"),
        before_mlp=_take_norm(config, files, f"{prefix}.pre_feedforward_layernorm"),
        mlp=GatedMlp(
            act=gated(details.hidden_activation, files.ops),
            gate_up=files.linear(both, hidden),
            down=files.linear({f"{prefix}.mlp.down_proj": hidden}, inner),
        ),
        after_mlp=_take_norm(config, files, f"{prefix}.post_feedforward_layernorm"),
    )
