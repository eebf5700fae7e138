"""Constrained requests on an engine: hostile sources, and what others get meanwhile."""

import json
import os
import re
import signal
import threading

import jsonschema
import pytest

import boughs
from boughs.lang.errors import GrammarError

DEEP = '{"properties":{"a":' * 64 + "{}" + "}}" * 64
HOSTILE = [
    ("regex", "((((a{100}){100}){100}){100})", "too many expressions|seconds"),
    ("regex", "(" * 3000 + "a" + ")" * 3000, "position 250"),
    ("regex", "(?:[a-z]{1,50}|[0-9a-f]{1,50}){1,200}", "too many expressions"),
    ("regex", "(a)\\1", "backreferences are not supported at position 3"),
    ("json_schema", DEEP, "nested too deeply"),
    ("json_schema", '{"$ref": "#"}', "allows no output"),
    ("json_schema", '{"$ref": "http://127.0.0.1:9/x"}', "http://127.0.0.1:9/x"),
    ("json_schema", json.dumps({"enum": [f"{i:x>9}" for i in range(100_000)]}), "bytes; at most"),
    (
        "json_schema",
        json.dumps({"properties": {f"k{i}": {"type": "string"} for i in range(5000)}}),
        "too many parts|items; max is|seconds",
    ),
    ("regex", "\udc80", "surrogate"),
    ("choices", ["a", "\udc80"], "surrogate"),
    ("choices", [f"{i:x>9}" for i in range(30_000)], "bytes; at most"),
    ("lark", "start: " + "(" * 5000 + '"a"' + ")" * 5000, "too deeply"),
    ("lark", 'start: "a"* | %json {"$ref": "http://127.0.0.1:9/x"}', "http://127.0.0.1:9/x"),
    ("ebnf", "root ::= root root", "no output|too many|seconds"),
    (
        "structural_tag",
        '{"format":' + '{"type":"plus","content":' * 900 + '{"type":"any_text"' + "}" * 902,
        "too deeply|what is free",
    ),
    (
        "structural_tag",
        json.dumps(
            {
                "structures": [{"begin": f"<{i}>", "end": "", "schema": {}} for i in range(5000)],
                "triggers": ["<"],
            }
        ),
        "too many|items; max is|seconds|memory|fault of its own",
    ),
]
TREE = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}}
FINE = [
    *(("regex", "(a+)+b"), ("regex", "(a|a)*"), ("regex", ".{0,100000}"), ("regex", "((a*)*)*")),
    ("json_schema", json.dumps({**TREE, "type": "object", "additionalProperties": False})),
    ("json_schema", json.dumps({"enum": [f"{i:x>9}" for i in range(9_000)]})),
    ("choices", [f"{i:x>9}" for i in range(9_000)]),
]


@pytest.fixture(scope="module")
def engine(tiny_model):
    with boughs.Engine(
        model_path=tiny_model, kv_memory="16M", page_size=4, check_invariants=True
    ) as engine:
        yield engine
        assert engine.stats()["running"] == 0


def ask(engine, **params):
    return engine.generate("Once upon a time", {"temperature": 0, **params})


def test_hostile_sources_are_refused_and_others_get_tokens_meanwhile(engine):
    counts, done = [0], threading.Event()

    def read():
        params = {"max_new_tokens": 4000, "ignore_eos": True, "temperature": 0}
        for chunk in engine.generate("The quick", params, stream=True):
            counts[0] = chunk["meta_info"]["completion_tokens"]
            if done.is_set():
                return

    reader = threading.Thread(target=read)
    reader.start()
    try:
        while counts[0] == 0:
            assert reader.is_alive()
        before = counts[0]
        for kind, source, says in HOSTILE:
            with pytest.raises(boughs.InvalidRequest, match=says) as caught:
                ask(engine, **{kind: source})
            assert kind in str(caught.value)
            assert len(str(caught.value)) < 600
        for kind, source in FINE:
            assert ask(engine, **{kind: source}, max_new_tokens=9)
        assert counts[0] > before
    finally:
        done.set()
        reader.join(20)


def test_an_error_is_a_grammar_error_and_the_service_goes_on(engine):
    with pytest.raises(GrammarError, match=r"regex: unclosed group at position 1: 'a' \^ '\('$"):
        ask(engine, regex="a(")
    assert ask(engine, regex="ab?")["text"] in ("a", "ab")


def schema_of(**keywords):
    return json.dumps({"type": "array", "items": {"enum": [1]}, "minItems": 2, **keywords})


def test_a_violation_of_what_no_grammar_holds_is_told(engine):
    for stream in (False, True):
        params = {"temperature": 0, "json_schema": schema_of(maxItems=2, uniqueItems=True)}
        answer = engine.generate("List:", params, stream=stream)
        reason = (list(answer)[-1] if stream else answer)["meta_info"]["finish_reason"]
        assert reason["type"] == "stop"
        assert reason["violation"] == "$: [1, 1] has non-unique elements (uniqueItems)"
    fine = ask(engine, json_schema=schema_of(maxItems=2))
    assert fine["text"] == "[1, 1]"
    assert "violation" not in fine["meta_info"]["finish_reason"]


