"""Beams that end in their text or are held by a grammar, on a tiny model, against transformers."""

import importlib.util
import itertools
import json
import os
import re
import signal
import threading
from pathlib import Path

import pytest
import torch

import boughs
from boughs import gen
from boughs.lang.errors import GrammarError

PROMPT = "The quick brown fox"
EOS = 2


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    make = load("tiny_models").make_tiny_model
    return make(tmp_path_factory.mktemp("models") / "soft", seed=5, logit_std=4.0)


@pytest.fixture(scope="module")
def engine(folder):
    with boughs.Engine(
        folder, kv_memory="8M", in_process=True, check_invariants=True, threads=1, page_size=4
    ) as engine:
        yield engine
        assert engine.stats()["running"] == 0


@pytest.fixture(scope="module")
def model(folder):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def theirs(model, engine):
    """What transformers finds: (ids, score) of each sequence, best first."""
    from transformers import GenerationConfig

    def find(width, most, whole, **more):
        ids = engine.endpoint.tokenizer.encode(PROMPT, "start")
        prompt = torch.tensor([ids])
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            generation_config=GenerationConfig(
                num_beams=width,
                num_return_sequences=width,
                do_sample=False,
                max_new_tokens=most,
                eos_token_id=[EOS],
                pad_token_id=0,
                output_scores=True,
                return_dict_in_generate=True,
            ),
            **more,
        )
        made = []
        for sequence, score in zip(out.sequences.tolist(), out.sequences_scores, strict=True):
            new = sequence[len(ids) :]
            ends = (at for at in range(1, len(new)) if new[at - 1] == EOS or whole(new[:at]))
            if score > -1e4:  # the others fill up
                made.append((new[: next(ends, len(new))], float(score)))
        return made

    return find


def text_of(engine, ids):
    tokenizer = engine.endpoint.tokenizer
    raw = b"".join(tokenizer.token_bytes(id_) for id_ in ids if id_ not in tokenizer.special_ids)
    return raw.decode("utf-8", "replace")


def search(engine, width, most=8, *, logprobs=(), **params):
    params = {"beam_width": width, "n": width, "max_new_tokens": most, **params}
    answers = engine.generate(
        PROMPT, params, return_logprob=bool(logprobs), token_ids_logprob=list(logprobs)
    )
    return answers if width > 1 else [answers]


def assert_equal(answers, expected):
    assert [a["output_ids"] for a in answers] == [ids for ids, _ in expected]
    scores = [a["meta_info"]["sequence_score"] for a in answers]
    assert scores == pytest.approx([score for _, score in expected], abs=1e-3)


@pytest.mark.parametrize("stops", [["e"], [" t", "in"], ["at", "o", "e", "zz"]])
@pytest.mark.parametrize("width", [2, 4])
def test_stops_are_the_stop_strings_of_transformers(engine, theirs, stops, width):
    def whole(ids):
        return any(stop in text_of(engine, ids) for stop in stops)

    hf = engine.endpoint.tokenizer.hf
    # transformers reads the names of special tokens as text.
    bias = {0: -100.0, 1: -100.0}
    answers = search(engine, width, stop=stops, logit_bias=bias)
    more = {"stop_strings": stops, "sequence_bias": {(0,): -100.0, (1,): -100.0}}
    assert_equal(answers, theirs(width, 8, whole, tokenizer=hf, **more))
    ended = [a for a in answers if whole(a["output_ids"])]
    assert ended
    for answer in ended:
        full = text_of(engine, answer["output_ids"])
        assert answer["text"] == full[: min(full.find(stop) for stop in stops if stop in full)]
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        assert answer["meta_info"]["finish_reason"]["matched"] in stops
    kept = search(engine, width, stop=stops, logit_bias=bias, no_stop_trim=True)
    assert [a["output_ids"] for a in kept] == [a["output_ids"] for a in answers]
    assert any(a["text"] != b["text"] for a, b in zip(kept, answers, strict=True))


WORDS = ["an", "on", "at", "in", "it", "of", "or", "as"]
LANGUAGES = [
    ("|".join(WORDS), WORDS),
    ("(a|b|ab|abc)", ["a", "b", "ab", "abc"]),
    ("[a-e]{2,3}", ["".join(p) for n in (2, 3) for p in itertools.product("abcde", repeat=n)]),
]
"""Nothing in them forces two letters, which llguidance allows in one spelling alone."""


@pytest.mark.parametrize(("source", "texts"), LANGUAGES)
@pytest.mark.parametrize("width", [2, 5])
def test_a_grammar_is_the_allowed_prefixes_of_transformers(engine, theirs, source, texts, width):
    tokenizer = engine.endpoint.tokenizer
    spelled = {id_: tokenizer.token_bytes(id_).decode("utf-8", "replace") for id_ in range(384)}

    def allowed(text):
        found = [
            id_
            for id_, piece in spelled.items()
            if piece
            and id_ not in tokenizer.special_ids
            and any(other.startswith(text + piece) for other in texts)
        ]
        return found + ([EOS] if text in texts else [])

    def whole(ids):
        return allowed(text_of(engine, ids)) == [EOS]

    complete = load("hf_beams").Complete
    start = len(tokenizer.encode(PROMPT, "start"))
    expected = theirs(
        width,
        12,
        whole,
        prefix_allowed_tokens_fn=lambda _, ids: (
            allowed(text_of(engine, ids[start:].tolist())) or [EOS]
        ),
        stopping_criteria=[complete(range(start), whole)],
    )
    answers = search(engine, width, 12, regex=source)
    assert_equal(answers, expected)
    assert all(a["text"] in texts for a in answers)
    assert {a["meta_info"]["finish_reason"]["type"] for a in answers} == {"stop"}


