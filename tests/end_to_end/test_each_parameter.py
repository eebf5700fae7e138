"""What each sampling parameter does by itself, on an engine with a tiny model.

Those that move or filter logits are held against transformers' processors and warpers on the
logits of transformers' own model; the others against what they say.
"""

import asyncio
import importlib.util
import itertools
import json
import re
from pathlib import Path

import jsonschema
import pytest
import torch

import boughs
from boughs.lang.errors import InvalidRequest, RequestTimeout, Unsupported
from boughs.lang.sampling import SamplingParams
from boughs.runtime.core.sampler import uniform
from boughs.runtime.front.bad_words import bad_sequences

TESTS = Path(__file__).parents[1]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hf = load(TESTS / "fixtures" / "hf_sampling.py")
VOCAB, EOS, CONTEXT = 384, 2, 128
PROMPT = [40, 70, 71, 72, 300, 301, 70]
CLEAR = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    make = load(TESTS / "fixtures" / "tiny_models.py").make_tiny_model
    return make(tmp_path_factory.mktemp("flat") / "tiny", logit_std=2.0, max_position=CONTEXT)


@pytest.fixture(scope="module")
def engine(folder):
    with boughs.Engine(
        model_path=folder, in_process=True, kv_memory="16M", page_size=4, check_invariants=True
    ) as engine:
        yield engine
        assert engine.stats()["running"] == 0


@pytest.fixture(scope="module")
def logits_of(folder):
    """transformers' logits [tokens, vocab] of a sequence."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()

    def run(ids):
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].float()

    return run


def ask(engine, prompt=PROMPT, **params):
    params = {"seed": 5, "max_new_tokens": 12, "ignore_eos": True, **params}
    return engine.generate(input_ids=list(prompt), sampling_params=params, return_logprob=True)


def ids_of(answer):
    return answer["output_ids"]


# ---- against transformers ----


def check(engine, logits_of, answer, given, choice=0):
    """Each token is the one that transformers' scores and the drawn number give."""
    params = SamplingParams.from_mapping({"seed": 5, "max_new_tokens": 12, **given})
    bad = bad_sequences(engine.endpoint.tokenizer, params.bad_words)
    output, clear = ids_of(answer), 0
    logits = logits_of(PROMPT + output)[len(PROMPT) - 1 :]
    ends = {*params.stop_token_ids} | (set() if params.ignore_eos else {EOS})
    for index, token in enumerate(output):
        scores = hf.adjusted(params, logits[index], PROMPT, output[:index], bad, ends)
        expected, margin = hf.choose(params, scores, uniform(5, choice, index))
        if margin > CLEAR:
            clear += 1
            assert token == expected, f"output token {index}"
    assert clear > len(output) // 2
    # Logprobs are the model's own, whatever moved or filtered the logits.
    own = logits.log_softmax(-1)
    got = answer["meta_info"]["output_token_logprobs"]
    assert [t for _, t, _ in got] == output
    expected = [float(own[index, token]) for index, token in enumerate(output)]
    assert [lp for lp, _, _ in got] == pytest.approx(expected, abs=1e-3)


MOVES = [
    {"temperature": 0.0},
    {"temperature": 0.5},
    {"temperature": 1.8},
    {"top_p": 0.3},
    {"top_p": 0.9},
    {"top_k": 1},
    {"top_k": 5},
    {"min_p": 0.02},
    {"min_p": 0.4},
    {"frequency_penalty": 2.0},
    {"frequency_penalty": -2.0},
    {"presence_penalty": 2.0},
    {"presence_penalty": -2.0},
    {"repetition_penalty": 1.9},
    {"repetition_penalty": 0.4},
    {"logit_bias": {70: 6.0, 71: 5.0, 300: -100.0}},
    {"allowed_token_ids": (70, 71, 72, 300)},
    {"min_new_tokens": 6, "stop_token_ids": [70, 71], "logit_bias": {70: 5.0, 71: 5.0}},
    {"bad_words": ["!", "a"]},
]


