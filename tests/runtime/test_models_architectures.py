"""Every architecture against transformers' own class on the same float32 weights.

Prompts are longer than the sliding windows; they are computed whole and in chunks, alone and
together, over pages of several sizes.
"""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.runtime.models import tensors
from boughs.runtime.models.load import MODELS, load_config, load_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOLERANCE = 1e-4

LONG, SHORT = ([1.0 + 0.5 * i * step for i in range(8)] for step in (1, 0.3))
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": SHORT,
    "long_factor": LONG,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
MIXTURE = {"num_experts_per_tok": 2, "intermediate_size": 48}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
GPT2 = {"model_type": "gpt2", "kv_heads": 4, "max_position": 128}

SHAPES = {
    "mistral": {"model_type": "mistral", "sliding_window": 24},
    "mistral, a window that no request leaves": {"model_type": "mistral", "sliding_window": 4096},
    "qwen2, windows above": {
        "model_type": "qwen2",
        "layers": 3,
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 1,
    },
    "qwen2, yarn": {"model_type": "qwen2", "max_position": 512, "rope_parameters": YARN},
    "llama, yarn, all set": {
        "head_dim": 32,
        "rope_parameters": YARN
        | {"mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 9, "beta_slow": 2, "truncate": False},
    },
    "llama, yarn, attention factor": {"rope_parameters": YARN | {"attention_factor": 1.25}},
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "hidden_size": 48},
    "qwen3, tied, biases, a window": {
        "model_type": "qwen3",
        "tie": True,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 20,
        "max_window_layers": 1,
    },
    "phi3": {"model_type": "phi3", "sliding_window": 30},
    "phi3, partial rotation": {
        "model_type": "phi3",
        "tie": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
        },
    },
    "phi3, longrope": {
        "model_type": "phi3",
        "max_position": 512,
        "original_max_position_embeddings": 32,
        "rope_parameters": LONGROPE,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, **MIXTURE},
    "mixtral, tied, a window": {
        "model_type": "mixtral",
        "num_local_experts": 5,
        "tie": True,
        "sliding_window": 33,
        **MIXTURE,
    },
    "qwen3 moe": QWEN3_MOE,
    "qwen3 moe, normalized, some layers dense": {
        **QWEN3_MOE,
        "layers": 4,
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "tie": True,
    },
    "gemma2": {"model_type": "gemma2", "layers": 3, "tie": True, "sliding_window": 24},
    "gemma2, sharp caps, untied": {
        "model_type": "gemma2",
        "sliding_window": 17,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 9.0,
        "attention_bias": True,
    },
    "gemma2, no caps": {
        "model_type": "gemma2",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "layers": 4,
        "tie": True,
        "sliding_window": 20,
        "sliding_window_pattern": 3,
    },
    "gemma3, linear rope of the full layers": {
        "model_type": "gemma3_text",
        "sliding_window": 31,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 40,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "gpt2": {**GPT2, "tie": True},
    "gpt2, untied, its own scales": {
        **GPT2,
        "n_inner": 40,
        "scale_attn_by_inverse_layer_idx": True,
        "activation_function": "gelu",
    },
    "gpt2, scores as they are": {**GPT2, "tie": True, "scale_attn_weights": False},
}


