"""The settings of a GGUF file as the `config.json` that transformers reads.

A file says less than such a config does; what it leaves out is what llama.cpp takes for granted.
This module reads no weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .gguf import GgufFile
from .gguf_rope import float32, rope_parameters
from .gguf_tensors import check_architecture

_GEMMA_27B = {"gemma2": 46, "gemma3": 62}
"""Layers of those whose scores are scaled by the hidden size and not by the head's width."""


def config(file: GgufFile) -> dict[str, Any]:
    """The content of a `config.json`.

    Raises:
        Unsupported: An architecture or a feature that we do not have; names it.
        InvalidRequest: A field is missing.
    """
    check_architecture(file)
    made = MAKERS[file.architecture](file)
    tied = {"tie_word_embeddings": "output.weight" not in file, "dtype": "float32"}
    return made | tied | _special_ids(file)


def generation_config(file: GgufFile) -> dict[str, Any]:
    """The content of a `generation_config.json`: the tokens that end an answer.

    Files of models with a turn's end beside the text's end (Llama 3) name several.
    """
    ids = _special_ids(file)
    ends = [file.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    unique = list(dict.fromkeys(int(end) for end in ends if end is not None))
    if unique:
        ids["eos_token_id"] = unique[0] if len(unique) == 1 else unique
    return ids


def _special_ids(file: GgufFile) -> dict[str, Any]:
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    found = {k: file.get(f"tokenizer.ggml.{name}_token_id") for k, name in names.items()}
    return {f"{kind}_token_id": value for kind, value in found.items() if value is not None}


def _common(file: GgufFile, model_type: str, architecture: str) -> dict[str, Any]:
    """What all but GPT-2 have."""
    hidden, heads = int(file.need("embedding_length")), int(file.need("attention.head_count"))
    head_dim = int(file.setting("attention.key_length", hidden // heads))
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": file.shape("token_embd.weight")[0],
        "hidden_size": hidden,
        "intermediate_size": int(file.need("feed_forward_length")),
        "num_hidden_layers": int(file.need("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(file.setting("attention.head_count_kv", heads)),
        "head_dim": head_dim,
        "max_position_embeddings": int(file.need("context_length")),
        "rms_norm_eps": float32(file.need("attention.layer_norm_rms_epsilon")),
        "rope_parameters": rope_parameters(file, head_dim),
    }


def _window(file: GgufFile) -> int | None:
    return int(file.setting("attention.sliding_window", 0)) or None


def _llama(file: GgufFile) -> dict[str, Any]:
    """Llama, or one of those that are called so: Mistral by its window, Mixtral by its experts."""
    if file.setting("expert_count"):
        return _common(file, "mixtral", "MixtralForCausalLM") | {
            "num_local_experts": int(file.need("expert_count")),
            "num_experts_per_tok": int(file.need("expert_used_count")),
            "sliding_window": _window(file),
        }
    if _window(file):
        return _common(file, "mistral", "MistralForCausalLM") | {"sliding_window": _window(file)}
    return _common(file, "llama", "LlamaForCausalLM") | {
        "attention_bias": "blk.0.attn_q.bias" in file,
        "mlp_bias": "blk.0.ffn_gate.bias" in file,
    }


def _qwen2(file: GgufFile) -> dict[str, Any]:
    return _common(file, "qwen2", "Qwen2ForCausalLM")


def _qwen3(file: GgufFile) -> dict[str, Any]:
    return _common(file, "qwen3", "Qwen3ForCausalLM")


def _qwen3moe(file: GgufFile) -> dict[str, Any]:
    return _common(file, "qwen3_moe", "Qwen3MoeForCausalLM") | {
        "num_experts": int(file.need("expert_count")),
        "num_experts_per_tok": int(file.need("expert_used_count")),
        "moe_intermediate_size": int(file.need("expert_feed_forward_length")),
        "norm_topk_prob": bool(file.setting("expert_weights_norm", default=True)),
    }


def _gemma(file: GgufFile, model_type: str, architecture: str) -> dict[str, Any]:
    made = _common(file, model_type, architecture)
    is_27b = made["num_hidden_layers"] == _GEMMA_27B[file.architecture]
    width = made["hidden_size"] // made["num_attention_heads"] if is_27b else made["head_dim"]
    return made | {
        "query_pre_attn_scalar": width,
        "sliding_window": _window(file),
        "final_logit_softcapping": _cap(file, "final_logit_softcapping"),
        "attn_logit_softcapping": _cap(file, "attn_logit_softcapping"),
    }


def _cap(file: GgufFile, key: str) -> float | None:
    value = file.setting(key)
    return float32(value) if value else None


def _gemma2(file: GgufFile) -> dict[str, Any]:
    return _gemma(file, "gemma2", "Gemma2ForCausalLM")


def _gemma3(file: GgufFile) -> dict[str, Any]:
    """Its layers with a window have a rope of their own, which files seldom name."""
    made = _gemma(file, "gemma3_text", "Gemma3ForCausalLM")
    local = float32(file.setting("rope.freq_base_swa", 10000.0))
    pattern = file.setting("attention.sliding_window_pattern", 6)
    layers = range(made["num_hidden_layers"])
    slides = [bool((i + 1) % pattern) for i in layers] if isinstance(pattern, int) else pattern
    return made | {
        "rope_parameters": {
            "full_attention": made["rope_parameters"],
            "sliding_attention": {"rope_type": "default", "rope_theta": local},
        },
        "layer_types": [f"{'sliding' if sliding else 'full'}_attention" for sliding in slides],
    }


def _phi3(file: GgufFile) -> dict[str, Any]:
    made = _common(file, "phi3", "Phi3ForCausalLM") | {"sliding_window": _window(file)}
    original = made["rope_parameters"].get("original_max_position_embeddings")
    return made | {"original_max_position_embeddings": original or made["max_position_embeddings"]}


def _gpt2(file: GgufFile) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": file.shape("token_embd.weight")[0],
        "n_positions": file.shape("position_embd.weight")[0],
        "n_embd": int(file.need("embedding_length")),
        "n_layer": int(file.need("block_count")),
        "n_head": int(file.need("attention.head_count")),
        "n_inner": int(file.need("feed_forward_length")),
        "layer_norm_epsilon": float32(file.need("attention.layer_norm_epsilon")),
    }


MAKERS: dict[str, Callable[[GgufFile], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3moe": _qwen3moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt2": _gpt2,
}
"""What makes the config of each GGUF architecture."""