def test_a_pattern_ends_beams_and_a_grammar_holds_them_together(engine):
    """A stop inside a grammar ends a beam before its grammar does."""
    answers = search(engine, 3, 24, regex="[a-d]{20}", stop_regex="[ab][cd]|cc")
    for answer in answers:
        text = text_of(engine, answer["output_ids"])
        found = re.search("[ab][cd]|cc", text)
        assert found is not None
        assert len(text) <= found.end() + 1  # a token has at most two letters
        assert answer["text"] == text[: found.start()]
        reason = answer["meta_info"]["finish_reason"]
        assert (reason["type"], reason["matched"]) == ("stop", "[ab][cd]|cc")


def test_given_logprobs_stand_beside_each_token(engine, model):
    given = [70, 300, 71]
    for answer in search(engine, 3, 6, logprobs=given, stop=["e"]):
        prompt = engine.endpoint.tokenizer.encode(PROMPT, "start")
        ids = prompt + answer["output_ids"]
        with torch.inference_mode():
            own = model(torch.tensor([ids])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        entries = answer["meta_info"]["output_token_ids_logprobs"]
        assert [[id_ for _, id_, _ in position] for position in entries] == [given] * len(own)
        got = [[value for value, _, _ in position] for position in entries]
        assert torch.tensor(got) == pytest.approx(own[:, given], abs=1e-3)


@pytest.mark.parametrize(
    ("given", "pattern"),
    [
        ({"choices": ["yes", "no", "maybe"]}, "yes|no|maybe"),
        ({"lark": 'start: "a" ("b" | "c")'}, "a[bc]"),
        ({"json_object": True, "json_separators": [",", ":"]}, r"\{.*"),
        (
            {
                "structural_tag": {
                    "type": "structural_tag",
                    "format": {"type": "regex", "pattern": "[xy]z"},
                }
            },
            "[xy]z",
        ),
    ],
)
def test_every_constraint_holds_every_beam(engine, given, pattern):
    answers = search(engine, 3, 12, **given)
    assert len({answer["text"] for answer in answers}) > 1
    assert all(re.fullmatch(pattern, answer["text"], re.DOTALL) for answer in answers)


def test_a_schema_that_no_grammar_holds_is_checked_for_each_beam(engine):
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 2}
    answers = search(engine, 4, 20, json_schema=json.dumps({**schema, "uniqueItems": True}))
    assert len(answers) == 4
    for answer in answers:
        one, two = json.loads(answer["text"])
        violation = answer["meta_info"]["finish_reason"].get("violation")
        assert (violation is not None) == (one == two)
    with pytest.raises(GrammarError, match="uniqueItems"):
        search(engine, 4, json_schema=json.dumps({**schema, "uniqueItems": True}), strict=True)


def test_the_end_and_a_cut_of_a_grammar_are_told(engine):
    for answer in search(engine, 3, 4, regex="[ab]{9}"):
        reason = answer["meta_info"]["finish_reason"]
        assert (reason["type"], reason["incomplete"]) == ("length", True)
    with pytest.raises(GrammarError, match="regex"):
        search(engine, 3, regex="a(")


def test_fewer_outputs_than_asked_where_the_grammar_has_no_more(engine):
    whole = search(engine, 4, regex="(yes|no)")
    assert sorted(a["text"] for a in whole) in (["no", "yes"], ["no", "yes", "yes"])
    params = {"beam_width": 4, "n": 4, "regex": "x"}
    pieces = list(engine.generate(PROMPT, params, stream=True))
    assert [piece["text"] for piece in pieces] == ["x"]


@boughs.function
def constrained(s):
    s += PROMPT
    s += gen("colour", regex="(red|green|blue)", beam_width=3, n=2, max_tokens=12)
    s += " and "
    s += gen("until", stop="e", beam_width=3, max_tokens=8)


def test_a_program_searches_under_a_grammar_and_up_to_a_stop(engine):
    state = constrained.run(backend=engine)
    assert set(state["colour"]) <= {"red", "green", "blue"}
    assert "e" not in state["until"]


@pytest.mark.kills_core
def test_a_core_that_dies_begins_its_searches_anew(folder, engine):
    """The answer is the one that an engine gives whose core lives."""
    params = {"beam_width": 4, "n": 4, "max_new_tokens": 300, "regex": "[a-z ]{400}",
              "stop": "zzzz", "length_penalty": 0.0}  # fmt: skip
    expected = engine.generate(PROMPT, params)
    with boughs.Engine(folder, kv_memory="8M", threads=1, page_size=4) as other:
        made = []
        reader = threading.Thread(target=lambda: made.extend(other.generate(PROMPT, params)))
        reader.start()
        while other.stats()["running"] == 0:
            assert reader.is_alive()
        os.kill(other.endpoint._core._link.pid, signal.SIGKILL)
        reader.join(60)
        assert other.stats()["restarts"] == 1
    assert [a["output_ids"] for a in made] == [a["output_ids"] for a in expected]