def load(name):
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_tiny_model = load("tiny_models").make_tiny_model
paged_model = load("paged_model")
Paged, random_ids, theirs = (
    paged_model.PagedModel,
    paged_model.random_ids,
    paged_model.transformers_logits,
)


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_every_architecture_has_a_shape():
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as NAMES

    seen = {NAMES[shape.get("model_type", "llama")] for shape in SHAPES.values()}
    assert seen | {"Gemma3ForConditionalGeneration"} == set(MODELS)


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers(tmp_path, shape):
    folder = make_tiny_model(tmp_path, logit_std=4.0, seed=len(shape), **SHAPES[shape])
    first, second = random_ids(70, seed=1), random_ids(45, seed=2)
    expected, beside = theirs(folder, first, second)
    assert expected.std() > 1.5
    whole = Paged(folder).step({"a": first, "b": second})
    assert whole["a"].dtype == torch.float32
    close(whole["a"], expected)
    close(whole["b"], beside)
    close(Paged(folder, page_size=3).chunks("a", first, (1, 3, 4, 31, 1, 1, 29)), expected)
    for page_size in (1, 16):
        paged = Paged(folder, page_size=page_size, backend="cpu")
        close(paged.step({"b": second[:40]})["b"], beside[:40])
        both = paged.step({"b": second[40:41], "a": first[:66]})  # a decode beside a chunk
        close(both["b"], beside[40:41])
        close(both["a"], expected[:66])
        for i in range(41, 45):
            both = paged.step({"a": first[i + 25 : i + 26], "b": second[i : i + 1]})
            close(both["a"], expected[i + 25 : i + 26])
            close(both["b"], beside[i : i + 1])


@pytest.fixture(scope="module", params=["gemma2", "gemma3", "qwen3 moe"])
def prompts_alone(request, tmp_path_factory):
    """A model, three prompts longer than its windows, and the logits of each alone."""
    folder = make_tiny_model(tmp_path_factory.mktemp("m"), logit_std=4.0, **SHAPES[request.param])
    prompts = {name: random_ids(50, seed=i) for i, name in enumerate("abc")}
    alone = {name: Paged(folder).step({name: ids})[name] for name, ids in prompts.items()}
    return folder, prompts, alone


@settings(max_examples=12, deadline=None)
@given(
    turns=st.lists(st.tuples(*[st.sampled_from([0, 1, 1, 7, 20])] * 3), max_size=12),
    page_size=st.sampled_from([1, 3, 16]),
)
def test_requests_of_one_batch_do_not_meet(prompts_alone, turns, page_size):
    """Any mix of prefill chunks and decodes gives each request what it gets alone."""
    folder, prompts, alone = prompts_alone
    paged = Paged(folder, page_size=page_size, backend="cpu", tokens=256)
    done = dict.fromkeys(prompts, 0)
    for counts in [*turns, (50, 50, 50)]:
        works = {}
        for (name, ids), count in zip(prompts.items(), counts, strict=True):
            if chunk := ids[done[name] : done[name] + count]:
                works[name] = chunk
        if not works:
            continue
        for name, logits in paged.step(works).items():
            start, done[name] = done[name], done[name] + len(logits)
            close(logits, alone[name][start : done[name]])