CASES = [(given, False) for given in MOVES]
CASES += [(given, True) for given in MOVES if "temperature" not in given]


@pytest.mark.parametrize(("given", "greedy"), CASES, ids=lambda value: f"{value}")
def test_what_moves_logits_does_as_in_transformers(engine, logits_of, given, greedy):
    given = {**given, "ignore_eos": True, **({"temperature": 0.0} if greedy else {})}
    check(engine, logits_of, ask(engine, **given), given)


def test_each_of_them_matters(engine):
    """None of the cases gives what is given without it, greedy or drawn."""
    plain = {t: ids_of(ask(engine, temperature=t)) for t in (0.0, 1.0)}
    for given in MOVES:
        drawn = ids_of(ask(engine, **{"temperature": 1.0, **given}))
        greedy = ids_of(ask(engine, **{**given, "temperature": 0.0}))
        assert drawn != plain[1.0] or greedy != plain[0.0], given


@pytest.mark.parametrize("cached", [0, 3, 4, 5, len(PROMPT)])
@pytest.mark.parametrize("budget", [1, 4, 256])
def test_logprobs_of_every_kind_are_those_of_transformers(folder, logits_of, cached, budget):
    """Of prompt and output, at and beside a page's border, cold and warm, in chunks of any size."""
    with boughs.Engine(
        model_path=folder, in_process=True, page_size=4, max_batched_tokens=budget, kv_memory="4M"
    ) as engine:
        if cached:
            ask(engine, PROMPT[:cached], max_new_tokens=0)
        answer = engine.generate(
            input_ids=PROMPT,
            sampling_params={"seed": 5, "max_new_tokens": 6, "top_k": 3, "temperature": 2},
            return_logprob=True,
            logprob_start_len=2,
            top_logprobs_num=4,
            token_ids_logprob=list(range(VOCAB)),
        )
    own = logits_of(PROMPT + ids_of(answer)).log_softmax(-1)
    info, start = answer["meta_info"], 1
    for side, made in (("input", PROMPT[2:]), ("output", ids_of(answer))):
        rows = own[start : start + len(made)]
        start += len(made)
        expected = rows.gather(1, torch.tensor(made)[:, None])[:, 0].tolist()
        assert [t for _, t, _ in info[f"{side}_token_logprobs"]] == made
        got = [lp for lp, _, _ in info[f"{side}_token_logprobs"]]
        assert got == pytest.approx(expected, abs=1e-3)
        for row, tops, given in zip(
            rows, info[f"{side}_top_logprobs"], info[f"{side}_token_ids_logprobs"], strict=True
        ):
            assert [lp for lp, _, _ in tops] == pytest.approx(row.topk(4).values.tolist(), abs=1e-3)
            assert [t for _, t, _ in given] == list(range(VOCAB))
            assert [lp for lp, _, _ in given] == pytest.approx(row.tolist(), abs=1e-3)


# ---- ends ----


def test_max_new_tokens(engine):
    answer = ask(engine, max_new_tokens=5)
    assert len(ids_of(answer)) == 5
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 5}
    assert len(ids_of(ask(engine, max_new_tokens=None))) == CONTEXT - len(PROMPT)
    engine.flush_cache()
    answer = ask(engine, max_new_tokens=0)
    assert (answer["text"], ids_of(answer)) == ("", [])
    assert answer["meta_info"]["completion_tokens"] == 0
    again = ask(engine, max_new_tokens=1)
    assert again["meta_info"]["cached_tokens"] == len(PROMPT) - 1


def test_min_new_tokens(engine):
    want = {"temperature": 0, "ignore_eos": False, "logit_bias": {EOS: 100}}
    assert ids_of(ask(engine, **want)) == [EOS]
    answer = ask(engine, min_new_tokens=5, **want)
    assert len(ids_of(answer)) == 6
    assert ids_of(answer).index(EOS) == 5


def stop_in(text):
    """Two characters of a text that first stand behind its first token."""
    at = next(at for at in range(6, len(text) - 1) if text.find(text[at : at + 2]) == at)
    return at, text[at : at + 2]


