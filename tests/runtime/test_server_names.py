"""A refusal names the field as its caller wrote it, in every interface: with alias and place."""

import importlib.util
from pathlib import Path

import pytest

import boughs
from boughs.lang.errors import InvalidRequest
from boughs.runtime.config import EngineConfig
from boughs.runtime.front.front import Front
from boughs.runtime.front.link import thread_link

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)

LONG = "a " * 5000
BAD = "x" * 129


@pytest.fixture(scope="module")
def front(tiny_model):
    return Front(
        EngineConfig(
            model_path=str(tiny_model),
            kv_memory="4M",
            threads=1,
            attention_backend="reference",
            check_invariants=True,
        ),
        thread_link,
    )


@pytest.fixture(scope="module")
def site(front):
    with fake.served(front, served_model_name="tiny") as site:
        yield site


@pytest.fixture(scope="module")
def engine(tiny_model):
    with boughs.Engine(str(tiny_model), in_process=True, kv_memory="4M", threads=1) as engine:
        yield engine


PARAMS = [
    ({"max_new_tokens": -1}, "max_new_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_completion_tokens": "x"}, "max_completion_tokens"),
    ({"min_tokens": 200}, "min_tokens"),
    ({"sampling_seed": -1}, "sampling_seed"),
    ({"temperature": -1}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"frequency_penalty": 3}, "frequency_penalty"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5"),
    ({"logit_bias": {"384": 1}}, "logit_bias.384"),
    ({"allowed_token_ids": [5, 384]}, "allowed_token_ids[1]"),
    ({"bad_words": ["a", BAD]}, "bad_words[1]"),
    ({"stop": ["a", 5]}, "stop[1]"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop_token_ids": [5, 6, 384]}, "stop_token_ids[2]"),
    ({"stop_token_ids": [5, "a"]}, "stop_token_ids[1]"),
    ({"stop_regex": ["a", "("]}, "stop_regex[1]"),
    ({"stop_regex": ["a", "b*"]}, "stop_regex[1]"),
    ({"n": 0}, "n"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"beam_width": 129}, "beam_width"),
    ({"beam_width": 2, "top_k": 4}, "top_k"),
    ({"beam_width": 2, "max_tokens": 0}, "max_tokens"),
    ({"length_penalty": 2.0}, "length_penalty"),
    ({"early_stopping": True}, "early_stopping"),
    ({"regex": "("}, "regex"),
    ({"json_schema": "{"}, "json_schema"),
    ({"ebnf": "x"}, "ebnf"),
    ({"regex": "a", "ebnf": "x"}, "ebnf"),
    ({"priority": 2**31}, "priority"),
    ({"timeout": 0}, "timeout"),
    ({"nothing": 1}, "nothing"),
]


def check(error, param, prompt=""):
    """The field is named in the error, and the message begins with it, or with its prompt."""
    assert error["param"] == param, error
    assert error["message"].startswith((param, f"{prompt}: {param}")), error


@pytest.mark.parametrize(("params", "field"), PARAMS)
@pytest.mark.parametrize("stream", [False, True])
def test_sampling_params_on_sglangs_wire(site, params, field, stream):
    body = {"text": "Hello", "sampling_params": params, "stream": stream}
    status, error = site.fail("/generate", body)
    assert status == 400
    check(error, f"sampling_params.{field}")
    each = {"text": ["Hello", "there"], "stream": stream, "sampling_params": [{}, params]}
    status, error = site.fail("/generate", each)
    assert status == 400
    check(error, f"sampling_params[1].{field}", "text[1]")


