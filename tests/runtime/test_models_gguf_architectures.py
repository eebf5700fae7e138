"""GGUF files of every architecture, read back as the model they came from."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from boughs.lang.errors import InvalidRequest
from boughs.runtime.models import store
from boughs.runtime.models.gguf import GgufFile
from boughs.runtime.models.gguf_config import MAKERS, config
from boughs.runtime.models.gguf_tensors import LAYOUTS, tensors

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOLERANCE = 1e-4

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [1.0 + 0.5 * i for i in range(8)],
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}
GEMMA = {"tie": True, "sliding_window": 20, "query_pre_attn_scalar": 16}
CASES = {
    "llama": {},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2, yarn": {"model_type": "qwen2", "max_position": 512, "rope_parameters": YARN},
    "qwen3": {"model_type": "qwen3", "tie": True, "head_dim": 32, "hidden_size": 96},
    "qwen3, yarn with its bounds": {
        "model_type": "qwen3",
        "max_position": 512,
        "rope_parameters": YARN | {"beta_fast": 9.0, "beta_slow": 2.0},
    },
    "qwen3 moe": QWEN3_MOE,
    "gemma2": GEMMA | {"model_type": "gemma2", "layers": 3},
    "gemma3": GEMMA | {"model_type": "gemma3_text", "layers": 7},
    "gemma3, linear rope": GEMMA
    | {
        "model_type": "gemma3_text",
        "layers": 6,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "phi3": {"model_type": "phi3", "sliding_window": 30},
    "phi3, partial longrope": {
        "model_type": "phi3",
        "tie": True,
        "head_dim": 32,
        "heads": 2,
        "max_position": 512,
        "original_max_position_embeddings": 32,
        "rope_parameters": LONGROPE | {"partial_rotary_factor": 0.5},
    },
    "gpt2": {"model_type": "gpt2", "kv_heads": 4, "max_position": 128, "tie": True, "n_inner": 160},
    "gpt2, untied": {"model_type": "gpt2", "kv_heads": 4, "max_position": 128},
}


def load(name):
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_tiny_model = load("tiny_models").make_tiny_model
write_gguf = load("tiny_gguf").write_gguf
paged_model = load("paged_model")


def weights(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def converted(file, tmp_path):
    return store.weights(store.resolve(str(file), home=tmp_path / "home"))


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_model_that_was_written(tmp_path, case):
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model(tmp_path / "model", logit_std=4.0, **CASES[case])
    back = converted(write_gguf(folder, tmp_path / "m.gguf"), tmp_path)
    wrote, read = weights(folder), weights(back)
    assert read.keys() == wrote.keys()
    for name in wrote:
        # 1 was added to Gemma's norms and taken away again.
        np.testing.assert_allclose(read[name], wrote[name], rtol=0, atol=5e-7, err_msg=name)
    ids = paged_model.random_ids(70)
    expected = paged_model.transformers_logits(folder, ids)
    found = paged_model.PagedModel(back).step({"a": ids})["a"]
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    # What was made is a model for transformers too.
    again = AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32)
    with torch.inference_mode():
        theirs = again(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(theirs, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", ["mixtral", "qwen3 moe", "gpt2"])
def test_quantized_tensors_come_back_nearly(tmp_path, case):
    folder = make_tiny_model(tmp_path / "model", **CASES[case])
    back = weights(
        converted(write_gguf(folder, tmp_path / "m.gguf", quantization="Q8_0"), tmp_path)
    )
    for name, wrote in weights(folder).items():
        assert np.abs(back[name] - wrote).max() <= 0.02 * np.abs(wrote).max(), name


def test_every_tensor_that_the_format_names_is_known():
    import gguf

    elsewhere = {"rope_freqs", "rope_factors_long", "rope_factors_short", "attn_rot_embd"}
    fused = {"attn_q", "attn_k", "attn_v"}  # Phi-3's files have them as one
    archs = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    assert LAYOUTS.keys() == MAKERS.keys()
    for name, layout in LAYOUTS.items():
        known = layout.outer.keys() | layout.inner.keys() | elsewhere
        if name == "phi3":
            known |= fused
        named = {gguf.TENSOR_NAMES[t] for t in gguf.MODEL_TENSORS[archs[name]]}
        assert {n.removeprefix("blk.{bid}.") for n in named} <= known, name


def edited(tmp_path, case, **fields):
    folder = make_tiny_model(tmp_path / "model", **CASES[case])
    return config(GgufFile(write_gguf(folder, tmp_path / "m.gguf", fields=fields)))


def test_the_largest_gemmas_scale_by_another_width(tmp_path):
    """Files do not say by what scores are scaled; llama.cpp knows it by the number of layers."""
    for case, layers in (("gemma2", 46), ("gemma3", 62)):
        fields = {"block_count": layers, "attention.key_length": 32}
        assert edited(tmp_path / case, case, **fields)["query_pre_attn_scalar"] == 16
        fields["block_count"] = layers - 1
        assert edited(tmp_path / case, case, **fields)["query_pre_attn_scalar"] == 32


def test_patterns_and_bases_of_windows_that_files_name(tmp_path):
    made = edited(
        tmp_path,
        "gemma3",
        **{"attention.sliding_window_pattern": 3, "rope.freq_base_swa": 20000.0},
    )
    short = [kind.removesuffix("_attention") for kind in made["layer_types"]]
    assert short == ["sliding", "sliding", "full"] * 2 + ["sliding"]
    assert made["rope_parameters"]["sliding_attention"]["rope_theta"] == 20000.0
    pattern = [True, False, False, True, True, False, True]
    made = edited(tmp_path, "gemma3", **{"attention.sliding_window_pattern": pattern})
    assert [kind == "sliding_attention" for kind in made["layer_types"]] == pattern


def test_a_llama_with_a_window_is_mistral(tmp_path):
    made = edited(tmp_path, "llama", **{"attention.sliding_window": 33})
    assert made["architectures"] == ["MistralForCausalLM"]
    assert made["sliding_window"] == 33


def test_what_is_missing_is_named(tmp_path):
    with pytest.raises(InvalidRequest, match=r"llama\.expert_used_count is missing"):
        edited(tmp_path, "llama", expert_count=8)


def test_a_file_with_experts_is_read_part_by_part(tmp_path):
    """Each expert is a tensor of its own, which is dequantized when it is asked for."""
    folder = make_tiny_model(tmp_path / "model", layers=1, **CASES["mixtral"])
    file = GgufFile(write_gguf(folder, tmp_path / "m.gguf"))
    wrote = weights(folder)
    for entry in tensors(file):
        assert wrote[entry.name].shape == entry.shape
        np.testing.assert_array_equal(entry.load(), wrote[entry.name], err_msg=entry.name)
    description = json.loads((folder / "config.json").read_text())
    assert description["num_local_experts"] == config(file)["num_local_experts"] == 4
