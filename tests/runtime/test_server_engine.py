"""The server before the real engine, on a tiny random model: what both must agree on."""

import http.client
import importlib.util
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest

import boughs
from boughs.lang import loop
from boughs.lang.requests import EncodeRequest
from boughs.runtime.config import EngineConfig
from boughs.runtime.front.front import Front
from boughs.runtime.front.link import thread_link

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)

PROMPT = "The quick brown fox jumps over the lazy dog. Question: how many"
GREEDY = {"temperature": 0, "max_new_tokens": 12, "ignore_eos": True}


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


@pytest.fixture(scope="module")
def plain(site):
    """One greedy answer, that the others must equal."""
    return site.post("/generate", {"text": PROMPT, "sampling_params": GREEDY})


def test_stream_equals_the_whole(site, plain):
    lines = site.stream("/generate", {"text": PROMPT, "stream": True, "sampling_params": GREEDY})
    assert (lines[-1]["text"], lines[-1]["output_ids"]) == (plain["text"], plain["output_ids"])
    assert len(plain["output_ids"]) == 12
    for line in lines:
        assert lines[-1]["text"].startswith(line["text"])
    assert lines[-1]["meta_info"]["cached_tokens"] == plain["meta_info"]["prompt_tokens"] - 1


def test_list_and_n_equal_the_whole(site, plain):
    answers = site.post("/generate", {"text": [PROMPT] * 3, "sampling_params": {**GREEDY, "n": 2}})
    assert [a["output_ids"] for a in answers] == [plain["output_ids"]] * 6


def test_many_clients_at_once(site, plain):
    with ThreadPoolExecutor(12) as pool:
        body = {"text": PROMPT, "sampling_params": GREEDY}
        whole = [pool.submit(site.post, "/generate", body) for _ in range(6)]
        streams = [
            pool.submit(site.stream, "/generate", {**body, "stream": True}) for _ in range(6)
        ]
        answers = [one.result() for one in whole] + [one.result()[-1] for one in streams]
    assert [a["output_ids"] for a in answers] == [plain["output_ids"]] * 12


def test_openai_equals_native(site, client, plain):
    extra = {"ignore_eos": True}
    answer = client.completions.create(
        model="tiny", prompt=PROMPT, temperature=0, max_tokens=12, extra_body=extra
    )
    assert answer.choices[0].text == plain["text"]
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == plain["meta_info"]["prompt_tokens"]
    assert answer.usage.completion_tokens == 12
    pieces = client.completions.create(
        model="tiny", prompt=PROMPT, temperature=0, max_tokens=12, extra_body=extra, stream=True
    )
    assert "".join(p.choices[0].text for p in pieces) == plain["text"]


def test_chat_equals_its_template_written_out(site, client):
    messages = [{"role": "user", "content": "how many apples?"}]
    chat = client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, max_tokens=8
    )
    text = "<|im_start|>user\nhow many apples?<|im_end|>\n<|im_start|>assistant\n"
    params = {"temperature": 0, "max_new_tokens": 8}
    native = site.post("/generate", {"text": text, "sampling_params": params})
    assert chat.choices[0].message.content == native["text"]
    assert chat.usage.prompt_tokens == native["meta_info"]["prompt_tokens"]
    pieces = client.chat.completions.create(
        model="tiny", messages=messages, temperature=0, max_tokens=8, stream=True
    )
    assert "".join(p.choices[0].delta.content or "" for p in pieces) == native["text"]


def test_special_tokens_in_a_message_stay_text(client):
    def prompt_tokens(content):
        answer = client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": content}], max_tokens=0
        )
        return answer.usage.prompt_tokens

    assert prompt_tokens("a<|im_end|>") > prompt_tokens("a") + 1


def test_scores_agree(site, client):
    """`/score`, the logprobs of `/generate` and those of an echo are the same numbers."""
    choices = [" apples", " twelve wizards"]
    scores = site.post("/score", {"text": PROMPT, "choices": choices})
    for choice, score in zip(choices, scores["choices"], strict=True):
        count = len(score["token_ids"])
        (answer,) = site.post(
            "/generate",
            {
                "text": [PROMPT + choice],
                "sampling_params": {"max_new_tokens": 0},
                "return_logprob": True,
                "return_text_in_logprobs": True,
                "logprob_start_len": max(scores["prompt_tokens"] - 2, 0),
            },
        )
        entries = answer["meta_info"]["input_token_logprobs"][-count:]
        assert [e[1] for e in entries] == score["token_ids"]
        assert [e[0] for e in entries] == pytest.approx(score["logprobs"], abs=1e-3)
        echo = client.completions.create(
            model="tiny", prompt=PROMPT + choice, echo=True, logprobs=0, max_tokens=0
        ).choices[0]
        assert echo.text == PROMPT + choice
        assert echo.logprobs.token_logprobs[-count:] == pytest.approx(score["logprobs"], abs=1e-3)
        assert echo.logprobs.token_logprobs[0] is None
        assert "".join(echo.logprobs.tokens) == PROMPT + choice


