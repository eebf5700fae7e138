"""The tensors of a GGUF file under the names, and in the order of rows, that transformers uses.

What llama.cpp's converter did to them is undone: the rows of Llama's queries and keys that it
sorted, the 1 that it added to Gemma's norms, the matrices of GPT-2 that it turned, the experts that
it put into one tensor. This module knows no settings and never computes with a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boughs.kernels.weight import Weight
from boughs.lang.errors import Unsupported

from .gguf import GgufFile
from .gguf_blocks import read_blocks
from .gguf_rope import ROPE_TENSORS

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Entry:
    """A tensor under transformers' name.

    Attributes:
        file: Holds it.
        here: Its name in the file.
        name: Its name in transformers.
        shape: Its shape in transformers.
        part: Where it lies in the outermost dimension of what the file holds, if it is a part.
        heads: Of queries or keys whose rows the converter sorted.
        turned: Whether the file has it as [out, in] where transformers has [in, out].
        added: Was added to its numbers.
    """

    file: GgufFile
    here: str
    name: str
    shape: tuple[int, ...]
    part: int | None = None
    heads: int | None = None
    turned: bool = False
    added: int = 0

    @property
    def format(self) -> str:
        """The number format in the file, such as `Q4_1`."""
        return self.file.format(self.here)

    def load(self) -> Array:
        """The tensor in float32."""
        array = self.file.load(self.here, self.part)
        if self.heads is not None:
            array = array[sorted_rows(len(array), self.heads)]
        if self.added:
            array = array - np.float32(self.added)
        return array.T if self.turned else array

    def weight(self) -> Weight:
        """The matrix [out, in], in the file's own format if we have that, in float32 else."""
        found = read_blocks(self.format, self.file.raw(self.here, self.part))
        if found is None:
            found = Weight("float32", self.file.load(self.here, self.part))
        if self.heads is not None:
            found = found.rows(sorted_rows(found.shape[0], self.heads))
        return found


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
    """Every tensor, under transformers' names. None is read yet.

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
    there, shape = _hf_name(file, layout, name), file.shape(name)
    if "{expert}" in there:
        for expert in range(shape[0]):
            yield Entry(file, name, there.format(expert=expert), shape[1:], part=expert)
    elif file.architecture == "llama" and re.search(r"\.attn_[qk]\.", name):
        heads = file.need("attention.head_count")
        if ".attn_k." in name:
            heads = file.setting("attention.head_count_kv", heads)
        yield Entry(file, name, there, shape, heads=int(heads))
    elif file.architecture in {"gemma2", "gemma3"} and name.endswith("norm.weight"):
        yield Entry(file, name, there, shape, added=1)
    elif _is_turned(file, name):
        yield Entry(file, name, there, shape[::-1], turned=True)
    else:
        yield Entry(file, name, there, shape)


def _is_turned(file: GgufFile, name: str) -> bool:
    found = re.search(r"blk\..*\.(attn|ffn)_(?!norm)\w+\.weight", name)
    return file.architecture == "gpt2" and found is not None


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


def sorted_rows(rows: int, heads: int) -> NDArray[np.int64]:
    """Which of llama.cpp's rows of a q or k matrix (or bias) each of transformers' is.

    llama.cpp rotates neighbouring rows (0, 1), (2, 3), …; transformers rotates row i of a head
    with row i + head_dim / 2.
    """
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
