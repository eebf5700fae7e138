"""`/encode` and `/v1/embeddings` against an engine without a model, the latter by `openai`."""

import base64
import http.client
import importlib.util
import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import openai
import pytest

import boughs
from boughs.lang import loop
from boughs.lang.backend import Encoding
from boughs.lang.errors import InvalidRequest, Unservable
from boughs.lang.requests import EncodeRequest
from boughs.lang.segments import Content, Ids, Text
from boughs.runtime.server.encode import LACKED, MOST_INPUTS

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)


@pytest.fixture
def site():
    with fake.served() as site:
        yield site


@pytest.fixture
def client(site):
    with openai.OpenAI(base_url=site.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


def vector(text, **fields):
    return fake.vector(text, EncodeRequest(prompt=text, **fields))


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def open_request(site, path, body):
    """A connection on which a POST was sent and nothing was read."""
    where = urlsplit(site.url)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
    connection.request("POST", path, json.dumps(body))
    return connection


# ---- /encode ----


def test_one_prompt(site):
    answer = site.post("/encode", {"text": "hi"})
    assert answer["embedding"] == vector("hi")
    info = answer["meta_info"]
    assert 0 <= info.pop("e2e_latency") < 20
    assert info == {"id": info["id"], "prompt_tokens": 2, "cached_tokens": 1}
    assert site.post("/encode", {"text": "hi"}, method="PUT")["embedding"] == vector("hi")


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({"text": ["a", "bc"]}, ["a", "bc"]),
        ({"text": ["a"]}, ["a"]),
        ({"input_ids": [[97], [98, 99]]}, ["a", "bc"]),
        ({"segments": [[{"text": "a"}], [{"content": "b"}, {"ids": [99]}]]}, ["a", "bc"]),
    ],
)
def test_lists_are_answered_in_order(site, body, texts):
    answers = site.post("/encode", {**body, "rid": "many"})
    assert [answer["embedding"] for answer in answers] == [vector(text) for text in texts]
    assert [a["meta_info"]["id"] for a in answers] == [f"many-{at}" for at in range(len(texts))]


def test_fields(site):
    body = {"input_ids": [104, 105], "pooling": "mean", "normalize": False, "rid": "r"}
    body |= {"priority": 3, "extra_key": "salt", "timeout": 5, "no_such_key": {"x": 1}}
    answer = site.post("/encode", body)
    assert answer["embedding"] == vector("hi", pooling="mean", normalize=False)
    (request,) = site.engine.encoded
    assert (request.rid, request.priority, request.cache_salt) == ("r", 3, "salt")
    assert request.timeout == 5
    site.post("/encode", {"text": "hi", "cache_salt": "own", "pooling": None, "rid": None})
    assert site.engine.encoded[-1].cache_salt == "own"
    assert site.engine.encoded[-1].pooling == "last"


@pytest.mark.parametrize("key", sorted(LACKED))
def test_keys_that_we_lack(site, key):
    status, error = site.fail("/encode", {"text": "a", key: 1})
    assert (status, error["type"], error["param"]) == (400, "Unsupported", key)
    assert key in error["message"]
    site.post("/encode", {"text": "a", key: None})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "exactly one of text, input_ids, segments"),
        ({"text": "a", "input_ids": [1]}, "exactly one"),
        ({"text": 5}, "text: expected a string"),
        ({"text": []}, "text: the list is empty"),
        ({"text": [["a", "b"]]}, "text[0]: expected `str`"),
        ({"input_ids": [1.5]}, "input_ids[0]: expected `int`"),
        ({"text": "a", "pooling": "max"}, "pooling must be one of last, mean"),
        ({"text": "a", "normalize": "yes"}, "normalize: expected a bool"),
        ({"text": "a", "priority": "x"}, "priority: expected `int`"),
        ({"text": "a", "timeout": 0}, "timeout must be above 0"),
        ({"text": "a", "cache_salt": 5}, "cache_salt: expected `str"),
        ({"text": "a", "rid": 5}, "rid"),
        ({"text": ["a", "b"], "rid": ["x", "x"]}, "rid[1]: 'x' is given twice"),
        ({"text": ["a"] * (MOST_INPUTS + 1)}, f"text: {MOST_INPUTS + 1} prompts in one call"),
    ],
)
def test_wrong_bodies(site, body, words):
    status, error = site.fail("/encode", body)
    assert (status, error["type"]) == (400, "InvalidRequest")
    assert words in error["message"]
    assert not site.engine.encoded


def test_one_failure_fails_the_list(site):
    site.on_loop(site.engine.hold)
    status, error = site.fail("/encode", {"text": ["a", "b", "long"], "rid": "three"})
    assert (status, error["type"]) == (400, "Unservable")
    assert error["message"] == "text[2]: the prompt is too long"
    assert {"three-0", "three-1"} <= set(site.engine.closed)
    assert not site.engine.running
    assert site.fail("/encode", {"text": "full"})[0] == 429


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/encode", {"text": "a"}),
        ("/encode", {"text": ["a", "b"]}),
        ("/v1/embeddings", {"input": ["a", "b"]}),
    ],
)
def test_disconnect_aborts(site, path, body):
    site.on_loop(site.engine.hold)
    connection = open_request(site, path, body)
    count = len(next(iter(body.values())))
    until(lambda: len(site.engine.running) == count)
    connection.close()
    until(lambda: not site.engine.running)
    assert len(site.engine.closed) == count


