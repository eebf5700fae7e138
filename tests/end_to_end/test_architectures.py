"""Greedy tokens of architectures with windows and experts, through an engine, are transformers'.

Prompts share prefixes longer than the sliding window, and are cached, chunked and batched.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

import boughs

FIXTURES = Path(__file__).parents[1] / "fixtures"
SHAPES = {
    "mistral": {"model_type": "mistral", "sliding_window": 24},
    "gemma2": {"model_type": "gemma2", "tie": True, "sliding_window": 20, "logit_std": 9.0},
    "gemma3": {
        "model_type": "gemma3_text",
        "layers": 3,
        "sliding_window": 17,
        "sliding_window_pattern": 3,
    },
    "qwen3 moe": {
        "model_type": "qwen3_moe",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "gpt2": {"model_type": "gpt2", "kv_heads": 4, "max_position": 256, "tie": True},
}
NEW = 24


def load(name):
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def theirs(folder, prompts):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return [
        model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.int64),  # else padding is guessed
            max_new_tokens=NEW,
            do_sample=False,
        )[0, len(ids) :]
        for ids in prompts
    ]


def test_longrope_is_that_of_the_longest_context(tmp_path):
    """Up to the original context it is transformers' for short prompts, else the one for long."""
    folder = load("tiny_models").make_tiny_model(
        tmp_path,
        model_type="phi3",
        max_position=256,
        original_max_position_embeddings=64,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0 + 0.1 * i for i in range(8)],
            "long_factor": [1.0 + 0.5 * i for i in range(8)],
        },
    )
    random_ids = load("paged_model").random_ids
    params = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
    for length, context_length in ((30, 64), (80, None)):
        prompts = [random_ids(length, seed=i) for i in range(3)]
        with boughs.Engine(
            model_path=folder, kv_memory="4M", context_length=context_length, in_process=True
        ) as engine:
            answers = engine.generate(input_ids=prompts, sampling_params=params)
        expected = [made.tolist() for made in theirs(folder, prompts)]
        assert [answer["output_ids"] for answer in answers] == expected


@pytest.mark.parametrize("shape", SHAPES)
def test_greedy_tokens_equal_transformers(tmp_path, shape):
    folder = load("tiny_models").make_tiny_model(tmp_path, **SHAPES[shape])
    random_ids = load("paged_model").random_ids
    shared = random_ids(61, seed=1)
    prompts = [
        shared,
        shared + random_ids(30, seed=2),
        shared[:33] + random_ids(9, seed=3),
        shared[:50],
        random_ids(3, seed=4),
    ]
    expected = [made.tolist() for made in theirs(folder, prompts)]
    params = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
    with boughs.Engine(
        model_path=folder,
        page_size=4,
        kv_memory="4M",
        max_batched_tokens=13,
        in_process=True,
        check_invariants=True,
    ) as engine:
        for _ in ("cold", "warm"):
            answers = engine.generate(input_ids=prompts, sampling_params=params)
            assert [answer["output_ids"] for answer in answers] == expected
        assert [a["meta_info"]["cached_tokens"] for a in answers] == [len(p) - 1 for p in prompts]
        go_on = prompts[1] + expected[1] + random_ids(20, seed=5)  # a next turn
        (then,) = theirs(folder, [go_on])
        answer = engine.generate(input_ids=go_on, sampling_params=params)
        assert answer["output_ids"] == then.tolist()
        assert answer["meta_info"]["cached_tokens"] >= len(prompts[1]) + NEW - 1
