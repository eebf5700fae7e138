"""`select` against a naive computation with transformers on the same weights.

All methods, prompts that merge with their choices, choices that begin like others; and greedy
decoding among choices, where that must come to the same.
"""

import importlib.util
import math
import random
from pathlib import Path
from statistics import fmean

import pytest

import boughs

_path = Path(__file__).parents[1] / "fixtures" / "tiny_models.py"
_spec = importlib.util.spec_from_file_location("boughs_fixtures_tiny_models", _path)
tiny_models = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny_models)

pytestmark = pytest.mark.timeout(120)

WORDS = [
    "the",
    " the",
    " fox",
    " lazy",
    " dog",
    "x",
    " yes",
    " no",
    "\n",
    " Paris",
    "é",
    "1",
    " 12",
]
METHODS = {
    "mean": boughs.token_length_normalized,
    "sum": boughs.total_likelihood,
    "greedy": boughs.greedy_token_selection,
    "unconditional": boughs.unconditional_likelihood_normalized,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny model that is not too sure of anything."""
    return tiny_models.make_tiny_model(tmp_path_factory.mktemp("select") / "m", logit_std=3.0)


@pytest.fixture(scope="module")
def engine(model):
    with boughs.Engine(model_path=model, in_process=True, kv_memory="32M") as engine:
        yield engine


@pytest.fixture(scope="module")
def naive(model):
    """The logprobs of each choice's tokens, with the prompt and alone, one sequence at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def logprobs(ids):
        with torch.no_grad():
            rows = network(torch.tensor([ids])).logits[0].log_softmax(-1)
        return [0.0, *(rows[at - 1, ids[at]].item() for at in range(1, len(ids)))]

    def scores(prompt, choices):
        alone = tokenizer(prompt, add_special_tokens=False).input_ids
        whole = [tokenizer(prompt + c, add_special_tokens=False).input_ids for c in choices]
        border = len(alone)
        for ids in whole:
            same = 0
            while same < min(len(ids), border) and ids[same] == alone[same]:
                same += 1
            border = min(border, same)
        given = [logprobs(ids)[border:] for ids in whole]
        return given, [logprobs(ids[border:]) for ids in whole]

    return scores


def decide(method, given, alone):
    """The index of the choice; and how far the runner-up is."""
    if method == "greedy":
        width = max(map(len, given))
        values = [list(row) + [fmean(row)] * (width - len(row)) for row in given]
        best = max(values)
        others = [v for v in values if v != best]
        gap = min((next(a - b for a, b in zip(best, v, strict=True) if a != b) for v in others),
                  default=1.0)  # fmt: skip
        return values.index(best), gap
    if method == "mean":
        values = [fmean(row) for row in given]
    elif method == "sum":
        values = [math.fsum(row) for row in given]
    else:
        pairs = zip(given, alone, strict=True)
        values = [fmean(a - b for a, b in zip(x, y, strict=True)) for x, y in pairs]
    ranked = sorted(values, reverse=True)
    return values.index(ranked[0]), ranked[0] - (ranked[1] if len(ranked) > 1 else -9.0)


def cases(count):
    rng = random.Random(5)
    for _ in range(count):
        prompt = "".join(rng.choices(WORDS, k=rng.randint(1, 8)))
        choices = {"".join(rng.choices(WORDS, k=rng.randint(1, 3))) for _ in range(4)}
        choices |= {min(choices) + rng.choice(WORDS)}  # one that another begins
        yield prompt, sorted(choices)


@boughs.function
def choose(s, prompt, choices, method):
    s += prompt + boughs.select("x", choices=choices, choices_method=METHODS[method])


@pytest.mark.parametrize("method", METHODS)
def test_methods_agree_with_transformers(engine, naive, method):
    decided = 0
    for prompt, choices in cases(25):
        given, alone = naive(prompt, choices)
        state = choose.run(prompt, choices, method, backend=engine)
        meta = state.get_meta_info("x")
        for entries, row in zip(meta["input_token_logprobs"], given, strict=True):
            assert [lp for lp, _, _ in entries] == pytest.approx(row, abs=1e-3)
        if method == "unconditional":
            for entries, row in zip(meta["unconditional_token_logprobs"], alone, strict=True):
                assert [lp for lp, _, _ in entries] == pytest.approx(row, abs=1e-3)
        best, gap = decide(method, given, alone)
        if gap > 1e-3:
            assert state["x"] == choices[best]
            decided += 1
        sums = [math.fsum(row) for row in given]
        whole = math.fsum(math.exp(total) for total in sums)
        for choice, total in zip(choices, sums, strict=True):
            assert state.choice_probs("x")[choice] == pytest.approx(
                math.exp(total) / whole, rel=5e-3, abs=1e-9
            )
    assert decided > 20


def test_greedy_decoding_among_choices_of_one_token_is_select(engine, naive):
    """Where each choice is one token, the most likely one is what all ways must take."""

    @boughs.function
    def all_ways(s, prompt, letters):
        branches = s.fork(3)
        branches += prompt
        branches[0] += boughs.select("x", choices=letters)
        branches[1] += boughs.gen("x", choices=letters, temperature=0)
        branches[2] += boughs.gen("x", regex="|".join(letters), temperature=0)
        branches.join()

    rng = random.Random(7)
    for _ in range(12):
        prompt = " ".join(rng.choices(["fox", "dog", "lazy", "the"], k=5)) + "\n"
        letters = rng.sample("BCDFGHJK", 4)
        given, _ = naive(prompt, letters)
        assert [len(row) for row in given] == [1] * 4
        ranked = sorted((row[0] for row in given), reverse=True)
        state = all_ways.run(prompt, letters, backend=engine)
        if ranked[0] - ranked[1] > 1e-3:
            assert state["x"] == [letters[given.index([ranked[0]])]] * 3


def test_the_greedy_method_writes_what_greedy_decoding_would(engine, naive):
    """What greedy decoding writes is, among other texts, the choice of the greedy method."""

    @boughs.function
    def write(s, prompt):
        s += prompt + boughs.gen("x", max_tokens=3, temperature=0, ignore_eos=True)

    agreed = 0
    for prompt, others in cases(20):
        greedy = write.run(prompt, backend=engine)
        text, made = greedy["x"], greedy.get_meta_info("x")["completion_tokens"]
        given, _ = naive(prompt, [text, *others]) if text else ([[]], None)
        if len(given[0]) != made or "�" in text:
            continue  # another way to spell the text than the tokenizer's
        state = choose.run(prompt, [text, *others], "greedy", backend=engine)
        assert state["x"] == text
        agreed += 1
    assert agreed >= 5