def test_stop(engine):
    whole = ask(engine)["text"]
    at, stop = stop_in(whole)
    answer = ask(engine, stop=["never there", stop])
    assert answer["text"] == whole[:at]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_no_stop_trim(engine):
    whole = ask(engine)["text"]
    at, stop = stop_in(whole)
    assert ask(engine, stop=stop, no_stop_trim=True)["text"] == whole[: at + 2]


def test_stop_regex(engine):
    whole = ask(engine)["text"]
    at, stop = stop_in(whole)
    answer = ask(engine, stop_regex=re.escape(stop[0]) + f"(?={re.escape(stop[1])})")
    assert answer["text"] == whole[:at]
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"


def test_stop_token_ids(engine):
    whole = ids_of(ask(engine))
    token = whole[4]
    answer = ask(engine, stop_token_ids=[token])
    assert ids_of(answer) == whole[: whole.index(token) + 1]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}


def test_ignore_eos(engine):
    want = {"logit_bias": {EOS: 100}, "max_new_tokens": 4}
    answer = ask(engine, ignore_eos=False, **want)
    assert ids_of(answer) == [EOS]
    assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": EOS}
    assert ids_of(ask(engine, ignore_eos=True, **want)) == [EOS] * 4


# ---- text ----


def test_skip_special_tokens(engine):
    want = {"logit_bias": {1: 100}, "max_new_tokens": 3}
    assert ask(engine, **want)["text"] == ""
    assert ask(engine, skip_special_tokens=False, **want)["text"] == "<|im_start|>" * 3


def test_spaces_between_special_tokens(engine):
    assert ids_of(ask(engine, spaces_between_special_tokens=True)) == ids_of(ask(engine))
    with pytest.raises(Unsupported, match="spaces_between_special_tokens"):
        ask(engine, spaces_between_special_tokens=False)


# ---- what may be produced ----


def test_allowed_token_ids(engine):
    allowed = {70, 71, 72, EOS}
    answer = ask(engine, allowed_token_ids=sorted(allowed), max_new_tokens=40)
    assert set(ids_of(answer)) <= allowed
    assert EOS in ids_of(answer)
    # The end is a token like others: what is not listed does not end the output.
    without = ask(engine, allowed_token_ids=[70, 71], ignore_eos=False, max_new_tokens=40)
    assert without["meta_info"]["finish_reason"]["type"] == "length"


def test_bad_words(engine):
    want = {"temperature": 0, "max_new_tokens": 24}
    text_of = engine.endpoint.tokenizer.text_of
    whole = ids_of(ask(engine, **want))
    # A word of one token, and one of two whose first stays possible.
    single = next(text_of(id_) for id_ in whole if text_of(id_).isascii())
    for first, second in itertools.pairwise(whole):
        double = text_of(first) + text_of(second)
        if [first, second] in bad_sequences(engine.endpoint.tokenizer, [double]):
            break
    else:
        pytest.fail("no two tokens of the output are what their text is cut into")
    made = ids_of(ask(engine, bad_words=[single], **want))
    assert single not in map(text_of, made)
    made = ids_of(ask(engine, bad_words=double, **want))
    assert [first, second] not in [made[at : at + 2] for at in range(len(made))]
    assert first in made


@pytest.mark.parametrize("temperature", [0, 1])
def test_where_nothing_is_left_this_request_fails_alone(engine, temperature):
    fine = {"seed": 5, "temperature": temperature, "max_new_tokens": 8}
    hard = {**fine, "allowed_token_ids": [EOS], "min_new_tokens": 3}
    with pytest.raises(InvalidRequest, match="allowed_token_ids and min_new_tokens=3 forbid all"):
        engine.generate(input_ids=PROMPT, sampling_params=hard)
    contrary = {**fine, "regex": "a+", "bad_words": ["a"]}
    with pytest.raises(InvalidRequest, match="bad_words and the grammar forbid all"):
        engine.generate(input_ids=PROMPT, sampling_params=contrary)
    alone = engine.generate(input_ids=PROMPT, sampling_params=fine)

    async def beside():
        many = [engine.async_generate(input_ids=PROMPT, sampling_params=p) for p in (fine, hard)]
        return await asyncio.gather(*many, return_exceptions=True)

    answer, error = asyncio.run(beside())
    assert ids_of(answer) == ids_of(alone)
    assert isinstance(error, InvalidRequest)


