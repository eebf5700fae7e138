"""Every constraint through every interface, on a tiny random model."""

import dataclasses
import http.client
import importlib.util
import json
import re
from pathlib import Path
from typing import Literal, NotRequired
from urllib.parse import urlsplit

import openai
import pytest
from pydantic import TypeAdapter
from typing_extensions import TypedDict

import boughs
from boughs.runtime.config import EngineConfig
from boughs.runtime.constraints.llguidance_backend import load
from boughs.runtime.front.front import Front
from boughs.runtime.front.link import thread_link

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def site(tiny_model):
    config = EngineConfig(
        model_path=str(tiny_model),
        kv_memory="4M",
        threads=1,
        attention_backend="reference",
        check_invariants=True,
    )
    with fake.served(Front(config, thread_link), served_model_name="tiny") as site:
        yield site


@pytest.fixture(scope="module")
def client(site):
    with openai.OpenAI(base_url=site.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


@dataclasses.dataclass
class Point:
    x: bool
    y: bool


class Named(TypedDict):
    key: NotRequired[bool]


POINT = re.compile(r'\{"x": (true|false), "y": (true|false)\}')
SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "boolean"}, "y": {"type": "boolean"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
    "at_least_one": True,
}
ISLAND = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<f>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</f>",
    },
}
# Text that is free, up to a bound: a random model would not come to an end.
SHORT = 'start: t j "</f>"\nt: /[a-d ]{0,4}<f>/\nj: %json ' + json.dumps(SCHEMA)
CASES = [
    ({"regex": "[ab]{3}"}, re.compile("[ab]{3}")),
    ({"choices": ["yes", "yes, indeed", "no"]}, re.compile("yes(, indeed)?|no")),
    ({"json_schema": SCHEMA}, POINT),
    ({"json_schema": SCHEMA, "json_separators": [",", ":"]}, re.compile('{"x":(.*),"y":(.*)}')),
    ({"json_schema": SCHEMA, "strict": True}, POINT),
    ({"lark": SHORT}, re.compile(r"[a-d ]{0,4}<f>\{.*\}</f>")),
    ({"structural_tag": ISLAND}, re.compile(r"<f>\{.*\}</f>")),
    ({"structural_tag": json.dumps(ISLAND)}, re.compile(r"<f>\{.*\}</f>")),
    ({"ebnf": 'root ::= "a" b{2}\nb ::= [xy]'}, re.compile("a[xy]{2}")),
]
PARAMS = {"max_new_tokens": 80, "temperature": 3.0, "seed": 5}


@pytest.mark.parametrize(("fields", "fits"), CASES)
def test_generate(site, fields, fits):
    for n in (1, 3):
        body = {"text": PROMPT, "sampling_params": {**PARAMS, **fields, "n": n}}
        answers = site.post("/generate", body)
        for answer in answers if n > 1 else [answers]:
            assert fits.fullmatch(answer["text"])
            assert answer["meta_info"]["finish_reason"]["type"] == "stop"


@pytest.mark.parametrize(("fields", "fits"), CASES)
def test_openai_completions(client, fields, fits):
    answer = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=80, temperature=2.0, seed=5, extra_body=fields
    )
    assert fits.fullmatch(answer.choices[0].text)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(("fields", "fits"), [c for c in CASES if "choices" not in c[0]])
def test_the_language(site, fields, fits):
    @boughs.function
    def program(s):
        s += PROMPT + boughs.gen("x", max_tokens=80, temperature=3.0, seed=5, **fields)

    state = program.run(backend=boughs.RuntimeEndpoint(site.url))
    assert fits.fullmatch(state["x"])


def asked(site, fields):
    """What is asked with these of the front, and its answer; it may be cut."""
    body = {"text": PROMPT, "sampling_params": {**PARAMS, "max_new_tokens": 24, **fields}}
    return site.post("/generate", body)["text"]


def test_a_json_object_is_begun_through_every_interface(site, client):
    texts = [asked(site, {"json_object": True})]
    for more in ({"extra_body": {"json_object": True}}, {}):
        if not more:
            more["response_format"] = {"type": "json_object"}
            messages = [{"role": "user", "content": "hi"}]
            chat = client.chat.completions.create(
                model="tiny", messages=messages, max_tokens=24, seed=5, **more
            )
            texts.append(chat.choices[0].message.content)
            continue
        texts.append(
            client.completions.create(model="tiny", prompt=PROMPT, max_tokens=24, seed=5, **more)
            .choices[0]
            .text
        )

    @boughs.function
    def program(s):
        s += PROMPT + boughs.gen("x", max_tokens=24, seed=5, json_object=True)

    texts.append(program.run(backend=boughs.RuntimeEndpoint(site.url))["x"])
    assert all(text.startswith('{"') or text == "{}" for text in texts), texts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chat", [False, True])