@pytest.mark.parametrize("shape", ["mixtral", "qwen3 moe", "gemma3", "gpt2"])
def test_shards_equal_one_file(tmp_path, shape):
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model(tmp_path / "one", **SHAPES[shape])
    shards = tmp_path / "shards"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(shards, max_shard_size="100KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    ids = random_ids(40)
    assert torch.equal(Paged(shards).step({"a": ids})["a"], Paged(folder).step({"a": ids})["a"])


def test_longrope_is_fixed_by_the_longest_context(tmp_path):
    """transformers chooses by each call's length; a cache must not, so the engine's counts."""
    folder = make_tiny_model(tmp_path, logit_std=4.0, **SHAPES["phi3, longrope"])
    short, long = random_ids(30), random_ids(60)
    expected_short, expected_long = theirs(folder, short, long)
    close(Paged(folder, context_length=32).step({"a": short})["a"], expected_short)
    for context_length in (33, 512, None):
        paged = Paged(folder, context_length=context_length)
        assert paged.model.config.context_length == (context_length or 512)
        made = paged.chunks("a", long, (10, 20, 30))
        close(made, expected_long)
        # A short request is computed as the beginning of a long one.
        assert torch.equal(paged.step({"b": long[:10]})["b"], made[:10])
        assert not torch.allclose(paged.step({"c": short})["c"], expected_short, atol=0.1)


def test_old_names_of_gpt2(tmp_path):
    """The first files have no `transformer.` before the names, and tables beside them."""
    from safetensors.torch import load_file, save_file

    folder = make_tiny_model(tmp_path, **SHAPES["gpt2"])
    ids = random_ids(20)
    expected = Paged(folder).step({"a": ids})["a"]
    path = folder / "model.safetensors"
    old = {name.removeprefix("transformer."): w for name, w in load_file(path).items()}
    old |= {"h.0.attn.bias": torch.ones(1, 1, 128, 128), "h.0.attn.masked_bias": torch.tensor(0.0)}
    save_file(old, path)
    assert torch.equal(Paged(folder).step({"a": ids})["a"], expected)


def test_the_text_part_of_a_model_that_takes_images(tmp_path):
    from transformers import (
        AutoModelForCausalLM,
        Gemma3Config,
        Gemma3ForConditionalGeneration,
        SiglipVisionConfig,
    )

    text = make_tiny_model(tmp_path / "text", logit_std=4.0, **SHAPES["gemma3"])
    model = AutoModelForCausalLM.from_pretrained(text, dtype=torch.float32)
    vision = SiglipVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        image_size=16, patch_size=8,
    )  # fmt: skip
    config = Gemma3Config(
        text_config=model.config.to_dict(),
        vision_config=vision.to_dict(),
        mm_tokens_per_image=4,
        image_token_index=383,
    )
    both = Gemma3ForConditionalGeneration(config)
    both.model.language_model.load_state_dict(model.model.state_dict())
    both.save_pretrained(tmp_path / "both")
    assert load_config(tmp_path / "both").architecture == "Gemma3ForConditionalGeneration"
    ids = random_ids(50)
    close(Paged(tmp_path / "both").step({"a": ids})["a"], theirs(text, ids))


@pytest.mark.parametrize("shape", ["qwen3", "phi3", "mixtral", "gemma2", "gpt2"])
def test_wrong_tensors_are_named(tmp_path, shape):
    from safetensors.torch import load_file, save_file

    folder = make_tiny_model(tmp_path, **SHAPES[shape])
    path = folder / "model.safetensors"
    weights = load_file(path)
    gone, cut, *_ = (name for name in sorted(weights) if ".0." in name)
    weights["and.more"] = weights.pop(gone)
    weights[cut] = weights[cut][:-1].clone()
    save_file(weights, path)
    with pytest.raises(InvalidRequest) as caught:
        load_model(folder)
    message = str(caught.value)
    assert f"missing: {gone};" in message
    assert "not of this model: and.more;" in message
    assert f"{cut} is {list(weights[cut].shape)} and not" in message


def test_what_does_not_fit_is_named_before_a_weight_is_read(tmp_path, monkeypatch):
    folder = make_tiny_model(tmp_path, **SHAPES["mixtral"])
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_local_experts": 5}))
    read, take = [], tensors.TensorFiles.take

    def spy(files, name, *shape):
        tensor = take(files, name, *shape)
        read.append(tensor.device.type)
        return tensor

    monkeypatch.setattr(tensors.TensorFiles, "take", spy)
    with pytest.raises(InvalidRequest, match=r"missing: .*experts\.4\.w1\.weight.* and \d more"):
        load_model(folder)
    assert set(read) == {"meta"}


@pytest.mark.parametrize(
    ("shape", "changes", "words"),
    [
        ("gemma3", {"use_bidirectional_attention": True}, ["later tokens"]),
        ("gpt2", {"add_cross_attention": True}, ["encoder"]),
        ("gemma2", {"hidden_activation": "quick_gelu"}, ["quick_gelu", "gelu_pytorch_tanh"]),
    ],
)
def test_what_we_lack_is_refused_by_name(tmp_path, shape, changes, words):
    folder = make_tiny_model(tmp_path, **SHAPES[shape])
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(Unsupported) as caught:
        load_model(folder)
    for word in words:
        assert word in str(caught.value)
