"""The forward pass over pages against transformers on the same float32 weights."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.lang.errors import InvalidRequest, NotFound, Unsupported
from boughs.runtime.models import store
from boughs.runtime.models.load import MODELS, load_config, load_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOLERANCE = 1e-4

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SHAPES = {
    "gqa": {},
    "mha": {"kv_heads": 4},
    "mqa": {"heads": 8, "kv_heads": 1, "head_dim": 8},
    "three groups": {"heads": 9, "kv_heads": 3, "head_dim": 8},
    "wide heads": {"head_dim": 32, "hidden_size": 64},
    "one layer": {"layers": 1},
    "tied": {"tie": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "qwen2": {"model_type": "qwen2"},
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


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_transformers_whole_and_in_chunks(tmp_path, shape):
    folder = make_tiny_model(tmp_path, logit_std=5.0, seed=len(shape), **SHAPES[shape])
    ids = random_ids(70)
    expected = theirs(folder, ids)
    assert expected.std() > 2
    whole = Paged(folder).step({"a": ids})["a"]
    assert whole.dtype == torch.float32
    torch.testing.assert_close(whole, expected, atol=TOLERANCE, rtol=0)
    chunks = Paged(folder).chunks("a", ids, (1, 3, 4, 31, 1, 1, 29))
    torch.testing.assert_close(chunks, expected, atol=TOLERANCE, rtol=0)


@settings(max_examples=25, deadline=None)
@given(turns=st.lists(st.tuples(*[st.integers(0, 12)] * 3), max_size=12))
def test_requests_of_one_batch_do_not_meet(tiny_model, turns):
    """Any mix of prefill chunks and decodes gives each request what it gets alone."""
    prompts = {name: random_ids(31, seed=i) for i, name in enumerate("abc")}
    alone = {name: Paged(tiny_model).step({name: ids})[name] for name, ids in prompts.items()}
    paged, done = Paged(tiny_model), dict.fromkeys(prompts, 0)
    for counts in [*turns, (31, 31, 31)]:
        works = {}
        for (name, ids), count in zip(prompts.items(), counts, strict=True):
            if chunk := ids[done[name] : done[name] + count]:
                works[name] = chunk
        if not works:
            continue
        for name, logits in paged.step(works).items():
            start, done[name] = done[name], done[name] + len(logits)
            # Logits of the shared tiny model have a standard deviation of 50.
            torch.testing.assert_close(
                logits, alone[name][start : done[name]], atol=20 * TOLERANCE, rtol=0
            )


def test_shards_equal_one_file(tmp_path):
    from transformers import AutoModelForCausalLM

    folder = make_tiny_model(tmp_path / "one")
    shards = tmp_path / "shards"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(shards, max_shard_size="100KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    ids = random_ids(20)
    assert torch.equal(Paged(shards).step({"a": ids})["a"], Paged(folder).step({"a": ids})["a"])
    next(iter(sorted(shards.glob("*.safetensors")))).unlink()
    with pytest.raises(NotFound, match="missing"):
        load_model(shards)


def test_bfloat16_weights_are_computed_in_float32(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = make_tiny_model(tmp_path)
    weights = {name: w.bfloat16() for name, w in load_file(folder / "model.safetensors").items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    ids = random_ids(20)
    torch.testing.assert_close(
        Paged(folder).step({"a": ids})["a"], theirs(folder, ids), atol=20 * TOLERANCE, rtol=0
    )


def test_wrong_tensors_are_named(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = make_tiny_model(tmp_path)
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.9.mlp.down_proj.weight"] = weights.pop("model.norm.weight")
    weights["lm_head.weight"] = weights["lm_head.weight"][:100].clone()
    save_file(weights, path)
    with pytest.raises(InvalidRequest) as caught:
        load_model(folder)
    message = str(caught.value)
    assert "missing: model.norm.weight" in message
    assert "not of this model: model.layers.9.mlp.down_proj.weight" in message
    assert "lm_head.weight is [100, 64] and not [384, 64]" in message
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load_model(folder)


def test_a_tied_head_in_the_file_is_not_read(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = make_tiny_model(tmp_path, tie=True)
    ids = random_ids(20)
    expected = Paged(folder).step({"a": ids})["a"]
    weights = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in weights
    weights["lm_head.weight"] = torch.zeros(384, 64)
    save_file(weights, folder / "model.safetensors")
    assert torch.equal(Paged(folder).step({"a": ids})["a"], expected)


def edit(folder, file, **changes):
    path = folder / file
    content = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(content | changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["OPTForCausalLM"]},
            ["OPTForCausalLM", "there are", *(f" {name}" for name in MODELS)],
        ),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            ["dynamic", "length", "default", "linear", "llama3", "yarn", "longrope"],
        ),
        (
            {"rope_parameters": {"rope_type": "mrope", "rope_theta": 1e4}},
            ["mrope", "default", "linear", "llama3", "yarn", "longrope"],
        ),
        ({"hidden_act": "quick_gelu"}, ["quick_gelu", "silu", "gelu"]),
        (
            {
                "model_type": "qwen3",
                "architectures": ["Qwen3ForCausalLM"],
                "head_dim": 16,
                "layer_types": ["full_attention", "chunked_attention"],
            },
            ["chunked_attention", "sliding_attention"],
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, ["gptq"]),
    ],
)
def test_what_we_lack_is_refused_by_name(tmp_path, tiny_model, changes, words):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    edit(folder, "config.json", **changes)
    with pytest.raises(Unsupported) as caught:
        load_model(folder)
    for word in words:
        assert word in str(caught.value)


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(NotFound, match=r"config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidRequest, match=r"config\.json"):
        load_model(tmp_path)


def test_config(tmp_path):
    folder = make_tiny_model(tmp_path, heads=8, kv_heads=2, head_dim=8, layers=3, max_position=512)
    config = load_config(folder)
    assert config.architecture == "LlamaForCausalLM"
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (8, 2, 8)
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (3, 64, 384)
    assert config.max_position == 512
    assert config.eos_token_ids == (2,)
    assert config.bos_token_id == 1
    edit(folder, "generation_config.json", eos_token_id=[2, 0])
    assert load_config(folder).eos_token_ids == (2, 0)
    (folder / "generation_config.json").unlink()
    edit(folder, "config.json", eos_token_id=None)
    assert load_config(folder).eos_token_ids == ()


def demo_answers(longest):
    """(prompt ids, transformers' answer) of the prompts up to a length."""
    from transformers import AutoTokenizer

    prompts = load("prompts")
    data = prompts.load_data()
    if data is None:
        pytest.skip("the questions are missing")
    tokenizer = AutoTokenizer.from_pretrained(store.resolve("smollm2-135m"))
    answers = json.loads((FIXTURES / "smollm2_greedy.json").read_text())
    for recipe, answer in zip(prompts.RECIPES, answers, strict=True):
        if answer["prompt_tokens"] <= longest:
            text = prompts.build(recipe, data, tokenizer)
            ids = tokenizer(text, add_special_tokens=False).input_ids
            assert prompts.fingerprint(ids) == answer["sha256"]
            yield ids, answer


def check_demo(demo_model, longest, chunk):
    """Feed transformers' answers back: the best token and its logprob must be theirs."""
    worst, seen = 0.0, 0
    for ids, answer in demo_answers(longest):
        paged = Paged(demo_model, tokens=len(ids) + 16)
        new, rows = answer["output_ids"], []
        fed = ids + new[:-1]
        for start in range(0, len(fed), chunk):
            logits = paged.step({"a": fed[start : start + chunk]})["a"]
            rows.append(logits[max(0, len(ids) - 1 - start) :])
        logprobs = torch.cat(rows).log_softmax(-1)
        assert len(logprobs) == len(new)
        for i, (token, margin) in enumerate(zip(new, answer["margins"], strict=True)):
            if margin >= 1e-3:
                assert logprobs[i].argmax() == token
            worst = max(worst, abs(logprobs[i, token].item() - answer["logprobs"][i]))
            seen += 1
    assert worst < 1e-3
    return seen


def test_demo_model_answers_as_transformers_does(demo_model):
    assert check_demo(demo_model, longest=50, chunk=32) == 16 * 14


@pytest.mark.slow
def test_demo_model_answers_as_transformers_does_on_all_prompts(demo_model):
    assert check_demo(demo_model, longest=4000, chunk=173) == 16 * 50