def test_vectors_agree(site, client):
    """`/encode`, `/v1/embeddings` and an endpoint give the same numbers, cold and warm."""
    texts = [PROMPT, "how many wizards"]
    first = site.post("/encode", {"text": texts})
    again = client.embeddings.create(model="tiny", input=texts)
    for answer, item in zip(first, again.data, strict=True):
        assert item.embedding == pytest.approx(answer["embedding"], abs=1e-5)
        assert math.hypot(*item.embedding) == pytest.approx(1)
    count = sum(answer["meta_info"]["prompt_tokens"] for answer in first)
    assert again.usage.prompt_tokens == count
    assert again.usage.prompt_tokens_details["cached_tokens"] == count - 2
    endpoint = boughs.RuntimeEndpoint(site.url)
    made = loop.run(endpoint.encode(EncodeRequest(prompt=PROMPT)))
    assert made.vector == pytest.approx(first[0]["embedding"], abs=1e-5)
    endpoint.close()


def test_program_on_the_endpoint(site):
    """A state goes out and comes back as segments: nothing of it is computed twice."""

    @boughs.function
    def program(s):
        s += boughs.system("The assistant helps the user.")
        s += boughs.user("how many <|im_end|> apples?")
        s += boughs.assistant(boughs.gen("first", max_tokens=9, temperature=0, ignore_eos=True))
        s += boughs.user("Why?")
        s += boughs.assistant(boughs.gen("second", max_tokens=5, temperature=0, ignore_eos=True))

    endpoint = boughs.RuntimeEndpoint(site.url)
    state = program.run(backend=endpoint)
    first, second = state.get_meta_info("first"), state.get_meta_info("second")
    assert second["cached_tokens"] == first["prompt_tokens"] + first["completion_tokens"] - 1
    endpoint.close()


def test_constraints(site, client):
    params = {"regex": "[0-9]{3}x", "temperature": 0}
    assert site.post("/generate", {"text": PROMPT, "sampling_params": params})["text"][3] == "x"
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Is it?"}],
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content)["ok"] in (True, False)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/generate", {"text": ""}, "empty"),
        ("/generate", {"text": ["a", ""]}, "text[1]"),
        ("/generate", {"input_ids": [384]}, "not in the vocabulary"),
        ("/generate", {"input_ids": [-1]}, "not in the vocabulary"),
        ("/generate", {"input_ids": [2**62]}, "not in the vocabulary"),
        ("/generate", {"segments": [{"role": "user", "at": "end"}]}, "no message is open"),
        ("/generate", {"text": "a " * 5000}, "do not fit"),
        ("/generate", {"text": "a", "sampling_params": {"regex": "("}}, "regex"),
        ("/generate", {"text": "a", "sampling_params": {"json_schema": "{"}}, "json_schema"),
        ("/generate", {"text": "a", "sampling_params": {"stop_regex": "("}}, "stop_regex"),
        (
            "/generate",
            {"text": "a", "return_logprob": True, "logprob_start_len": 9},
            "logprob_start_len",
        ),
        ("/v1/completions", {"prompt": [[5], [384]]}, "prompt[1]"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "image_url",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refused(site, path, body, words, stream):
    status, error = site.fail(path, {**body, "stream": stream})
    assert status == 400
    assert words in error["message"]


def stats(site):
    return site.call("/server_info")[2]["stats"]


@pytest.mark.parametrize("stream", [False, True])
def test_disconnect_frees_the_pages(site, stream):
    where = urlsplit(site.url)
    body = {
        "text": ["Once upon a time", "He gave her"],
        "stream": stream,
        "sampling_params": {"max_new_tokens": 900, "ignore_eos": True, "n": 2},
    }
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
    connection.request("POST", "/generate", json.dumps(body))
    end = time.monotonic() + 20
    while stats(site)["running"] < 4:
        assert time.monotonic() < end
    connection.close()
    while stats(site)["in_flight"] or stats(site)["running"]:
        assert time.monotonic() < end
    cache = stats(site)["cache"]
    assert (cache["private"], cache["unaccounted"]) == (0, 0)


def test_deadline(site):
    params = {"timeout": 0.001, "max_new_tokens": 500, "ignore_eos": True}
    status, error = site.fail("/generate", {"text": PROMPT, "sampling_params": params})
    assert (status, error["type"]) == (408, "RequestTimeout")


def test_abort(site):
    with ThreadPoolExecutor(1) as pool:
        params = {"max_new_tokens": 900, "ignore_eos": True}
        body = {"text": PROMPT, "rid": "mine", "sampling_params": params}
        answer = pool.submit(site.post, "/generate", body)
        while not site.post("/abort_request", {"rid": "mine"})["aborted"]:
            assert not answer.done()
        assert answer.result()["meta_info"]["finish_reason"]["type"] == "abort"


def test_flush_and_health(site):
    assert site.call("/health")[0] == 200
    assert site.call("/ready")[0] == 200
    assert site.call("/flush_cache", method="POST")[0] == 200
    assert stats(site)["cache"]["cached"] == 0
