"""Llama, and the models that compute as it does: Mistral, Qwen2, Qwen3, Phi-3, Mixtral, Qwen3-MoE.

The forward pass over a batch of T tokens of any requests. This module knows no request.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boughs.kernels.backend import AttentionBackend
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.program import Buffer, Program, Rope, Unrecordable

from .attention import Attention, Pages, take_attention
from .config import ModelConfig
from .mlp import GatedMlp, gated
from .moe import MIXTRAL, QWEN3, ExpertNames, SparseMlp, take_sparse_mlp
from .norm import RmsNorm
from .recorded import record
from .rope import make_rope
from .tensors import TensorFiles


@dataclass(frozen=True)
class Traits:
    """What sets an architecture of the family apart, and its config does not say.

    Attributes:
        qkv_bias: Queries, keys and values have a bias.
        head_norm: Queries and keys are normed.
        fused: Its files hold queries, keys and values as one matrix, and gate and up as one.
        experts: Where its files keep experts, if it has them.
    """

    qkv_bias: bool = False
    head_norm: bool = False
    fused: bool = False
    experts: ExpertNames | None = None


FAMILY = {
    "LlamaForCausalLM": Traits(),
    "MistralForCausalLM": Traits(),
    "Qwen2ForCausalLM": Traits(qkv_bias=True),
    "Qwen3ForCausalLM": Traits(head_norm=True),
    "Phi3ForCausalLM": Traits(fused=True),
    "MixtralForCausalLM": Traits(experts=MIXTRAL),
    "Qwen3MoeForCausalLM": Traits(head_norm=True, experts=QWEN3),
}
"""The architectures, under transformers' names."""


@dataclass(frozen=True)
class _Layer:
    input_norm: RmsNorm
    attention: Attention
    mlp_norm: RmsNorm
    mlp: GatedMlp | SparseMlp


class Llama:
    """A decoder of the Llama family.

    Args:
        config: Its shape.
        files: Its tensors, which must be those of `config`.

    Raises:
        Unsupported: A feature that we do not have.
    """

    def __init__(self, config: ModelConfig, files: TensorFiles) -> None:
        self.config = config
        self._ops = files.ops
        details, vocab, hidden = config.details, config.vocab_size, config.hidden_size
        self._rope = make_rope(
            details.rope_parameters, config.head_dim, config.max_position, config.context_length
        ).to(files.device)
        self._embedding = files.table("model.embed_tokens", vocab, hidden)
        self._layers = [_take_layer(config, files, index) for index in range(config.num_layers)]
        self._norm = _take_norm(config, files, "model.norm")
        self._head = (
            self._embedding if config.tie_word_embeddings else files.table("lm_head", vocab, hidden)
        )
        files.ignore(r"lm_head\.weight")  # of a tied model
        files.ignore(r".*\.rotary_emb\.inv_freq")  # old tables
        self._program = record(self._layers[0].attention.qkv, self._record, files.kv_dtype)
        self.recordable = all(isinstance(layer.mlp, GatedMlp) for layer in self._layers)

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
        angles = self._rope.angles(positions, x.dtype, self._ops)
        if self._program is not None and self._program.takes(kv, attention):
            return self._program.run(x, {"": angles}, slots, kv, attention)
        pages = Pages(kv, slots, attention)
        for layer in self._layers:
            x = x + layer.attention(layer.input_norm(x), angles, pages)
            x = x + layer.mlp(layer.mlp_norm(x))
        return self._norm(x)

    def _record(self, program: Program) -> tuple[Buffer, Buffer]:
        """The layers as calls: what they read, and the last norm."""
        x, more = program.buffer("x", self.config.hidden_size), None
        shape = self.config.attention(page_size=1)  # a program takes pages of any size
        rope = Rope("", 2 * len(self._rope.frequencies))
        for index, layer in enumerate(self._layers):
            if not isinstance(layer.mlp, GatedMlp):
                raise Unrecordable("experts")
            normed = program.norm(x, layer.input_norm.recorded(), add=more)
            mixed = layer.attention.record(program, normed, rope, shape.window(index))
            normed = program.norm(x, layer.mlp_norm.recorded(), add=mixed)
            more = layer.mlp.record(program, normed)
        return x, program.norm(x, self._norm.recorded(), add=more)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [R, vocab] of hidden states [R, hidden]."""
        return self._head(hidden).float()


def _take_norm(config: ModelConfig, files: TensorFiles, name: str) -> RmsNorm:
    weight = files.take(f"{name}.weight", config.hidden_size)
    return RmsNorm(weight, config.details.rms_norm_eps, files.ops)


def _take_layer(config: ModelConfig, files: TensorFiles, index: int) -> _Layer:
    prefix, traits = f"model.layers.{index}", FAMILY[config.architecture]
    # One switch for all four projections, where a config has it.
    biased = bool(getattr(config.details, "attention_bias", False))
    return _Layer(
        input_norm=_take_norm(config, files, f"{prefix}.input_layernorm"),
        attention=take_attention(
            config,
            files,
            f"{prefix}.self_attn",
            index,
            eps=config.details.rms_norm_eps,
            qkv_bias=biased or traits.qkv_bias,
            output_bias=biased,
            head_norm=traits.head_norm,
            fused=traits.fused,
        ),
        mlp_norm=_take_norm(config, files, f"{prefix}.post_attention_layernorm"),
        mlp=(
            take_sparse_mlp(traits.experts, config, files, prefix)
            if traits.experts and _has_experts(config, index)
            else _take_mlp(config, files, f"{prefix}.mlp", fused=traits.fused)
        ),
    )


def _has_experts(config: ModelConfig, layer: int) -> bool:
    """Whether a layer of a model with experts has them: some of Qwen3-MoE's may not."""
    dense = getattr(config.details, "mlp_only_layers", None) or ()
    every = getattr(config.details, "decoder_sparse_step", 1)
    return layer not in dense and (layer + 1) % every == 0


def _take_mlp(config: ModelConfig, files: TensorFiles, prefix: str, *, fused: bool) -> GatedMlp:
    hidden, inner = config.hidden_size, int(config.details.intermediate_size)
    names = ["gate_up_proj"] if fused else ["gate_proj", "up_proj"]
    rows = 2 * inner // len(names)
    biased = bool(getattr(config.details, "mlp_bias", False))
    return GatedMlp(
        act=gated(config.details.hidden_act, files.ops),
        gate_up=files.linear({f"{prefix}.{name}": rows for name in names}, hidden, biased=biased),
        down=files.linear({f"{prefix}.down_proj": hidden}, inner, biased=biased),
    )
