"""The tensors of a GGUF file under the names, and in the order of rows, that transformers uses.

What llama.cpp's converter did to them is undone: the rows of Llama's queries and keys that it
sorted, the 1 that it added to Gemma's norms, the matrices of GPT-2 that it turned, the experts that
it put into one tensor. This module knows no settings and never computes with a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boughs.lang.errors import Unsupported

from .gguf import GgufFile
from .gguf_rope import ROPE_TENSORS

Array = NDArray[np.float32]
Entry = tuple[str, tuple[int, ...], Callable[[], Array]]
"""Name, shape, and what reads the tensor."""


@dataclass(frozen=True)
class Layout:
    """Where an architecture keeps its tensors, here and in transformers.

    Attributes:
        outer: Names of those of no layer.
        layer: What those of a layer begin with in transformers; takes its number.
        inner: Names of those of a layer. `{expert}` stands for a number, of the outermost
            dimension here.
    """

    outer: Mapping[str, str]
    layer: str
    inner: Mapping[str, str]


_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LLAMA = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.{expert}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{expert}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{expert}.w2",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_QWEN_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.{expert}.gate_proj",
    "ffn_up_exps": "mlp.experts.{expert}.up_proj",
    "ffn_down_exps": "mlp.experts.{expert}.down_proj",
}
_PHI3 = {
    "attn_norm": "input_layernorm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_up": "mlp.gate_up_proj",
    "ffn_down": "mlp.down_proj",
}
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GPT2 = Layout(
    {
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    "transformer.h.{}",
    {
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    },
)


def _layout(*inner: Mapping[str, str]) -> Layout:
    names = {here: there for part in inner for here, there in part.items()}
    return Layout(_OUTER, "model.layers.{}", names)


LAYOUTS = {
    "llama": _layout(_LLAMA, _MIXTRAL),
    "qwen2": _layout(_LLAMA),
    "qwen3": _layout(_LLAMA, _HEAD_NORMS),
    "qwen3moe": _layout(_LLAMA, _HEAD_NORMS, _QWEN_EXPERTS),
    "gemma2": _layout(_LLAMA, _SANDWICH),
    "gemma3": _layout(_LLAMA, _HEAD_NORMS, _SANDWICH),
    "phi3": _layout(_PHI3),
    "gpt2": _GPT2,
}
"""Of each GGUF architecture. Mistral and Mixtral are `llama` there."""


def tensors(file: GgufFile) -> Iterator[Entry]:
    """Name, shape and loader of every tensor, under transformers' names.

    Calling a loader gives the float32 array; nothing is dequantized before.

    Raises:
        Unsupported: An architecture or a tensor that we do not know.
    """
    check_architecture(file)
    layout = LAYOUTS[file.architecture]
    for name in file.names:
        if name not in ROPE_TENSORS:
            yield from _entries(file, layout, name)


def check_architecture(file: GgufFile) -> None:
    """Refuse, by name, an architecture that we do not have."""
    if file.architecture not in LAYOUTS:
        raise Unsupported(
            f"{file.path.name}: the GGUF architecture {file.architecture!r} is not supported; "
            f"there are {', '.join(sorted(LAYOUTS))}",
            "model_path",
        )


def _entries(file: GgufFile, layout: Layout, name: str) -> Iterator[Entry]:
    """The tensor that one of the file's is, or the several that it holds."""
    there = _hf_name(file, layout, name)
    shape, undo = file.shape(name), _undo(file, name)
    if "{expert}" in there:
        for expert in range(shape[0]):
            yield (
                there.format(expert=expert),
                shape[1:],
                lambda expert=expert: file.load(name, expert),  # type: ignore[misc]
            )
    else:
        turned = undo is np.transpose
        yield there, shape[::-1] if turned else shape, lambda: undo(file.load(name))


def _hf_name(file: GgufFile, layout: Layout, name: str) -> str:
    stem, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if layer and layer[2] in layout.inner:
        return f"{layout.layer.format(layer[1])}.{layout.inner[layer[2]]}.{kind}"
    if stem in layout.outer:
        return f"{layout.outer[stem]}.{kind}"
    raise Unsupported(
        f"{file.path.name}: the tensor {name} does not belong to a {file.architecture} model",
        "model_path",
    )


def _undo(file: GgufFile, name: str) -> Callable[[Array], Any]:
    """What undoes the converter's change of a tensor."""
    if file.architecture == "llama" and re.search(r"\.attn_[qk]\.", name):
        heads = file.need("attention.head_count")
        if ".attn_k." in name:
            heads = file.setting("attention.head_count_kv", heads)
        return lambda array: _unpermute(array, int(heads))
    if file.architecture in {"gemma2", "gemma3"} and name.endswith("norm.weight"):
        return lambda array: array - np.float32(1)
    if file.architecture == "gpt2" and re.search(r"blk\..*\.(attn|ffn)_(?!norm)\w+\.weight", name):
        return np.transpose
    return lambda array: array


def _unpermute(array: Array, heads: int) -> Array:
    """Rows of a q or k matrix (or bias) from llama.cpp's order back to transformers'.

    llama.cpp rotates neighbouring rows (0, 1), (2, 3), …; transformers rotates row i of a head
    with row i + head_dim / 2.
    """
    half = array.shape[0] // heads // 2
    return array.reshape(heads, half, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