def test_regex(engine):
    text = ask(engine, regex="(ab|cd){3,5}[0-9]", max_new_tokens=60)["text"]
    assert re.fullmatch("(ab|cd){3,5}[0-9]", text)


def test_ebnf(engine):
    text = ask(engine, ebnf='start: "x" ("1" | "2" start)', max_new_tokens=90)["text"]
    assert re.match("(x2)*(x1)?", text)


def test_json_schema(engine):
    schema = {
        "type": "object",
        "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "boolean"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    text = ask(engine, json_schema=json.dumps(schema), max_new_tokens=100)["text"]
    jsonschema.validate(json.loads(text), schema)


# ---- draws ----


def test_n(engine, logits_of):
    answers = ask(engine, n=3)
    assert len(answers) == 3
    assert len({tuple(ids_of(a)) for a in answers}) == 3
    for choice, answer in enumerate(answers):
        check(engine, logits_of, answer, {"n": 3, "ignore_eos": True}, choice)
    assert ids_of(answers[0]) == ids_of(ask(engine))


@pytest.mark.parametrize("cold", [False, True])
def test_choices_compute_their_prompt_once_with_its_logprobs(folder, cold):
    """Also where no prefix is kept after its request."""
    prompt = PROMPT * 10
    with boughs.Engine(
        model_path=folder, in_process=True, page_size=4, kv_memory="4M", disable_radix_cache=cold
    ) as engine:
        answers = engine.generate(
            input_ids=prompt,
            sampling_params={"n": 5, "max_new_tokens": 40, "ignore_eos": True, "seed": 1},
            return_logprob=True,
            logprob_start_len=0,
        )
        given = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
        assert len(given[0]) == len(prompt)
        assert given == [given[0]] * 5
        # Each later choice computes the prompt's last token, and at most what its page lacks.
        assert engine.stats()["prefill_tokens"] <= len(prompt) + 4 * 4


def test_seed(engine):
    assert ids_of(ask(engine, seed=6)) == ids_of(ask(engine, seed=6)) != ids_of(ask(engine, seed=7))
    drawn = [tuple(ids_of(ask(engine, seed=None))) for _ in range(3)]
    assert len(set(drawn)) == 3


# ---- the request ----


def test_cache_salt(engine):
    engine.flush_cache()
    cached = [
        ask(engine, cache_salt=salt, max_new_tokens=1)["meta_info"]["cached_tokens"]
        for salt in ("a", "b", "a", None, None)
    ]
    assert cached == [0, 0, len(PROMPT) - 1, 0, len(PROMPT) - 1]


def test_timeout(engine):
    with pytest.raises(RequestTimeout, match="timeout=1e-06"):
        ask(engine, timeout=1e-6, max_new_tokens=100)
    assert ids_of(ask(engine, timeout=60)) == ids_of(ask(engine))


ELSEWHERE = {
    "strict": "end_to_end/test_constraints.py",
    **dict.fromkeys(
        ("json_object", "lark", "choices", "structural_tag"),
        "runtime/test_constraints_interfaces.py",
    ),
    **dict.fromkeys(("json_whitespace", "json_separators"), "runtime/test_constraints_forms.py"),
    "priority": "runtime/test_core_loop.py",  # it shows only in steps that a test can count
    **dict.fromkeys(
        ("best_of", "beam_width", "length_penalty", "early_stopping"), "runtime/test_core_beam.py"
    ),
}


def test_every_parameter_has_a_test():
    by_itself = {name for given in MOVES for name in list(given)[:1]}
    for name in SamplingParams.__struct_fields__:
        if name in ELSEWHERE:
            assert (TESTS / ELSEWHERE[name]).exists()
        else:
            assert name in by_itself or f"test_{name}" in globals(), name
