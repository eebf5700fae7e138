"""What configs mean, in the forms that the hub has, and what the docs say of them."""

import importlib.util
import json
from pathlib import Path

import pytest

from boughs.lang.errors import InvalidRequest
from boughs.runtime.models.gguf_tensors import LAYOUTS
from boughs.runtime.models.load import MODELS, load_config, load_model
from boughs.runtime.models.rope import KINDS, make_rope

ROOT = Path(__file__).parents[2]

YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "layers": 4,
    "sliding_window": 20,
    "sliding_window_pattern": 3,
}


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / "fixtures" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_tiny_model = load("tiny_models").make_tiny_model


def test_context_lengths(tmp_path):
    folder = make_tiny_model(tmp_path / "a", max_position=512)
    assert load_config(folder).context_length == 512
    assert load_config(folder, 100).context_length == 100
    with pytest.raises(InvalidRequest, match="513 is more than the model's own 512"):
        load_model(folder, context_length=513)
    folder = make_tiny_model(tmp_path / "b", max_position=256, rope_parameters=YARN)
    assert load_config(folder).max_position == 512  # four times the original
    folder = make_tiny_model(tmp_path / "c", **GEMMA3, max_position=512)
    assert load_config(folder).windows == (20, 20, 0, 20)
    assert load_config(folder, 21).windows == (20, 20, 0, 20)
    assert load_config(folder, 20).windows == (0, 0, 0, 0)


PUBLISHED = {
    "mistralai/Mistral-7B-v0.1": (
        {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "hidden_size": 4096,
         "num_attention_heads": 32, "num_key_value_heads": 8, "sliding_window": 4096,
         "max_position_embeddings": 32768, "rope_theta": 10000.0},
        {"windows": (4096,) * 32, "max_position": 32768, "head_dim": 128},
    ),
    "microsoft/Phi-3-mini-128k-instruct": (
        {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "hidden_size": 3072,
         "num_attention_heads": 32, "max_position_embeddings": 131072, "rope_theta": 10000.0,
         "original_max_position_embeddings": 4096, "sliding_window": 262144,
         "rope_scaling": {"type": "longrope", "long_factor": [2.0] * 48,
                          "short_factor": [1.0] * 48}},
        {"windows": (0,) * 32, "max_position": 131072, "num_kv_heads": 32, "head_dim": 96},
    ),
    "google/gemma-2-2b": (
        {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 256,
         "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
         "query_pre_attn_scalar": 256, "sliding_window": 4096, "num_hidden_layers": 26,
         "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid"},
        {"windows": (4096, 0) * 13, "soft_cap": 50.0, "attention_scale": 1 / 16,
         "max_position": 8192, "tie_word_embeddings": True},
    ),
    "google/gemma-3-1b-it": (
        {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "head_dim": 256,
         "num_hidden_layers": 26, "sliding_window": 512, "sliding_window_pattern": 6,
         "rope_local_base_freq": 10000, "rope_theta": 1000000, "rope_scaling": None,
         "max_position_embeddings": 32768, "eos_token_id": [1, 106]},
        {"windows": (*((512,) * 5 + (0,)) * 4, 512, 512), "eos_token_ids": (1, 106)},
    ),
    "Qwen/Qwen2.5-7B-Instruct": (
        {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_hidden_layers": 28,
         "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4,
         "use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28},
        {"windows": (0,) * 28, "head_dim": 128},
    ),
    "Qwen/Qwen3-8B, with its card's YaRN": (
        {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128,
         "num_key_value_heads": 8, "max_position_embeddings": 40960, "rope_theta": 1000000,
         "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                          "original_max_position_embeddings": 32768}},
        {"max_position": 131072, "windows": (0,) * 32},
    ),
    "openai-community/gpt2": (
        {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768,
         "n_head": 12, "n_layer": 12, "n_positions": 1024, "activation_function": "gelu_new"},
        {"max_position": 1024, "num_kv_heads": 12, "head_dim": 64, "tie_word_embeddings": True,
         "eos_token_ids": (50256,)},
    ),
}  # fmt: skip
"""What matters of configs on the hub, whose forms are older than today's, and what they mean."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_configs_as_they_were_published(tmp_path, name):
    written, means = PUBLISHED[name]
    (tmp_path / "config.json").write_text(json.dumps(written))
    config = load_config(tmp_path)
    assert {field: getattr(config, field) for field in means} == means
    rope = getattr(config.details, "rope_parameters", None)
    if rope and "full_attention" not in rope:
        assert make_rope(rope, config.head_dim, config.max_position, config.context_length)


def test_a_model_type_without_an_architecture(tmp_path):
    names = {"qwen3_moe": "Qwen3MoeForCausalLM", "gpt2": "GPT2LMHeadModel"}
    for model_type, name in names.items():
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        assert load_config(tmp_path).architecture == name


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": 0.0},
        {"rope_type": "linear", "factor": "two"},
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8},
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 7,
            "long_factor": [1.0] * 7,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_rope_that_cannot_be_read_is_named(rope):
    with pytest.raises(InvalidRequest, match=rope["rope_type"]):
        make_rope({"rope_theta": 1e4, **rope}, 16, 128, 128)


def test_the_docs_list_what_runs():
    text = (ROOT / "docs" / "models.md").read_text()
    for name in [*MODELS, *KINDS, *LAYOUTS]:
        assert f"`{name}`" in text or f"`{name} " in text, name