def test_a_list_is_aborted_by_its_name(site):
    site.on_loop(site.engine.hold)
    connection = open_request(site, "/encode", {"text": ["a", "b"], "rid": "two"})
    until(lambda: len(site.engine.running) == 2)
    assert site.fail("/encode", {"text": ["a"], "rid": "two"})[0] == 400
    assert site.post("/abort_request", {"rid": "two"}) == {"aborted": 2}
    answer = connection.getresponse()
    assert answer.status == 499
    assert json.loads(answer.read())["error"]["type"] == "RequestAborted"
    connection.close()


def test_the_key_and_the_size_of_a_body():
    with fake.served(api_key="secret", max_body_size="1K") as site:
        for path, body in (("/encode", {"text": "a"}), ("/v1/embeddings", {"input": "a"})):
            assert site.fail(path, body)[0] == 401
            headers = {"Authorization": "Bearer secret"}
            site.post(path, body, headers=headers)
            key = next(iter(body))
            assert site.fail(path, {key: "a" * 2000}, headers=headers)[0] == 413


def test_long_lists_do_not_flood_the_engine(site, monkeypatch):
    monkeypatch.setattr("boughs.runtime.server.encode.MOST_AT_ONCE", 10)
    most = 0

    async def counted(request, whole=site.engine.encode):
        nonlocal most
        made = await whole(request)
        most = max(most, len(site.engine.running))
        await fake.asyncio.sleep(0)
        return made

    monkeypatch.setattr(site.engine, "encode", counted)
    texts = [str(at) for at in range(500)]
    answers = site.post("/encode", {"text": texts})
    assert [answer["embedding"] for answer in answers] == [vector(text) for text in texts]
    assert most <= 10


# ---- /v1/embeddings ----


def test_openai_client(client, site):
    answer = client.embeddings.create(model="fake", input="hello")
    assert answer.object == "list"
    assert answer.model == "fake"
    assert [item.embedding for item in answer.data] == [vector("hello")]
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (5, 5)
    many = client.embeddings.create(model="fake", input=["a", "bc", "d"], encoding_format="float")
    assert [item.embedding for item in many.data] == [vector("a"), vector("bc"), vector("d")]
    assert [item.index for item in many.data] == [0, 1, 2]
    assert many.usage.prompt_tokens == 4
    ids = client.embeddings.create(model="fake", input=[[104, 105], [97]], user="u")
    assert [item.embedding for item in ids.data] == [vector("hi"), vector("a")]
    one = client.embeddings.create(model="fake", input=[104, 105])
    assert [item.embedding for item in one.data] == [vector("hi")]
    mean = client.embeddings.create(model="fake", input="a", extra_body={"pooling": "mean"})
    assert mean.data[0].embedding == vector("a", pooling="mean")


def test_base64_is_little_endian_float32(site):
    answer = site.post("/v1/embeddings", {"input": "hello", "encoding_format": "base64"})
    raw = base64.b64decode(answer["data"][0]["embedding"])
    assert np.frombuffer(raw, "<f4").tolist() == vector("hello")
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["a", 5]}, "input[1]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": ["a"] * (MOST_INPUTS + 1)}, "input"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"encoding_format": 5}, "encoding_format"),
        ({"dimensions": 2}, "dimensions"),
        ({"model": 5}, "model"),
        ({"pooling": "cls"}, "pooling"),
        ({"truncate": True}, "truncate"),
    ],
)
def test_a_wrong_field_is_named(site, fields, param):
    status, error = site.fail("/v1/embeddings", {"input": "a", **fields})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param)
    assert not site.engine.encoded


def test_openai_errors(client):
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
        client.embeddings.create(model="gpt", input="a")
    with pytest.raises(openai.RateLimitError):
        client.embeddings.create(model="fake", input="full")
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]: the prompt is too long"):
        client.embeddings.create(model="fake", input=["a", "long"])


# ---- boughs.RuntimeEndpoint ----


def test_an_endpoint_encodes(site):
    endpoint = boughs.RuntimeEndpoint(site.url)
    assert isinstance(endpoint, Encoding)

    def encode(prompt, **fields):
        return loop.run(endpoint.encode(EncodeRequest(prompt=prompt, **fields)), 20)

    made = encode([Text("a"), Content("b"), Ids([99])], rid="r", pooling="mean", normalize=False)
    assert made.vector == vector("abc", pooling="mean", normalize=False)
    assert (made.rid, made.prompt_tokens, made.cached_tokens) == ("r", 3, 1)
    assert encode("hi", cache_salt="s", priority=1, timeout=9.0).vector == vector("hi")
    last = site.engine.encoded[-1]
    assert (last.cache_salt, last.priority, last.timeout) == ("s", 1, 9.0)
    with pytest.raises(Unservable, match="too long"):
        encode("long")
    with pytest.raises(InvalidRequest, match="pooling"):
        encode("a", pooling="cls")
    endpoint.close()
