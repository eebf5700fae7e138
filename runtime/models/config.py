"""What a model's forward pass must know of its `config.json`, as plain numbers.

transformers reads the file, with its defaults for every architecture; what we lack is refused
here, by name, before a weight is read. This module knows nothing of weights or of GGUF.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from boughs.lang.errors import InvalidRequest, NotFound, Unsupported

from .rope import frequencies

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM")


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder of the Llama family.

    Attributes:
        architecture: As transformers names it.
        vocab_size: Rows of the embedding; the tokenizer may know fewer tokens.
        hidden_size: Width of the residual stream.
        num_layers: Layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides `num_heads`.
        head_dim: Width of a head; even.
        intermediate_size: Width of the MLP.
        rms_norm_eps: Added to the mean square in every norm.
        rope_frequencies: Radians per position, one per pair of a head's rows, after scaling.
        max_position: The longest context, in tokens.
        tie_word_embeddings: Whether the output matrix is the embedding.
        qkv_bias, output_bias, mlp_bias: Whether these projections have a bias.
        eos_token_ids: Tokens that end an answer.
        bos_token_id: The token that begins a text, where there is one.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_frequencies: tuple[float, ...]
    max_position: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `config.json` and `generation_config.json` of a model's folder.

        Raises:
            NotFound: There is no `config.json`.
            Unsupported: An architecture or a feature that we do not have; names those we have.
        """
        raw = _read_json(folder / "config.json")
        if raw is None:
            raise NotFound(f"{folder} is no model: it has no config.json")
        architecture = _architecture(raw)
        config = _transformers_config(folder)
        _refuse_unknown(config, raw)
        generation = _read_json(folder / "generation_config.json") or {}
        head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        # Llama has one switch for all four projections, Qwen2 always biases q, k and v.
        bias = bool(getattr(config, "attention_bias", False))
        return cls(
            architecture=architecture,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            intermediate_size=config.intermediate_size,
            rms_norm_eps=config.rms_norm_eps,
            rope_frequencies=tuple(frequencies(config.rope_parameters, head_dim).tolist()),
            max_position=_context(config),
            tie_word_embeddings=bool(config.tie_word_embeddings),
            qkv_bias=bias or architecture == "Qwen2ForCausalLM",
            output_bias=bias,
            mlp_bias=bool(getattr(config, "mlp_bias", False)),
            eos_token_ids=_ids(generation.get("eos_token_id", config.eos_token_id)),
            bos_token_id=config.bos_token_id,
        )


def _architecture(raw: dict[str, Any]) -> str:
    """The architecture that a `config.json` names, if we have it."""
    names = raw.get("architectures") or []
    if not names:
        # Files made by hand name the model type only.
        by_type = {name.removesuffix("ForCausalLM").lower(): name for name in ARCHITECTURES}
        names = [by_type.get(raw.get("model_type", ""), raw.get("model_type"))]
    if names[0] not in ARCHITECTURES:
        raise Unsupported(
            f"the architecture {names[0]} is not supported; there are {', '.join(ARCHITECTURES)}",
            "model_path",
        )
    return str(names[0])


def _transformers_config(folder: Path) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InvalidRequest(
            f"{folder / 'config.json'} cannot be read: {error}", "model_path"
        ) from error


def _refuse_unknown(config: Any, raw: dict[str, Any]) -> None:
    if raw.get("quantization_config") is not None:
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise Unsupported(f"weights quantized by {method} are not supported", "model_path")
    if config.hidden_act != "silu":
        raise Unsupported(f"the activation {config.hidden_act} is not supported", "model_path")
    if config.num_attention_heads % config.num_key_value_heads:
        raise InvalidRequest(
            f"config.json: {config.num_attention_heads} heads cannot be shared out among "
            f"{config.num_key_value_heads} KV heads",
            "model_path",
        )


def _context(config: Any) -> int:
    """The longest context whose attention is full.

    A model with a sliding window attends to everything as long as the context fits the window, so
    that is where its context ends here.
    """
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None)
    longest = config.max_position_embeddings
    slides = window is not None and (layers is None or "sliding_attention" in layers)
    return int(min(longest, window) if slides else longest)


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _read_json(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file, or None where there is no file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidRequest(f"{path} is no JSON: {error}", "model_path") from error
    if not isinstance(content, dict):
        raise InvalidRequest(f"{path} must hold an object", "model_path")
    return content
