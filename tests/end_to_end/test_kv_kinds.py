"""Engines whose KV cache is narrower than float32: the same tokens as the reference over the same
rounding, more of them in the same memory, and logprobs close to float32's.
"""

import pytest

import boughs

KINDS = ("float32", "bfloat16", "int8")
SHARED = list(range(3, 60))
PROMPTS = [[*SHARED, 100 + i, 7, 9 + i] for i in range(6)] + [list(range(5, 25)), [3, 4], SHARED]
GREEDY = {"temperature": 0, "max_new_tokens": 14, "ignore_eos": True}
TEXT = (
    "The bakery opens at six in the morning, and by seven the first loaves are gone. Anna bakes "
    "forty loaves a day, sells thirty of them at two euros each, and gives the rest to her "
    "neighbours. How much does she earn in a week of five days? First we count the loaves that "
    "she sells in a day, then we multiply by the price, and at last by the number of days."
)


def engine(model, **config):
    settings = {"in_process": True, "page_size": 4, "check_invariants": True, "kv_memory": "8M"}
    return boughs.Engine(model_path=str(model), **{**settings, **config})


def tokens(model, **config):
    """Output ids of prompts sent together, then again over what is cached, then forked."""
    with engine(model, **config) as made:
        runs = [made.generate(input_ids=PROMPTS, sampling_params=GREEDY) for _ in range(2)]
        forks = {"temperature": 1.0, "n": 3, "seed": 5, "max_new_tokens": 9, "ignore_eos": True}
        runs.append(made.generate(input_ids=PROMPTS[:2], sampling_params=forks))
        assert made.get_server_info()["kv_cache_dtype"] == config["kv_cache_dtype"]
    return [[answer["output_ids"] for answer in run] for run in runs]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_reference(tiny_model, kind):
    found = tokens(tiny_model, kv_cache_dtype=kind)
    assert found == tokens(tiny_model, kv_cache_dtype=kind, attention_backend="reference")
    assert found[0] == found[1]  # cold and warm
    alone = tokens(tiny_model, kv_cache_dtype=kind, disable_cascade=True, max_batched_tokens=16)
    assert found == alone


def test_the_same_memory_holds_more(tiny_model):
    pages = {}
    for kind in KINDS:
        with engine(tiny_model, kv_cache_dtype=kind) as made:
            pages[kind] = made.get_server_info()["num_pages"]
    assert pages["bfloat16"] == 2 * pages["float32"]
    assert pages["int8"] == pages["float32"] * 64 // 20  # heads of 16, and a scale of 4 bytes


@pytest.mark.parametrize(("kind", "most"), [("bfloat16", 0.1), ("int8", 0.3)])
def test_logprobs_are_close_to_those_of_float32(demo_model, kind, most):
    def logprobs(kv_cache_dtype):
        with engine(demo_model, kv_cache_dtype=kv_cache_dtype, kv_memory="64M") as made:
            params = {"temperature": 0, "max_new_tokens": 1}
            answer = made.generate(TEXT, params, return_logprob=True, logprob_start_len=0)
        return [x for x, *_ in answer["meta_info"]["input_token_logprobs"] if x is not None]

    exact, found = logprobs("float32"), logprobs(kind)
    assert len(exact) == len(found) > 60
    differences = [abs(a - b) for a, b in zip(exact, found, strict=True)]
    assert max(differences) < most
    assert max(differences) > 0
