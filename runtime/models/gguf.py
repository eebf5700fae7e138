"""GGUF files: their settings as a transformers config, their tensors in float32.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, read through the `gguf` package.
A file gives what a hub folder holds: `config`, `generation_config` and named tensors under the
names that transformers uses. The tokenizer is built in `gguf_tokenizer`. This module knows nothing
of where models are kept and never computes with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from boughs.lang.errors import InvalidRequest, Unsupported

_MODEL_TYPES = {"llama": "llama", "qwen2": "qwen2"}
"""GGUF architecture to transformers' model type. Mistral is `llama` there."""

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}

_OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_INNER = {
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
_ROPE_FACTORS = "rope_freqs.weight"

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


class GgufFile:
    """One GGUF model, in one file or in numbered parts of which `path` is the first.

    Attributes:
        path: The file.
        parts: All its files; often just the one.
        architecture: As the file names it, such as `llama`.

    Raises:
        InvalidRequest: The file is no GGUF, is cut short, or a part is missing.
        Unsupported: Its architecture is none of ours.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = _parts(path)
        self._readers = [_reader(part) for part in self.parts]
        self._fields = self._readers[0].fields
        self._tensors = {t.name: t for reader in self._readers for t in reader.tensors}
        self.architecture = str(self.get("general.architecture"))
        if self.architecture not in _MODEL_TYPES:
            raise Unsupported(
                f"{path.name}: the GGUF architecture {self.architecture!r} is not supported; "
                f"there are {', '.join(sorted(_MODEL_TYPES))}",
                "model_path",
            )

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata field, as Python data, or `default` where there is none."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of a field of this architecture, such as `block_count`."""
        return self.get(f"{self.architecture}.{key}", default)

    def need(self, key: str) -> Any:
        """Like `setting`, for a field without which the model cannot be read."""
        value = self.setting(key)
        if value is None:
            raise InvalidRequest(
                f"{self.path.name}: the field {self.architecture}.{key} is missing", "model_path"
            )
        return value

    def config(self) -> dict[str, Any]:
        """The content of a `config.json` that transformers reads."""
        if self.setting("expert_count"):
            raise Unsupported(f"{self.path.name}: mixture-of-experts GGUF is not supported")
        hidden, heads = int(self.need("embedding_length")), int(self.need("attention.head_count"))
        head_dim = int(self.setting("attention.key_length", hidden // heads))
        if self.setting("rope.dimension_count", head_dim) != head_dim:
            raise Unsupported(f"{self.path.name}: rotation of a part of the head is not supported")
        config: dict[str, Any] = {
            "architectures": [_ARCHITECTURES[self.architecture]],
            "model_type": _MODEL_TYPES[self.architecture],
            "vocab_size": int(self._shape("token_embd.weight")[0]),
            "hidden_size": hidden,
            "intermediate_size": int(self.need("feed_forward_length")),
            "num_hidden_layers": int(self.need("block_count")),
            "num_attention_heads": heads,
            "num_key_value_heads": int(self.setting("attention.head_count_kv", heads)),
            "head_dim": head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": int(self.need("context_length")),
            "rms_norm_eps": _float32(self.need("attention.layer_norm_rms_epsilon")),
            "rope_parameters": self._rope(head_dim),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "dtype": "float32",
        }
        if self.architecture == "llama":
            config["attention_bias"] = "blk.0.attn_q.bias" in self._tensors
            config["mlp_bias"] = "blk.0.ffn_gate.bias" in self._tensors
        return config | self._special_ids()

    def generation_config(self) -> dict[str, Any]:
        """The content of a `generation_config.json`: the tokens that end an answer.

        Files of models with a turn's end beside the text's end (Llama 3) name several.
        """
        ids = self._special_ids()
        ends = [self.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
        unique = list(dict.fromkeys(int(end) for end in ends if end is not None))
        if unique:
            ids["eos_token_id"] = unique[0] if len(unique) == 1 else unique
        return ids

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...], Any]]:
        """Name, shape and loader of every tensor, under transformers' names.

        Calling a loader gives the float32 array; nothing is dequantized before.

        Raises:
            Unsupported: A tensor that this architecture does not have.
        """
        for name in self._tensors:
            if name != _ROPE_FACTORS:
                yield self._hf_name(name), self._shape(name), lambda name=name: self._load(name)

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._tensors:
            raise InvalidRequest(f"{self.path.name}: the tensor {name} is missing", "model_path")
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def _hf_name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        if layer and layer[2] in _INNER:
            return f"model.layers.{layer[1]}.{_INNER[layer[2]]}.{kind}"
        if stem in _OUTER:
            return f"{_OUTER[stem]}.{kind}"
        raise Unsupported(
            f"{self.path.name}: the tensor {name} does not belong to a {self.architecture} model",
            "model_path",
        )

    def _load(self, name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """A tensor in float32, in transformers' order of rows."""
        import gguf

        tensor = self._tensors[name]
        flat = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        array = np.asarray(flat, dtype=np.float32).reshape(self._shape(name))
        if self.architecture == "llama" and re.search(r"\.attn_[qk]\.", name):
            heads = self.need("attention.head_count")
            if ".attn_k." in name:
                heads = self.setting("attention.head_count_kv", heads)
            array = _unpermute(array, int(heads))
        return array

    def _special_ids(self) -> dict[str, Any]:
        names = {"bos": "bos", "eos": "eos", "pad": "padding"}
        found = {k: self.get(f"tokenizer.ggml.{name}_token_id") for k, name in names.items()}
        return {f"{kind}_token_id": value for kind, value in found.items() if value is not None}

    def _rope(self, head_dim: int) -> dict[str, Any]:
        """The `rope_parameters` of the config."""
        theta = _float32(self.setting("rope.freq_base", 10000.0))
        kind = self.setting("rope.scaling.type", "none")
        rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
        if _ROPE_FACTORS in self._tensors:
            return self._llama3_rope(theta, head_dim)
        if kind == "linear":
            return rope | {"rope_type": "linear", "factor": float(self.need("rope.scaling.factor"))}
        if kind != "none":
            raise Unsupported(f"{self.path.name}: rope scaling of kind {kind!r} in a GGUF file")
        return rope

    def _llama3_rope(self, theta: float, head_dim: int) -> dict[str, Any]:
        """Llama 3's scaling. The file holds its result, one divisor per frequency, not its inputs.

        All published models share the inputs but `factor`; what comes out must be what is there.
        """
        from .rope import llama3_frequencies, plain_frequencies

        divisors = np.asarray(self._load(_ROPE_FACTORS), dtype=np.float64)
        rope: dict[str, Any] = {
            "rope_type": "llama3",
            "rope_theta": theta,
            "factor": round(float(divisors.max()), 4),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        plain = plain_frequencies(theta, head_dim)
        ours = (plain / llama3_frequencies(plain, rope)).numpy()
        if divisors.shape != ours.shape or not np.allclose(divisors, ours, rtol=1e-4):
            raise Unsupported(f"{self.path.name}: rope_freqs are not those of a Llama 3 model")
        return rope


def _parts(path: Path) -> list[Path]:
    """All files of the model of which `path` is the only or the first one."""
    name = _PART.fullmatch(path.name)
    if name is None:
        return [path]
    if int(name[2]) != 1:
        raise InvalidRequest(f"{path.name} is a later part; name the first one", "model_path")
    parts = [
        path.with_name(f"{name[1]}-{i:05d}-of-{name[3]}.gguf") for i in range(1, int(name[3]) + 1)
    ]
    for part in parts:
        if not part.is_file():
            raise InvalidRequest(f"{path.name}: the part {part.name} is missing", "model_path")
    return parts


def _reader(path: Path) -> Any:
    import gguf

    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise InvalidRequest(
            f"{path}: not a complete GGUF file ({error or type(error).__name__})", "model_path"
        ) from error


def _unpermute(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of a q or k matrix (or bias) from llama.cpp's order back to transformers'.

    llama.cpp rotates neighbouring rows (0, 1), (2, 3), …; transformers rotates row i of a head
    with row i + head_dim / 2.
    """
    half = array.shape[0] // heads // 2
    return array.reshape(heads, half, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _float32(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 and not 9.999999747378752e-06."""
    return float(str(np.float32(value)))
