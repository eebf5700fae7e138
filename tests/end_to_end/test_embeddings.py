"""Vectors and scores of real models equal transformers', however prompts are batched and cached.

Of the tiny model transformers' answers are computed here; of the demo model they are
`tests/fixtures/smollm2_vectors.json`, which `make_vectors.py` makes.
"""

import asyncio
import base64
import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import boughs

FIXTURES = Path(__file__).parents[1] / "fixtures"
TOLERANCE = 1e-5

TEXTS = [
    "Once",
    "The quick brown fox jumps over the lazy dog",
    "The quick brown fox jumps over the lazy wizard and writes the final answer.",
    "Question: how many apples are there in the basket? Answer: there are twelve apples. " * 4,
    "Once upon a time in a small village there lived an old woman. " * 9,
    "naïve 😀",
]


@pytest.fixture(scope="module")
def tiny(tiny_model):
    """transformers' model and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def hidden(tiny):
    """Of token ids: transformers' last hidden states, float64 [tokens, hidden]."""
    model, _ = tiny

    @functools.cache
    @torch.inference_mode()
    def states(ids):
        return model.model(torch.tensor([ids])).last_hidden_state[0].double().numpy()

    return states


@pytest.fixture(scope="module")
def ids_of(tiny):
    return lambda text: tuple(tiny[1](text, add_special_tokens=False).input_ids)


@pytest.fixture(scope="module")
def wanted(hidden, ids_of):
    """Of a text: the vector of length 1 that it should have."""

    def vector(text, pooling):
        states = hidden(ids_of(text))
        pooled = states[-1] if pooling == "last" else states.mean(0)
        return pooled / np.linalg.norm(pooled)

    return vector


def open_engine(model, **config):
    return boughs.Engine(
        model_path=model, in_process=True, check_invariants=True, threads=1, **config
    )


def compare(answers, texts, pooling, wanted):
    for answer, text in zip(answers, texts, strict=True):
        assert answer["embedding"] == pytest.approx(wanted(text, pooling), abs=TOLERANCE)


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"page_size": 1},
        {"max_batched_tokens": 7},
        {"max_batched_tokens": 1, "page_size": 3},
        {"attention_backend": "reference"},
        {"disable_radix_cache": True},
    ],
    ids=str,
)
def test_vectors_equal_transformers(tiny_model, wanted, ids_of, pooling, config):
    with open_engine(tiny_model, kv_memory="4M", **config) as engine:
        for text in TEXTS:  # alone, cold but for what they share
            compare([engine.encode(text, pooling=pooling)], [text], pooling, wanted)
        engine.flush_cache()
        cold = engine.encode(TEXTS, pooling=pooling)
        warm = engine.encode(TEXTS[::-1], pooling=pooling)[::-1]
        compare(cold, TEXTS, pooling, wanted)
        compare(warm, TEXTS, pooling, wanted)
        keeps = pooling == "last" and not config.get("disable_radix_cache")
        for answer, text in zip(warm, TEXTS, strict=True):
            info, count = answer["meta_info"], len(ids_of(text))
            assert info["prompt_tokens"] == count
            assert info["cached_tokens"] == (count - 1 if keeps else 0)
        plain = engine.encode(TEXTS[1], pooling=pooling, normalize=False)["embedding"]
        unit = np.array(plain) / math.hypot(*plain)
        assert unit == pytest.approx(wanted(TEXTS[1], pooling), abs=TOLERANCE)
        assert math.hypot(*plain) != pytest.approx(1, rel=0.1)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_beside_generation_and_after_retraction(tiny_model, wanted, pooling):
    """In a pool that holds neither all prompts nor all outputs."""
    pages, page_bytes = 100, 2 * 2 * 2 * 16 * 4 * 4  # K and V, layers, heads, width, rows, floats
    with open_engine(
        tiny_model, kv_memory=str(pages * page_bytes), page_size=4, max_batched_tokens=64
    ) as engine:

        async def together():
            generated = backend_generate(engine, 12)
            encoded = engine.async_encode(TEXTS * 3, pooling=pooling)
            return await asyncio.gather(generated, encoded)

        _, answers = asyncio.run(together())
        compare(answers, TEXTS * 3, pooling, wanted)
        assert engine.stats()["retractions"] > 0


def backend_generate(engine, count):
    params = {"temperature": 0, "max_new_tokens": 80, "ignore_eos": True}
    return engine.async_generate([f"{at} apples and" for at in range(count)], params)