def test_strict_refuses_what_no_grammar_holds(engine):
    with pytest.raises(GrammarError, match="json_schema: #/uniqueItems: no grammar holds"):
        ask(engine, json_schema=schema_of(uniqueItems=True), strict=True)
    assert ask(engine, json_schema=schema_of(maxItems=2), strict=True)["text"] == "[1, 1]"


def test_an_output_cut_inside_its_grammar_is_incomplete(engine):
    for source, incomplete in (("a{9}", True), ("a{3,9}", False)):
        answer = ask(engine, regex=source, max_new_tokens=3)
        reason = answer["meta_info"]["finish_reason"]
        made = len(answer["text"])
        assert reason["type"] == "length"
        assert made < 9
        assert reason.get("incomplete", False) == (incomplete or made < 3)


def test_choices_share_a_grammar_and_go_their_own_ways(engine):
    params = {"regex": "[ab]{6}", "n": 8, "temperature": 40, "seed": 3}
    texts = [item["text"] for item in engine.generate("Once", params)]
    assert len(set(texts)) > 1
    assert all(re.fullmatch("[ab]{6}", text) for text in texts)


CALL = {
    "type": "sequence",
    "elements": [
        {
            "type": "optional",
            "content": {
                "type": "tag",
                "begin": "<t>",
                "content": {"type": "any_text", "max_chars": 9},
                "end": "</t>",
            },
        },
        {
            "type": "triggered_tags",
            "triggers": ["<f="],
            "tags": [
                {
                    "type": "tag",
                    "begin": "<f=go>\n",
                    "content": {
                        "type": "json_schema",
                        "style": "qwen_xml",
                        "json_schema": {
                            "properties": {
                                "way": {"enum": ["left", "right"]},
                                "far": {"type": "string", "maxLength": 3},
                            },
                            "required": ["way", "far"],
                        },
                    },
                    "end": "\n</f>",
                }
            ],
            "at_least_one": True,
            "stop_after_first": True,
        },
    ],
}


def test_calls_in_a_models_own_style_are_whole(engine):
    params = {"structural_tag": {"format": CALL}, "n": 6, "temperature": 40, "seed": 1}
    way = r"\s{0,4}<parameter=way>\s{0,4}(left|right)\s{0,4}</parameter>\s{0,4}"
    far = r"<parameter=far>(?s:.{0,3})</parameter>\s{0,4}"
    for answer in engine.generate("Go", {**params, "max_new_tokens": 300}):
        assert re.fullmatch(rf"(<t>(?s:.{{0,9}})</t>)?<f=go>\n{way}{far}\n</f>", answer["text"])
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
        assert answer["meta_info"]["forced_tokens"] > 20


