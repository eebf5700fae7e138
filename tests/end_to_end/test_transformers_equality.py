"""The demo model's greedy tokens equal transformers', however they are batched and cached.

transformers' answers are `tests/fixtures/smollm2_greedy.json`, which `make_greedy.py` makes. Two
outputs are equal if they agree up to the first position at which transformers' best two logits
differ by less than 1e-3.
"""

import importlib.util
import json
from pathlib import Path

import pytest

import boughs

HERE = Path(__file__).parent
FIXTURES = HERE.parent / "fixtures"
TIE = 1e-3
TOLERANCE = 1e-3


def load_prompts():
    spec = importlib.util.spec_from_file_location("boughs_prompts", FIXTURES / "prompts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def cases(demo_model):
    """(prompt ids, transformers' answer) of each recipe."""
    from transformers import AutoTokenizer

    prompts = load_prompts()
    data = prompts.load_data()
    if data is None:
        pytest.skip("the questions are not here")
    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    answers = json.loads((FIXTURES / "smollm2_greedy.json").read_text())
    made = []
    for recipe, answer in zip(prompts.RECIPES, answers, strict=True):
        text = prompts.build(recipe, data, tokenizer)
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert prompts.fingerprint(ids) == answer["sha256"]
        made.append((text, ids, answer))
    assert len(made) == 50
    return made


@pytest.fixture(scope="module")
def engine(demo_model):
    """One engine of two processes for the module. It computes with the file's own 4-bit numbers."""
    with boughs.Engine(model_path=demo_model, max_batched_tokens=200) as engine:
        assert engine.get_server_info()["weights"] == "210 Q4_1 as int4, 1 Q8_0 as int8"
        yield engine


def params(**kwargs):
    return {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True, **kwargs}


def compare(answer, expected):
    """The whole of one answer against transformers', up to the first tie."""
    ties = [i for i, margin in enumerate(expected["margins"]) if margin < TIE]
    length = ties[0] if ties else len(expected["output_ids"])
    assert length > 0
    assert answer["output_ids"][:length] == expected["output_ids"][:length]
    got = [logprob for logprob, *_ in answer["meta_info"]["output_token_logprobs"]]
    assert got[:length] == pytest.approx(expected["logprobs"][:length], abs=TOLERANCE)
    assert answer["meta_info"]["prompt_tokens"] == expected["prompt_tokens"]


def run_all(engine, cases, **kwargs):
    answers = engine.generate(
        input_ids=[ids for _, ids, _ in cases],
        sampling_params=params(),
        return_logprob=True,
        **kwargs,
    )
    for answer, (_, _, expected) in zip(answers, cases, strict=True):
        compare(answer, expected)
    return answers


def test_alone_cold(engine, cases):
    for _, ids, expected in cases[::3]:
        engine.flush_cache()
        answer = engine.generate(input_ids=ids, sampling_params=params(), return_logprob=True)
        assert answer["meta_info"]["cached_tokens"] == 0
        compare(answer, expected)


def test_batched_cold_then_warm(engine, cases):
    engine.flush_cache()
    cold = run_all(engine, cases)
    warm = run_all(engine, cases)
    for answer, (_, ids, _) in zip(warm, cases, strict=True):
        assert answer["meta_info"]["cached_tokens"] == len(ids) - 1
    assert sum(a["meta_info"]["cached_tokens"] for a in cold) > 0  # shared worked examples


def test_float32_weights_are_the_same_function(demo_model, cases):
    with boughs.Engine(model_path=demo_model, quantize="none", in_process=True) as engine:
        assert engine.get_server_info()["weights"] == "210 Q4_1 as float32, 1 Q8_0 as float32"
        run_all(engine, cases[::3])


def test_texts_tokenize_as_transformers_does(engine, cases):
    for text, _, expected in cases[::7]:
        answer = engine.generate(prompt=text, sampling_params=params(), return_logprob=True)
        compare(answer, expected)


def test_prompt_logprobs_cold_and_warm(engine, cases):
    engine.flush_cache()
    asked = [case for case in cases if "prompt_logprobs" in case[2]]
    assert len(asked) == 5
    for _ in ("cold", "warm"):
        for _, ids, expected in asked:
            answer = engine.generate(
                input_ids=ids, sampling_params=params(), return_logprob=True, logprob_start_len=0
            )
            compare(answer, expected)
            first, *rest = [lp for lp, *_ in answer["meta_info"]["input_token_logprobs"]]
            assert first is None
            assert rest == pytest.approx(expected["prompt_logprobs"], abs=TOLERANCE)


@pytest.mark.parametrize("budget", [7, 61])
def test_chunked_at_odd_sizes(demo_model, cases, budget):
    short = [case for case in cases if len(case[1]) < 30 * budget]
    assert len(short) > 5
    with boughs.Engine(
        model_path=demo_model, max_batched_tokens=budget, in_process=True, check_invariants=True
    ) as engine:
        run_all(engine, short[: 3 if budget == 7 else 24 : 1])


def test_after_forced_retraction(demo_model, cases):
    """A pool in which the batch does not fit: requests are retracted, and lose nothing."""
    chosen = [case for case in cases if len(case[1]) < 220][:16]
    pages, page_size = 160, 4
    per_page = 2 * 30 * page_size * 3 * 64 * 4
    with boughs.Engine(
        model_path=demo_model,
        kv_memory=str(pages * per_page),
        page_size=page_size,
        in_process=True,
        check_invariants=True,
    ) as engine:
        run_all(engine, chosen)
        assert engine.stats()["retractions"] > 0
