"""The attention of a layer with rotated queries and keys: Llama's, and those of its descendants.

Shapes are in comments: T tokens, H query heads, K KV heads, D head width. This module knows no
request; which pages a token reads is known to the attention backend alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from boughs.kernels.backend import AttentionBackend
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.ops import Angles, Ops
from boughs.kernels.program import Buffer, Norm, Program, Rope

from .config import ModelConfig
from .layers import Layer
from .recorded import packed
from .tensors import TensorFiles


@dataclass(frozen=True)
class Pages:
    """Where one step's keys and values go, and who reads them.

    Attributes:
        kv: The cache.
        slots: int64 [T]: the row of the cache of each token.
        backend: Has been planned for the step.
    """

    kv: KVCache
    slots: Tensor
    backend: AttentionBackend

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write k and v [T, K, D] of a layer; what q [T, H, D] finds, as [T, H D]."""
        self.kv.write(layer, self.slots, k, v)
        return self.backend.run(layer, q, self.kv).flatten(1)


@dataclass(frozen=True)
class Attention:
    """The weights of one layer's attention.

    Attributes:
        layer: Which layer it is.
        heads: H, K and D.
        qkv: From hidden to (H + 2 K) D: what reads the same input is one layer.
        output: From H D to hidden.
        head_norm: [H + K, D]: the weight of an RMS norm of every query and key.
        eps: Of that norm.
        ops: What turns queries and keys.
    """

    layer: int
    heads: tuple[int, int, int]
    qkv: Layer
    output: Layer
    head_norm: Tensor | None
    eps: float
    ops: Ops

    def __call__(self, x: Tensor, angles: Angles, pages: Pages) -> Tensor:
        """[T, hidden] of [T, hidden]."""
        heads, kv_heads, dim = self.heads
        both = self.qkv(x).view(len(x), heads + 2 * kv_heads, dim)
        turned, v = both[:, : heads + kv_heads], both[:, heads + kv_heads :]
        if self.head_norm is not None:
            turned = rms_norm(turned, (dim,), None, self.eps) * self.head_norm
        turned = self.ops.rotate(turned, heads, angles)
        mixed = pages.attend(self.layer, turned[:, :heads], turned[:, heads:], v)
        return self.output(mixed)

    def record(self, program: Program, x: Buffer, rope: Rope, window: int) -> Buffer:
        """The same as calls, for a layer that sees `window` positions; 0 stands for all.

        Raises:
            Unrecordable: Something has no call.
        """
        norm = None if self.head_norm is None else Norm(self.head_norm.numpy(), self.eps)
        qkv = program.linear(packed(self.qkv), x, "qkv")
        mixed = program.attention(qkv, self.heads, self.layer, window=window, rope=rope, norm=norm)
        return program.linear(packed(self.output), mixed, "output")


def take_attention(
    config: ModelConfig,
    files: TensorFiles,
    prefix: str,
    layer: int,
    *,
    eps: float,
    qkv_bias: bool = False,
    output_bias: bool = False,
    head_norm: bool = False,
    norm_offset: float = 0.0,
    fused: bool = False,
) -> Attention:
    """The attention whose tensors begin with `prefix`.

    Args:
        config: The model's shape.
        files: Its tensors.
        prefix: Such as `model.layers.3.self_attn`.
        layer: Which layer it is.
        eps: Of the norms of queries and keys.
        qkv_bias: Whether queries, keys and values have a bias.
        output_bias: Whether the output has one.
        head_norm: Whether queries and keys are normed.
        norm_offset: Is added to the weights of these norms.
        fused: Whether the files hold one matrix for queries, keys and values.
    """
    hidden, dim = config.hidden_size, config.head_dim
    counts = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
    parts = {"qkv": sum(counts.values())} if fused else counts
    norm = None
    if head_norm:
        norms = [(files.take(f"{prefix}.{kind}_norm.weight", dim), counts[kind]) for kind in "qk"]
        norm = torch.cat([weight.expand(count, dim) for weight, count in norms]) + norm_offset
    return Attention(
        layer=layer,
        heads=(config.num_heads, config.num_kv_heads, dim),
        qkv=files.linear(
            {f"{prefix}.{part}_proj": count * dim for part, count in parts.items()},
            hidden,
            biased=qkv_bias,
        ),
        output=files.linear(
            {f"{prefix}.o_proj": hidden}, config.num_heads * dim, biased=output_bias
        ),
        head_norm=norm,
        eps=eps,
        ops=files.ops,
    )