KEYS = {
    "type": "object",
    "properties": {
        "the_first_of_the_long_names": {"enum": ["one long constant", "another long constant"]},
        "the_second_of_the_long_names": {"type": "boolean"},
        "the_third": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["the_first_of_the_long_names", "the_second_of_the_long_names", "the_third"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def walking(tiny_model):
    """An engine that takes a step for every token."""
    with boughs.Engine(model_path=tiny_model, kv_memory="16M", disable_jump_forward=True) as engine:
        yield engine


@pytest.mark.parametrize("stop", [None, "second", "nt", 'third": ['])
@pytest.mark.parametrize("most", [4, 9, 200])
def test_jumping_changes_steps_and_not_the_text(engine, walking, stop, most):
    params = {"json_schema": json.dumps(KEYS), "max_new_tokens": most, "stop": stop}
    jumped, walked = ask(engine, **params), ask(walking, **params)
    assert "forced_tokens" not in walked["meta_info"]
    info = jumped["meta_info"]
    if most == 200:
        assert jumped["text"] == walked["text"]
        assert info["finish_reason"]["type"] == "stop"
        assert info["forced_tokens"] > info["completion_tokens"] / 2
    else:  # tokens are cut elsewhere where the model has its own way to spell the text
        shorter, longer = sorted((jumped["text"], walked["text"]), key=len)
        assert longer.startswith(shorter)
    assert info["completion_tokens"] == len(jumped["output_ids"]) <= most


@pytest.mark.parametrize("seed", range(6))
def test_jumping_keeps_to_the_language_when_sampling(engine, seed):
    params = {"json_schema": json.dumps(KEYS), "max_new_tokens": 200, "seed": seed, "n": 3}
    for answer in engine.generate("Once", {**params, "temperature": 40}):
        jsonschema.validate(json.loads(answer["text"]), KEYS)
        assert answer["meta_info"]["forced_tokens"] > 20
        assert list(json.loads(answer["text"])) == list(KEYS["properties"])


LOGPROBS = {"return_logprob": True, "top_logprobs_num": 3, "token_ids_logprob": [5, 9]}
LISTS = ("token_logprobs", "top_logprobs", "token_ids_logprobs")


def scored(engine, prompt, ids):
    """The logprobs of tokens behind a prompt, as those of a prompt."""
    nothing = {"max_new_tokens": 0}
    begin = engine.generate(prompt, nothing, return_logprob=True, logprob_start_len=0)
    before = [id_ for _, id_, _ in begin["meta_info"]["input_token_logprobs"]]
    answer = engine.generate(None, nothing, [*before, *ids], logprob_start_len=0, **LOGPROBS)
    return {name: answer["meta_info"][f"input_{name}"][len(before) :] for name in LISTS}


def flat(entries):
    """Logprobs and tokens of entries, of whatever list."""
    for entry in entries:
        if isinstance(entry[0], list | tuple):
            yield from flat(entry)
        else:
            yield tuple(entry[:2])


@pytest.mark.parametrize("most", [3, 9, 24, 200])
@pytest.mark.parametrize("stop", [None, "second", 'third": ['])
def test_forced_tokens_carry_the_models_own_logprobs(engine, most, stop):
    params = {"json_schema": json.dumps(KEYS), "max_new_tokens": most, "temperature": 0}
    prompt = "Once upon a time"
    answer = engine.generate(prompt, {**params, "stop": stop}, **LOGPROBS)
    info, ids = answer["meta_info"], answer["output_ids"]
    assert info["completion_tokens"] == len(ids) <= most
    assert info["forced_tokens"] >= (len(ids) - 2) / 2
    assert engine.generate(prompt, {**params, "stop": stop})["output_ids"] == ids
    expected = scored(engine, prompt, ids)
    for name in LISTS:
        assert len(info[f"output_{name}"]) == len(ids)
        pairs = zip(flat(info[f"output_{name}"]), flat(expected[name]), strict=True)
        for (ours, token), (theirs, other) in pairs:
            assert token == other
            assert ours == pytest.approx(theirs, abs=1e-3)


def test_forced_tokens_of_many_carry_logprobs_in_chunks_and_after_retractions(tiny_model):
    """A pool and a budget so small that requests are retracted, and jumps are cut into chunks."""
    names = {f"{'a_very_long_name_' * 3}{at}": {"enum": ["one", "two"]} for at in range(5)}
    schema = {"type": "object", "properties": names, "required": list(names)}
    params = {"json_schema": json.dumps({**schema, "additionalProperties": False}), "n": 6}
    params |= {"max_new_tokens": 900, "temperature": 30, "seed": 4}
    with boughs.Engine(
        model_path=tiny_model,
        kv_memory="128K",
        page_size=4,
        schedule_conservativeness=0.1,
        max_batched_tokens=16,
        check_invariants=True,
    ) as engine:
        answers = engine.generate("Once", params, **LOGPROBS)
        assert engine.stats()["retractions"] > 0
        for answer in answers:
            info, ids = answer["meta_info"], answer["output_ids"]
            jsonschema.validate(json.loads(answer["text"]), schema)
            assert info["forced_tokens"] > len(ids) / 2
            expected = scored(engine, "Once", ids)["token_logprobs"]
            pairs = zip(flat(info["output_token_logprobs"]), flat(expected), strict=True)
            for (ours, token), (theirs, other) in pairs:
                assert token == other
                assert ours == pytest.approx(theirs, abs=1e-3)


def flat_logprobs(entries):
    return [logprob for logprob, _ in flat(entries)]


@pytest.mark.kills_core
def test_what_is_constrained_and_what_waits_for_its_grammar_outlives_the_core(tiny_model):
    with boughs.Engine(model_path=tiny_model, kv_memory="16M", grammar_timeout=60.0) as engine:
        # Most of it is forced, and with logprobs told a step after it was taken.
        params = {"regex": "([ab] and so forth; ){60}", "max_new_tokens": 900, "temperature": 0}
        alone = engine.generate("Once", params)["text"]
        errors = []

        def wait():
            try:
                engine.generate("Once", {"regex": "((((a{100}){100}){100}){100})"})
            except GrammarError as error:
                errors.append(str(error))

        waiting, text = threading.Thread(target=wait), ""
        waiting.start()
        for chunk in engine.generate("Once", params, stream=True, return_logprob=True):
            if not text:
                os.kill(engine.endpoint._core._link.pid, signal.SIGKILL)
            text = chunk["text"]
        waiting.join(60)
        assert text == alone
        info = chunk["meta_info"]
        assert info["forced_tokens"] > 60
        expected = scored(engine, "Once", chunk["output_ids"])["token_logprobs"]
        assert flat_logprobs(info["output_token_logprobs"]) == pytest.approx(
            flat_logprobs(expected), abs=1e-3
        )
        assert errors == ["sampling_params.regex: lexer error: too many expressions constructed"]
        assert engine.stats()["restarts"] == 1