@pytest.mark.parametrize(("params", "field"), PARAMS)
def test_sampling_params_on_openais_wire(site, params, field):
    for path, prompt in (
        ("/v1/completions", {"prompt": "Hello"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
    ):
        if "messages" in prompt and field == "min_tokens":
            continue  # there is no limit above it
        status, error = site.fail(path, {**prompt, **params})
        assert status == 400
        check(error, field)


@pytest.mark.parametrize(("params", "field"), PARAMS)
@pytest.mark.parametrize("stream", [False, True])
def test_sampling_params_in_python(engine, params, field, stream):
    def error_of(*arguments):
        with pytest.raises(InvalidRequest) as caught:
            list(engine.generate(*arguments, stream=stream))
        return {"message": str(caught.value), "param": caught.value.param}

    check(error_of("Hello", params), f"sampling_params.{field}")
    error = error_of(["Hello", "there"], [{}, params])
    check(error, f"sampling_params[1].{field}", "prompt[1]")


PROMPTS = [
    ("/generate", {"text": ""}, "text"),
    ("/generate", {"text": ["a", ""]}, "text[1]"),
    ("/generate", {"text": LONG}, "text"),
    ("/generate", {"text": ["a", LONG]}, "text[1]"),
    ("/generate", {"text": ["a", 5]}, "text[1]"),
    ("/generate", {"input_ids": [5, 6, 7, 384]}, "input_ids[3]"),
    ("/generate", {"input_ids": [[5], [5, -1]]}, "input_ids[1][1]"),
    ("/generate", {"input_ids": [5] * 9000}, "input_ids"),
    ("/generate", {"input_ids": [5, "a"]}, "input_ids[1]"),
    ("/generate", {"input_ids": [[5], ["a"]]}, "input_ids[1][0]"),
    ("/generate", {"segments": [{"text": "a"}, {"ids": [5, 384]}]}, "segments[1].ids[1]"),
    ("/generate", {"segments": [[{"text": "a"}], [{"ids": [384]}]]}, "segments[1][0].ids[0]"),
    ("/generate", {"segments": [{"role": "user", "at": "end"}]}, "segments[0]"),
    ("/generate", {"segments": [{"text": LONG}]}, "segments"),
    ("/generate", {"text": "a", "priority": "x"}, "priority"),
    ("/generate", {"text": "a", "extra_key": 5}, "extra_key"),
    ("/generate", {"text": "a", "cache_salt": 5}, "cache_salt"),
    ("/generate", {"text": "a", "return_logprob": 1}, "return_logprob"),
    ("/generate", {"text": ["a", "b"], "return_logprob": [True, 1]}, "return_logprob[1]"),
    ("/generate", {"text": "a", "top_logprobs_num": 3}, "top_logprobs_num"),
    (
        "/generate",
        {"text": ["a", "b"], "return_logprob": True, "top_logprobs_num": [0, 999]},
        "top_logprobs_num[1]",
    ),
    (
        "/generate",
        {"text": ["a", "b"], "return_logprob": True, "logprob_start_len": [0, 9]},
        "logprob_start_len[1]",
    ),
    (
        "/generate",
        {"text": "a", "return_logprob": True, "token_ids_logprob": [5, 384]},
        "token_ids_logprob[1]",
    ),
    (
        "/generate",
        {"text": ["a", "b"], "return_logprob": True, "token_ids_logprob": [None, [5, 384]]},
        "token_ids_logprob[1][1]",
    ),
    ("/generate", {"text": "a", "rid": 5}, "rid"),
    ("/generate", {"text": ["a", "b"], "rid": ["x", 5]}, "rid[1]"),
    ("/score", {"text": "a", "choices": []}, "choices"),
    ("/score", {"text": "a", "choices": ["a", 5]}, "choices[1]"),
    ("/score", {"text": "a", "choices": ["b", LONG]}, "choices[1]"),
    ("/score", {"text": LONG, "choices": ["b"]}, "text"),
    ("/score", {"input_ids": [5, 384], "choices": ["b"]}, "input_ids[1]"),
    ("/score", {"segments": [{"ids": [384]}], "choices": ["b"]}, "segments[0].ids[0]"),
    ("/score", {"text": "a", "choices": ["b"], "unconditional": 1}, "unconditional"),
    ("/pin", {"input_ids": [384], "seconds": 5}, "input_ids[0]"),
    ("/pin", {"text": "", "seconds": 5}, "text"),
    ("/pin", {"text": "a", "seconds": -5}, "seconds"),
    ("/encode", {"text": ["a", ""]}, "text[1]"),
    ("/encode", {"input_ids": [[5], [6, 384]]}, "input_ids[1][1]"),
    ("/encode", {"segments": [{"ids": [384]}]}, "segments[0].ids[0]"),
    ("/encode", {"text": "a", "pooling": "max"}, "pooling"),
    ("/encode", {"text": "a", "extra_key": 5}, "extra_key"),
    ("/v1/embeddings", {"input": ["a", ""]}, "input[1]"),
    ("/v1/embeddings", {"input": [5, 384]}, "input[1]"),
    ("/v1/embeddings", {"input": [[5], [384]]}, "input[1][0]"),
    ("/v1/completions", {"prompt": ""}, "prompt"),
    ("/v1/completions", {"prompt": ["a", LONG]}, "prompt[1]"),
    ("/v1/completions", {"prompt": [5, 384]}, "prompt[1]"),
    ("/v1/completions", {"prompt": [[5], [6, 384]]}, "prompt[1][1]"),
    ("/v1/completions", {"prompt": "a", "logprobs": 999}, "logprobs"),
    (
        "/v1/completions",
        {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format.json_schema.schema",
    ),
    (
        "/v1/completions",
        {
            "prompt": "a",
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"$ref": "http://127.0.0.1:9/x"}},
            },
        },
        "response_format.json_schema.schema",
    ),
    ("/v1/completions", {"prompt": "a", "best_of": 2, "stream": True}, "best_of"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ("/v1/chat/completions", {"messages": [{"role": "user"}, 5]}, "messages[1]"),
    ("/v1/chat/completions", {"messages": [{"content": "a"}]}, "messages[0].role"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": ["x"]}]},
        "messages[0].content[0].type",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
        "messages[0].content[0].text",
    ),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "a"}],
            "logprobs": True,
            "top_logprobs": 999,
        },
        "top_logprobs",
    ),
]


@pytest.mark.parametrize(("path", "body", "param"), PROMPTS, ids=str)
def test_every_other_field(site, path, body, param):
    for stream in [False, True] if path == "/generate" else [False]:
        status, error = site.fail(path, {**body, "stream": stream} if stream else body)
        assert status == 400
        places = [f"{key}[1]" for key in body if isinstance(body[key], list)]
        check(error, param, places[0] if places else "")
    assert site.call("/server_info")[2]["stats"]["in_flight"] == 0
