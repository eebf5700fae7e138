"""Anthropic's messages, through the real package, against a double of the wire."""

import importlib.util
import sys
from pathlib import Path

import pytest
from aiohttp import web

import boughs
from boughs.lang.errors import (
    BackendError,
    InvalidRequest,
    NotFound,
    Overloaded,
    RequestAborted,
    RequestTimeout,
    Unauthorized,
    Unsupported,
)

pytestmark = pytest.mark.timeout(60)


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


doubles = load("api_doubles")


@pytest.fixture
def api():
    """A double and a way to get a backend on it."""
    made = []

    def make(say="ok", *, client=None, **double):
        server = doubles.Double(say, **double)
        options = {"api_key": "k", "max_retries": 0, **(client or {})}
        backend = boughs.Anthropic("claude", base_url=server.url, **options)
        made.append((server, backend))
        return server, backend

    yield make
    for server, backend in made:
        backend.close()
        server.__exit__()


@boughs.function
def ask(s, before="", **gen):
    s += boughs.system("Be brief.") + boughs.user("2+2?")
    s += boughs.assistant(before + boughs.gen("x", **gen))


def test_the_system_prompt_stays_in_every_turn(api):
    server, backend = api(lambda body, number: ["four", "five"][number])

    @boughs.function
    def chat(s):
        s += boughs.system("Be brief.")
        for i, question in enumerate(["2+2?", "2+3?"]):
            s += boughs.user(question) + boughs.assistant(boughs.gen(f"x{i}"))

    s = chat.run(backend=backend)
    assert (s["x0"], s["x1"]) == ("four", "five")
    assert server.seen[0].body == {
        "model": "claude",
        "system": "Be brief.",
        "messages": [{"role": "user", "content": "2+2?"}],
        "max_tokens": 128,
        "stream": True,
    }
    assert server.seen[1].body["system"] == "Be brief."
    assert server.seen[1].messages == [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "2+3?"},
    ]
    assert s.messages()[0] == {"role": "system", "content": "Be brief."}
    meta = s.get_meta_info("x0")
    assert (meta["prompt_tokens"], meta["cached_tokens"], meta["completion_tokens"]) == (13, 6, 4)
    assert meta["finish_reason"] == {"type": "stop", "matched": None}


def test_parameters_and_stops_are_sent(api):
    server, backend = api("abENDc")
    s = ask.run(
        stop=["END", "?"], temperature=0.5, top_p=0.9, top_k=5, max_tokens=9, backend=backend
    )
    body = server.seen[0].body
    assert body["stop_sequences"] == ["END", "?"]
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.5, 0.9, 5)
    assert s["x"] == "ab"
    assert s.get_meta_info("x")["finish_reason"] == {"type": "stop", "matched": "END"}


def test_a_stop_of_white_space_is_found_here(api):
    server, backend = api("one\ntwo", piece=2)
    s = ask.run(stop="\n", backend=backend)
    assert s["x"] == "one"
    assert "stop_sequences" not in server.seen[0].body
    meta = s.get_meta_info("x")
    assert meta["usage_known"] is False
    assert meta["prompt_tokens"] == 13  # known from the stream's begin


@pytest.mark.parametrize(
    ("before", "sent", "said", "text"),
    [
        ("It is", "It is", " four", " four"),
        ("It is ", "It is", " four", "four"),
        ("It is ", "It is", "four", "four"),
        (" \n", None, "four", "four"),
    ],
)
def test_a_turn_that_has_begun_is_sent_without_its_last_space(api, before, sent, said, text):
    server, backend = api(said, piece=9)
    s = ask.run(before=before, backend=backend)
    assert s["x"] == text
    last = server.seen[0].messages[-1]
    assert last == (
        {"role": "user", "content": "2+2?"}
        if sent is None
        else {"role": "assistant", "content": sent}
    )
    assert s.messages()[-1]["content"] == before + text


def test_a_schema_is_an_output_format(api):
    server, backend = api('{"a": 1}')
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    strict = {**schema, "required": ["a"], "additionalProperties": False}
    assert ask.run(json_schema=schema, backend=backend)["x"] == '{"a": 1}'
    assert server.seen[0].body["output_config"] == {
        "format": {"type": "json_schema", "schema": strict}
    }


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"n": 2}, "n"),
        ({"json_object": True}, "json_object"),
        ({"seed": 1}, "seed"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"logit_bias": {1: 1.0}}, "logit_bias"),
        ({"return_logprob": True}, "return_logprob"),
        ({"ebnf": "start: /a/"}, "ebnf"),
    ],
)
def test_what_the_api_lacks_is_refused_by_name(api, given, name):
    server, backend = api()
    with pytest.raises(Unsupported, match=rf"{name}: .*Anthropic \(claude\)"):
        ask.run(backend=backend, **given)
    assert server.seen == []


def test_roles_that_the_api_lacks_are_refused(api):
    _, backend = api()

    @boughs.function
    def odd(s, name):
        s += boughs.user("a") + boughs.role(name, "b") + boughs.assistant(boughs.gen("x"))

    for name in ("tool", "system"):
        with pytest.raises(Unsupported, match=f"role '{name}': Anthropic"):
            odd.run(name=name, backend=backend)


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidRequest),
        (401, Unauthorized),
        (404, NotFound),
        (413, InvalidRequest),
        (429, Overloaded),
        (500, BackendError),
        (504, RequestTimeout),
        (529, Overloaded),
    ],
)
def test_an_error_is_one_of_ours(api, status, error):
    _, backend = api(lambda body, number: doubles.refused(status, "so it is", Retry_After="9"))
    with pytest.raises(error, match=r"Anthropic \(claude\): so it is") as caught:
        ask.run(backend=backend)
    if error is Overloaded:
        assert caught.value.retry_after == 9.0


def test_an_error_in_the_stream(api):
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    _, backend = api(
        lambda body, number: web.Response(
            body=doubles.event(error, "error"), content_type="text/event-stream"
        )
    )
    with pytest.raises(boughs.BoughsError, match="Overloaded"):
        ask.run(backend=backend)


def test_a_refusal_is_no_answer(api):
    _, backend = api("I", finish="refusal")
    with pytest.raises(RequestAborted, match="refusal"):
        ask.run(backend=backend)


def test_a_choice_is_asked_for_before_the_turn_that_has_begun(api):
    server, backend = api("no")

    @boughs.function
    def decide(s):
        s += boughs.user("Is it?")
        s += boughs.assistant("I say: " + boughs.select("x", choices=["yes", "no"]))

    s = decide.run(backend=backend)
    assert s["x"] == "no"
    question, begun = server.seen[0].messages[-2:]
    assert question["content"].endswith("- yes\n- no")
    assert begun == {"role": "assistant", "content": "I say:"}
    assert server.seen[0].body["max_tokens"] == 67


def test_a_regex_is_asked_for(api):
    server, backend = api(lambda body, number: ["four", "4 of them"][number])
    s = ask.run(dtype=int, backend=backend)
    assert s["x"] == "4"
    assert len(server.seen) == 2
    assert s.get_meta_info("x")["completion_tokens"] >= 2


def test_a_key_is_needed(monkeypatch, api):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_AUTH_TOKEN", raising=False)
    server, _ = api()
    with pytest.raises(Unauthorized, match="api_key"):
        ask.run(backend=boughs.Anthropic("claude", base_url=server.url))