def test_a_prompt_may_fill_the_context(tiny_model, hidden):
    ids = tuple(1 + at % 380 for at in range(64))
    with open_engine(tiny_model, kv_memory="1M", context_length=64) as engine:
        for pooling in ("last", "mean"):
            got = engine.encode(input_ids=list(ids), pooling=pooling)["embedding"]
            pooled = hidden(ids)[-1] if pooling == "last" else hidden(ids).mean(0)
            assert got == pytest.approx(pooled / np.linalg.norm(pooled), abs=TOLERANCE)
        with pytest.raises(boughs.InvalidRequest, match="65 tokens do not fit the context of 64"):
            engine.encode(input_ids=[*ids, 5])


def test_the_demo_models_vectors_equal_transformers(demo_model):
    cases = json.loads((FIXTURES / "smollm2_vectors.json").read_text())
    assert len(cases) >= 4
    with boughs.Engine(model_path=demo_model, max_batched_tokens=50) as engine:
        for pooling in ("last", "mean"):
            texts = [case["text"] for case in cases]
            for _ in ("cold", "warm"):
                for answer, case in zip(engine.encode(texts, pooling=pooling), cases, strict=True):
                    raw = base64.b64decode(case[pooling])
                    want = np.frombuffer(raw, "<f4")
                    assert answer["embedding"] == pytest.approx(want, abs=TOLERANCE)
                    assert answer["meta_info"]["prompt_tokens"] == case["prompt_tokens"]


# ---- scores ----

PROMPT = "The capital of Italy is"
CHOICES = [" Rome", " Paris", " Paris is", " Berlin is the capital", " the", "", "!", " Monday"]


def logprobs(tiny, ids, start):
    """transformers' logprobs of the tokens from a position on; 0.0 for the first of all."""
    model, _ = tiny
    with torch.inference_mode():
        rows = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(rows[at - 1, ids[at]]) if at else 0.0 for at in range(start, len(ids))]


def check_scores(engine, tiny, ids_of, prompt, choices):
    scores = engine.score(prompt, choices, unconditional=True)
    alone, whole = ids_of(prompt), [ids_of(prompt + choice) for choice in choices]
    border = min(
        next((i for i, (a, b) in enumerate(zip(alone, ids, strict=False)) if a != b), len(alone))
        for ids in whole
    )
    assert scores.prompt_tokens == len(alone)
    for ids, choice in zip(whole, scores.choices, strict=True):
        assert tuple(choice.token_ids) == ids[border:]
        assert choice.logprobs == pytest.approx(logprobs(tiny, ids, border), abs=1e-3)
        bare = logprobs(tiny, ids[border:], 0) if ids[border:] else []
        assert choice.unconditional == pytest.approx(bare, abs=1e-3)
    return scores


@pytest.mark.parametrize("config", [{}, {"page_size": 1}, {"max_batched_tokens": 5}], ids=str)
@pytest.mark.parametrize("count", [1, len(CHOICES)])
def test_scores_equal_transformers(tiny_model, tiny, ids_of, config, count):
    with open_engine(tiny_model, kv_memory="4M", **config) as engine:
        cold = check_scores(engine, tiny, ids_of, PROMPT, CHOICES[:count])
        warm = check_scores(engine, tiny, ids_of, PROMPT, CHOICES[:count])
        assert cold.cached_tokens == 0
        assert warm.cached_tokens == warm.prompt_tokens - 1
        check_scores(engine, tiny, ids_of, PROMPT, CHOICES[-count:])


def test_choices_reach_a_core_in_another_process_together(tiny_model, tiny, ids_of):
    """They wake it all at once, and so are one step."""
    with boughs.Engine(model_path=tiny_model, kv_memory="4M", threads=1) as engine:
        check_scores(engine, tiny, ids_of, PROMPT, CHOICES)
        for _ in range(5):
            before = engine.stats()["steps"]
            check_scores(engine, tiny, ids_of, PROMPT, CHOICES)
            assert engine.stats()["steps"] == before + 1


def test_scores_of_three_hundred_choices(tiny_model, tiny, ids_of):
    choices = [f" {first}{second}" for first in "abcdefghijklmno" for second in range(20)]
    with open_engine(tiny_model, kv_memory="4M") as engine:
        check_scores(engine, tiny, ids_of, PROMPT, choices)


@pytest.mark.parametrize("prompt", ["O", "Th"])
def test_scores_of_choices_that_merge_with_the_prompt(tiny_model, tiny, ids_of, prompt):
    """The border is inside the prompt, or before it."""
    with open_engine(tiny_model, kv_memory="4M") as engine:
        check_scores(engine, tiny, ids_of, prompt, ["e", "nce", "n", "is", "ere", ""])