def test_openai_is_told_of_violations_and_of_what_is_cut(client, chat, stream):
    twice = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}
    asked = {"model": "tiny", "stream": stream, "temperature": 0, "max_tokens": 40}
    asked |= {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": PROMPT}
    create = client.chat.completions.create if chat else client.completions.create

    def told(**more):
        answer = create(**asked | more)
        chunks = [chunk for chunk in answer if chunk.choices] if stream else [answer]
        (choice,) = (chunk.choices[0] for chunk in chunks if chunk.choices[0].finish_reason)
        return choice.finish_reason, choice.model_extra

    weak = {"json_schema": {**twice, "uniqueItems": True}}
    reason, extra = told(extra_body=weak)
    assert reason == "stop"
    assert extra == {"violation": "$: [1, 1] has non-unique elements (uniqueItems)"}
    assert told(extra_body={"json_schema": twice}) == ("stop", {})
    assert told(extra_body={"regex": "x{9}y"}, max_tokens=1) == ("length", {"incomplete": True})
    assert told(extra_body={"regex": "[xy]+"}, max_tokens=1) == ("length", {})


def test_a_response_format_may_be_a_structural_tag(client):
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=80,
        seed=5,
        response_format=ISLAND,
    )
    assert re.fullmatch(r"<f>\{.*\}</f>", answer.choices[0].message.content)


@pytest.mark.parametrize("seed", range(4))
def test_islands_come_in_free_text(site, tiny_model, seed):
    """A bias makes a random model write triggers now and then, and an end."""
    backend = load(tiny_model, 384, (2,))
    ids = {text: backend.tokenizer.tokenize_str(text)[0] for text in "<fa"}
    bias = {str(id_): 100 for id_ in ids.values()} | {"2": 97}
    params = {**PARAMS, "temperature": 1.0, "max_new_tokens": 400, "seed": seed}
    tag = {**TAG, "at_least_one": True}
    answer = site.post(
        "/generate",
        {"text": PROMPT, "sampling_params": {**params, "logit_bias": bias, "structural_tag": tag}},
    )
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    free, islands = re.subn(r"<f>(\{.*?\})</f>", "", answer["text"])
    assert islands
    assert "<f" not in free
    for found in re.findall(r"<f>(\{.*?\})</f>", answer["text"]):
        assert POINT.fullmatch(found)


def test_a_type_is_a_schema(site):
    @boughs.function
    def program(s, kind):
        s += PROMPT + boughs.gen("x", max_tokens=80, temperature=3.0, seed=5, json_schema=kind)

    backend = boughs.RuntimeEndpoint(site.url)
    for kind in (bool, tuple[bool, bool], Point, Literal["a", 1], Named | None):
        text = program.run(kind=kind, backend=backend, max_new_tokens=300)["x"]
        TypeAdapter(kind).validate_json(text)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"regex": "a", "choices": ["a"]}, "choices"),
        ({"json_object": True, "json_schema": "{}"}, "json_object"),
        ({"lark": 'start: "a"', "ebnf": 'start: "a"'}, "lark"),
        ({"structural_tag": TAG, "regex": "a"}, "structural_tag"),
        ({"json_whitespace": 3, "json_separators": [",", ":"]}, "json_separators"),
        ({"json_separators": [";", ":"]}, "json_separators"),
        ({"structural_tag": {"structures": []}}, "structural_tag"),
        ({"choices": []}, "choices"),
    ],
)
def test_what_does_not_go_together_is_refused_by_name(site, client, fields, named):
    status, error = site.fail("/generate", {"text": PROMPT, "sampling_params": fields})
    assert status == 400
    assert named in error["message"]
    with pytest.raises(openai.BadRequestError, match=named):
        client.completions.create(model="tiny", prompt=PROMPT, extra_body=fields)


@pytest.mark.parametrize("other", [{"regex": "a"}, {"json_object": True}, {"choices": ["a"]}])
@pytest.mark.parametrize("kind", ["json_object", "structural_tag"])
def test_a_response_format_and_a_constraint_are_refused(client, other, kind):
    given = TAG if kind == "structural_tag" else {"type": kind}
    with pytest.raises(openai.BadRequestError, match=f"give {next(iter(other))} or response_form"):
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            response_format=given,
            extra_body=other,
        )


def test_forks_share_a_grammar_and_go_their_own_ways(site):
    @boughs.function
    def program(s):
        s += PROMPT
        branches = s.fork(6)
        for seed, branch in enumerate(branches):
            branch += boughs.gen("x", max_tokens=9, temperature=40.0, seed=seed, regex="[ab]{6}")
        s["all"] = [branch["x"] for branch in branches]

    texts = program.run(backend=boughs.RuntimeEndpoint(site.url))["all"]
    assert len(set(texts)) > 1
    assert all(re.fullmatch("[ab]{6}", text) for text in texts)


def test_one_of_a_batch_may_be_bound_while_others_are_free(site):
    """A constraint touches nobody else, whatever it is."""
    free = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
    alone = site.post("/generate", {"text": PROMPT, "sampling_params": free})
    bound = [{**free, **fields} for fields, _ in CASES]
    params = [part for one in bound for part in (one, free)]
    body = {"text": [PROMPT] * len(params), "sampling_params": params}
    answers = site.post("/generate", body)
    assert [a["output_ids"] for a in answers[1::2]] == [alone["output_ids"]] * len(bound)


def test_bytes_that_are_no_text_are_refused(site):
    raw = b'{"text": "a", "sampling_params": {"regex": "\xff\xfe"}}'
    link = http.client.HTTPConnection(urlsplit(site.url).netloc)
    link.request("POST", "/generate", raw, {"Content-Type": "application/json"})
    answer = link.getresponse()
    assert answer.status == 400
    assert json.loads(answer.read())["error"]["message"]
    link.close()
