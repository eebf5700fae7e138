"""What a model's `config.json` says, as far as more than the model's own file needs it.

transformers reads the file, with its defaults for every architecture; what we lack is refused by
name before a weight is read. This module knows nothing of weights or of GGUF.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from boughs.kernels.backend import AttentionConfig
from boughs.lang.errors import InvalidRequest, NotFound, Unsupported


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder.

    Attributes:
        architecture: As transformers names it.
        vocab_size: Rows of the embedding; the tokenizer may know fewer tokens.
        hidden_size: Width of the residual stream.
        num_layers: Layers.
        num_heads: Query heads.
        num_kv_heads: Key and value heads; divides `num_heads`.
        head_dim: Width of a head.
        attention_scale: What scores are multiplied by.
        soft_cap: Of the scores, as `AttentionConfig` has it; 0 where there is none.
        windows: Of each layer, how many positions a token sees; 0 stands for all.
        max_position: The longest context that the model was made for, in tokens.
        context_length: The longest that it is used with; at most `max_position`.
        tie_word_embeddings: Whether the output matrix is the embedding.
        eos_token_ids: Tokens that end an answer.
        bos_token_id: The token that begins a text, where there is one.
        details: The config as transformers reads it, for what one architecture alone has; of a
            model that takes images too, the part about text.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    attention_scale: float
    soft_cap: float
    windows: tuple[int, ...]
    max_position: int
    context_length: int
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    details: Any = field(repr=False)

    @classmethod
    def from_folder(
        cls, folder: Path, architectures: Sequence[str], context_length: int | None = None
    ) -> ModelConfig:
        """Read `config.json` and `generation_config.json` of a model's folder.

        Args:
            folder: The folder.
            architectures: Those that there are.
            context_length: The longest that the model will be used with; default its longest.

        Raises:
            NotFound: There is no `config.json`.
            Unsupported: An architecture or a feature that we do not have; names those we have.
            InvalidRequest: The file cannot be read, or the context is longer than the model's.
        """
        raw = _read_json(folder / "config.json")
        if raw is None:
            raise NotFound(f"{folder} is no model: it has no config.json")
        architecture = _architecture(raw, architectures)
        config = _transformers_config(folder).get_text_config()
        _refuse_unknown(raw)
        generation = _read_json(folder / "generation_config.json") or {}
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        max_position = _max_position(config)
        context = _context_length(context_length, max_position)
        return cls(
            architecture=architecture,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            num_heads=heads,
            num_kv_heads=_kv_heads(config),
            head_dim=head_dim,
            attention_scale=_scale(config, head_dim),
            soft_cap=getattr(config, "attn_logit_softcapping", None) or 0.0,
            windows=_windows(config, context),
            max_position=max_position,
            context_length=context,
            tie_word_embeddings=bool(config.tie_word_embeddings),
            eos_token_ids=_ids(generation.get("eos_token_id", config.eos_token_id)),
            bos_token_id=config.bos_token_id,
            details=config,
        )

    def attention(self, page_size: int) -> AttentionConfig:
        """What an attention backend must know, for pages of so many tokens."""
        return AttentionConfig(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            page_size=page_size,
            scale=self.attention_scale,
            soft_cap=self.soft_cap,
            windows=self.windows,
        )


def _architecture(raw: dict[str, Any], architectures: Sequence[str]) -> str:
    """The architecture that a `config.json` names, if we have it."""
    names = raw.get("architectures") or []
    if not names:
        # Files made by hand name the model type only.
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        kind = raw.get("model_type")
        names = [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind, kind)]
    if names[0] not in architectures:
        raise Unsupported(
            f"the architecture {names[0]} is not supported; there are {', '.join(architectures)}",
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


def _refuse_unknown(raw: dict[str, Any]) -> None:
    if raw.get("quantization_config") is not None:
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise Unsupported(f"weights quantized by {method} are not supported", "model_path")


def _kv_heads(config: Any) -> int:
    heads = int(config.num_attention_heads)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or heads)
    if heads % kv_heads:
        raise InvalidRequest(
            f"config.json: {heads} heads cannot be shared out among {kv_heads} KV heads",
            "model_path",
        )
    return kv_heads


def _scale(config: Any, head_dim: int) -> float:
    if not getattr(config, "scale_attn_weights", True):  # of GPT-2
        return 1.0
    # Gemma says which width counts, its head's or another.
    return float(getattr(config, "query_pre_attn_scalar", head_dim) ** -0.5)


def _max_position(config: Any) -> int:
    """The longest context: YaRN's says how much longer than the original it is."""
    rope = getattr(config, "rope_parameters", None) or {}
    longest = int(config.max_position_embeddings)
    if rope.get("rope_type") == "yarn" and rope.get("factor"):
        longest = max(longest, int(rope["original_max_position_embeddings"] * rope["factor"]))
    return longest


def _context_length(asked: int | None, max_position: int) -> int:
    if asked is not None and asked > max_position:
        raise InvalidRequest(
            f"context_length: {asked} is more than the model's own {max_position}",
            "context_length",
        )
    return asked or max_position


def _windows(config: Any, context: int) -> tuple[int, ...]:
    """The window of each layer; one that no context leaves is none."""
    kinds = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) or 0
    if kinds is None:
        kinds = ["sliding_attention"] * config.num_hidden_layers
    known = {"full_attention": 0, "sliding_attention": window if window < context else 0}
    for kind in kinds:
        if kind not in known:
            raise Unsupported(
                f"layers of kind {kind} are not supported; there are {', '.join(known)}",
                "model_path",
            )
    return tuple(known[kind] for kind in kinds)


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
