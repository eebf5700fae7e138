"""OpenAI's endpoints, driven by the real `openai` package, against an engine without a model."""

import asyncio
import importlib.util
import json
from pathlib import Path

import openai
import pytest

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)

HI = "<user>hi</user><assistant>"
MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def site():
    replies = {HI: "Hello! naïve 😀", "Once": " upon a time", "abc": "xyz", "cut": "\x01"}
    with fake.served(fake.FakeEngine(replies)) as site:
        yield site


@pytest.fixture(scope="module")
def client(site):
    with openai.OpenAI(base_url=site.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


def asked(site):
    return site.engine.seen[-1]


# ---- chat ----


def test_chat(site, client):
    answer = client.chat.completions.create(model="fake", messages=MESSAGES)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == "Hello! naïve 😀"
    assert choice.finish_reason == "stop"
    assert choice.logprobs is None
    assert answer.object == "chat.completion"
    assert answer.model == "fake"
    assert answer.id == asked(site).rid
    assert answer.usage.prompt_tokens == len(HI)
    assert answer.usage.completion_tokens == 14
    assert answer.usage.total_tokens == len(HI) + 14
    assert answer.usage.prompt_tokens_details.cached_tokens == len(HI) // 2
    assert asked(site).params.max_new_tokens is None  # up to the context


def test_chat_stream(client):
    with client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    *pieces, counted = chunks
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert len({c.id for c in chunks}) == 1
    first, *middle, last = [c.choices[0] for c in pieces]
    assert (first.delta.role, first.delta.content, first.finish_reason) == ("assistant", "", None)
    assert all(c.delta.role is None and c.finish_reason is None for c in middle)
    assert "".join(c.delta.content for c in middle) == "Hello! naïve 😀"
    assert len(middle) > 1
    assert (last.delta.content, last.finish_reason) == (None, "stop")
    assert all(c.usage is None for c in pieces)
    assert counted.choices == []
    assert counted.usage.completion_tokens == 14
    assert counted.usage.prompt_tokens_details.cached_tokens == len(HI) // 2


def test_chat_stream_without_usage(site):
    body = {"messages": MESSAGES, "stream": True, "max_tokens": 3}
    lines = site.stream("/v1/chat/completions", body)
    assert all("usage" not in line for line in lines)
    assert lines[-1]["choices"] == [
        {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    ]


def test_async_client(site):
    async def run():
        async with openai.AsyncOpenAI(base_url=site.url + "/v1", api_key="x") as client:
            whole = await client.chat.completions.create(model="fake", messages=MESSAGES)
            stream = await client.chat.completions.create(
                model="fake", messages=MESSAGES, stream=True
            )
            streamed = "".join([c.choices[0].delta.content or "" async for c in stream])
            pieces = await client.completions.create(model="fake", prompt="Once", stream=True)
            text = "".join([c.choices[0].text async for c in pieces])
            return whole.choices[0].message.content, streamed, text

    assert asyncio.run(run()) == ("Hello! naïve 😀", "Hello! naïve 😀", " upon a time")


def test_n_counts_the_prompt_once(client):
    answer = client.chat.completions.create(model="fake", messages=MESSAGES, n=3, max_tokens=5)
    assert [c.index for c in answer.choices] == [0, 1, 2]
    assert [c.finish_reason for c in answer.choices] == ["length"] * 3
    assert answer.usage.prompt_tokens == len(HI)
    assert answer.usage.completion_tokens == 15
    assert answer.usage.prompt_tokens_details.cached_tokens == len(HI) // 2
    stream = client.chat.completions.create(
        model="fake", messages=MESSAGES, n=2, max_tokens=5, stream=True
    )
    texts, roles = {0: "", 1: ""}, []
    for chunk in stream:
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        roles += [choice.index] if choice.delta.role else []
    assert texts == {0: "Hello", 1: "Hello"}
    assert sorted(roles) == [0, 1]


def test_chat_logprobs(client):
    answer = client.chat.completions.create(
        model="fake", messages=MESSAGES, logprobs=True, top_logprobs=2, max_tokens=2
    )
    content = answer.choices[0].logprobs.content
    assert [(t.token, t.logprob, t.bytes) for t in content] == [
        ("H", -0.125, [72]),
        ("e", -0.25, [101]),
    ]
    assert [(t.token, t.logprob) for t in content[0].top_logprobs] == [("A", -0.25), ("B", -0.5)]
    stream = client.chat.completions.create(
        model="fake", messages=MESSAGES, logprobs=True, max_tokens=6, stream=True
    )
    tokens = []
    for chunk in stream:
        if chunk.choices[0].logprobs:
            tokens += [t.token for t in chunk.choices[0].logprobs.content]
    assert tokens == list("Hello!")


def test_chat_messages(site, client):
    client.chat.completions.create(
        model="fake",
        messages=[
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "a"},
        ],
        extra_body={"continue_final_message": True, "chat_template_kwargs": {"thinking": False}},
    )
    assert fake.text_of(asked(site).prompt) == "<system>s</system><user>u</user><assistant>a"
    assert site.engine.chat.kwargs == {"thinking": False}


def test_both_spellings_of_the_limit(site, client):
    client.chat.completions.create(
        model="fake", messages=MESSAGES, max_tokens=7, max_completion_tokens=7
    )
    assert asked(site).params.max_new_tokens == 7
    body = {"messages": MESSAGES, "max_tokens": 7, "max_completion_tokens": 8}
    assert site.fail("/v1/chat/completions", body)[0] == 400


def test_extra_fields(site, client):
    extra = {
        "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1,
        "stop_token_ids": [7], "ignore_eos": True, "skip_special_tokens": False,
        "no_stop_trim": True, "priority": 2, "cache_salt": "tenant",
        "allowed_token_ids": [5, 6], "bad_words": ["x", "y z"],
    }  # fmt: skip
    client.chat.completions.create(
        model="fake", messages=MESSAGES, temperature=0.5, top_p=0.9, seed=3, stop=["a", "b"],
        presence_penalty=0.5, frequency_penalty=0.25, logit_bias={"5": -100}, extra_body=extra,
    )  # fmt: skip
    params = asked(site).params
    assert (params.temperature, params.top_p, params.seed) == (0.5, 0.9, 3)
    assert (params.top_k, params.min_p, params.repetition_penalty) == (5, 0.1, 1.1)
    assert (params.min_new_tokens, params.stop_token_ids, params.stop) == (1, (7,), ("a", "b"))
    assert (params.ignore_eos, params.skip_special_tokens, params.no_stop_trim) == (1, 0, 1)
    assert (params.priority, params.cache_salt) == (2, "tenant")
    assert (params.presence_penalty, params.frequency_penalty) == (0.5, 0.25)
    assert params.logit_bias == {5: -100.0}
    assert (params.allowed_token_ids, params.bad_words) == ((5, 6), ("x", "y z"))


@pytest.mark.parametrize("name", ["regex", "ebnf", "lark"])
def test_constraints(site, client, name):
    client.chat.completions.create(model="fake", messages=MESSAGES, extra_body={name: "a+"})
    assert asked(site).params.constraint[:2] == (name, "a+")


def test_schemas(site, client):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}

    def constraint(**kwargs):
        client.chat.completions.create(model="fake", messages=MESSAGES, **kwargs)
        given = asked(site).params.constraint
        return given and (given[0], json.loads(given[1]))

    named = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert constraint(response_format=named) == ("json_schema", schema)
    assert constraint(response_format={"type": "json_object"}) == (
        "json_schema",
        {"type": "object"},
    )
    assert constraint(response_format={"type": "text"}) is None
    assert constraint(extra_body={"json_schema": schema}) == ("json_schema", schema)
    assert constraint(extra_body={"json_schema": json.dumps(schema)}) == ("json_schema", schema)


def test_unset_fields(site):
    """What clients send to ask for nothing."""
    nothing = {
        "tools": [], "tool_choice": "none", "parallel_tool_calls": True, "response_format": None,
        "service_tier": "auto", "modalities": ["text"], "store": False, "logprobs": None,
        "top_logprobs": None, "stop": None, "n": None, "temperature": None, "user": "u",
        "metadata": {"a": "b"}, "stream_options": None, "stream": None,
    }  # fmt: skip
    site.post("/v1/chat/completions", {"messages": MESSAGES, **nothing})
    assert asked(site).params == fake.GenerateRequest(prompt="").params.__class__(
        max_new_tokens=None
    )


@pytest.mark.parametrize(
    "field",
    [
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"tool_choice": "required"},
        {"functions": [{"name": "f"}]},
        {"audio": {"voice": "a"}},
        {"reasoning_effort": "high"},
        {"response_format": {"type": "grammar"}},
        {"response_format": "json"},
        {"lora_path": "a"},
    ],
)
def test_what_we_lack(site, field):
    status, error = site.fail("/v1/chat/completions", {"messages": MESSAGES, **field})
    assert status == 400
    assert error["type"] == "invalid_request_error"
    assert next(iter(field)) in error["message"]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"nonsense": 1}, "nonsense: unknown field"),
        ({"messages": None}, "messages: give a list"),
        ({"messages": "hi"}, "messages: expected `array`"),
        ({"messages": [{"content": "hi"}]}, "messages[0]"),
        ({"messages": ["hi"]}, "messages[0]: expected `object`"),
        ({"temperature": "hot"}, "temperature: expected `float`"),
        ({"temperature": -1}, "temperature must be"),
        ({"n": 0}, "n must be from 1"),
        ({"max_tokens": -1}, "max_tokens must be"),
        ({"top_logprobs": 2}, "needs logprobs"),
        ({"logprobs": 1}, "logprobs: expected `bool`"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs must be"),
        ({"stream_options": {"include_usage": True}}, "needs stream"),
        ({"stream": True, "stream_options": {"continuous": True}}, "unknown field `continuous`"),
        ({"stream": "yes"}, "stream: expected `bool`"),
        ({"model": 3}, "model: expected"),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema"),
        (
            {"response_format": {"type": "json_object"}, "json_schema": "{}"},
            "not both",
        ),
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "not both"),
        ({"chat_template_kwargs": {"chat_template": "{{ evil }}"}}, "no variable"),
        ({"chat_template_kwargs": {"where": "x"}}, "no variable"),
        ({"chat_template_kwargs": 3}, "chat_template_kwargs: expected"),
    ],
)
def test_wrong_chats(site, field, words):
    before = len(site.engine.seen)
    status, error = site.fail("/v1/chat/completions", {"messages": MESSAGES, **field})
    assert status == 400
    assert words in error["message"]
    assert len(site.engine.seen) == before


# ---- completions ----


def test_completion(site, client):
    answer = client.completions.create(model="fake", prompt="Once")
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (" upon a time", "stop")
    assert answer.object == "text_completion"
    assert answer.usage.prompt_tokens == 4
    assert asked(site).params.max_new_tokens == 16


def test_completion_stream(client):
    stream = client.completions.create(
        model="fake", prompt="Once", stream=True, stream_options={"include_usage": True}
    )
    *pieces, counted = list(stream)
    assert "".join(c.choices[0].text for c in pieces) == " upon a time"
    assert [c.choices[0].finish_reason for c in pieces] == [None] * (len(pieces) - 1) + ["stop"]
    assert counted.choices == []
    assert counted.usage.total_tokens == 16


@pytest.mark.parametrize(
    ("prompt", "seen"),
    [
        (["Once", "abc"], ["Once", "abc"]),
        ([97, 98, 99], [[97, 98, 99]]),
        ([[79, 110, 99, 101], [97, 98, 99]], [[79, 110, 99, 101], [97, 98, 99]]),
    ],
)
def test_prompts(site, client, prompt, seen):
    before = len(site.engine.seen)
    answer = client.completions.create(model="fake", prompt=prompt, n=2, max_tokens=3)
    assert [one.prompt for one in site.engine.seen[before:]] == seen
    assert len(answer.choices) == 2 * len(seen)
    assert [c.index for c in answer.choices] == list(range(2 * len(seen)))
    assert answer.usage.prompt_tokens == sum(map(len, seen))
    whole = [c.text for c in answer.choices]
    texts = [""] * len(whole)
    for chunk in client.completions.create(
        model="fake", prompt=prompt, n=2, max_tokens=3, stream=True
    ):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == whole


def test_echo(client):
    answer = client.completions.create(model="fake", prompt="abc", echo=True)
    assert answer.choices[0].text == "abcxyz"
    answer = client.completions.create(model="fake", prompt=[97, 98, 99], echo=True)
    assert answer.choices[0].text == "abcxyz"
    stream = client.completions.create(model="fake", prompt="abc", echo=True, n=2, stream=True)
    texts = {0: "", 1: ""}
    for chunk in stream:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == {0: "abcxyz", 1: "abcxyz"}


def test_echo_scores_the_prompt(client):
    """As evaluation harnesses ask."""
    answer = client.completions.create(
        model="fake", prompt="abc", echo=True, logprobs=1, max_tokens=0
    )
    (choice,) = answer.choices
    assert choice.text == "abc"
    assert choice.finish_reason == "length"
    assert choice.logprobs.tokens == ["a", "b", "c"]
    assert choice.logprobs.token_logprobs == [None, -0.25, -0.375]
    assert choice.logprobs.top_logprobs == [
        None,
        {"A": -0.25, "b": -0.25},
        {"A": -0.25, "c": -0.375},
    ]
    assert choice.logprobs.text_offset == [0, 1, 2]


def test_completion_logprobs(client):
    answer = client.completions.create(model="fake", prompt="abc", logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == ["x", "y", "z"]
    assert logprobs.token_logprobs == [-0.125, -0.25, -0.375]
    assert logprobs.top_logprobs == [{"x": -0.125}, {"y": -0.25}, {"z": -0.375}]
    assert client.completions.create(model="fake", prompt="abc").choices[0].logprobs is None
    pieces = client.completions.create(
        model="fake", prompt="Once", logprobs=1, echo=True, stream=True, max_tokens=9
    )
    tokens, offsets = [], []
    for chunk in pieces:
        tokens += chunk.choices[0].logprobs.tokens
        offsets += chunk.choices[0].logprobs.text_offset
    assert tokens == list("Once upon a t")
    assert offsets == list(range(13))


def test_token_that_is_no_text(client):
    answer = client.completions.create(model="fake", prompt="cut", logprobs=0)
    assert answer.choices[0].logprobs.tokens == ["bytes:\\xff"]


def test_infinite_logprobs(site, client):
    entry = fake.entry
    try:
        fake.entry = lambda c, *_, **__: fake.TokenLogprob(float("-inf"), ord(c), c)
        answer = client.completions.create(model="fake", prompt="abc", logprobs=0)
        assert answer.choices[0].logprobs.token_logprobs == [-9999.0] * 3
        native = site.post("/generate", {"text": "abc", "return_logprob": True})
        assert native["meta_info"]["output_token_logprobs"][0] == [-9999.0, ord("x"), None]
    finally:
        fake.entry = entry


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"prompt": None}, "prompt: expected a string"),
        ({"prompt": []}, "prompt: expected a string"),
        ({"prompt": 3}, "prompt: expected a string"),
        ({"prompt": ["a", 3]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [[1], ["a"]]}, "prompt[1][0]"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"n": 3, "best_of": 2}, "best_of must be at least n"),
        ({"best_of": 0}, "best_of must be"),
        ({"best_of": 2, "stream": True}, "best_of: choices that are ranked"),
        ({"beam_width": 2, "n": 3}, "n must be at most beam_width"),
        ({"beam_width": 2, "top_k": 3}, "top_k: beam search does not honour it"),
        ({"beam_width": 2, "temperature": 0.5}, "temperature: beam search does not honour it"),
        ({"logprobs": -1}, "logprobs must be"),
        ({"logprobs": True}, "logprobs: expected"),
        ({"echo": 1}, "echo: expected"),
        ({"messages": []}, "messages: unknown field"),
    ],
)
def test_wrong_completions(site, field, words):
    status, error = site.fail("/v1/completions", {"prompt": "a", **field})
    assert status == 400
    assert words in error["message"]


def test_best_of_that_asks_for_nothing(client):
    assert client.completions.create(model="fake", prompt="abc", best_of=1)
    assert client.completions.create(model="fake", prompt="abc", n=2, best_of=2)


def test_best_of_and_beams_reach_the_engine(site, client):
    client.completions.create(
        model="fake", prompt="abc", n=2, best_of=4, extra_body={"length_penalty": None}
    )
    assert (asked(site).params.n, asked(site).params.best_of) == (2, 4)
    client.completions.create(
        model="fake",
        prompt="abc",
        n=2,
        extra_body={"beam_width": 3, "length_penalty": 0.5, "early_stopping": "never"},
    )
    params = asked(site).params
    assert (params.beam_width, params.length_penalty) == (3, 0.5)
    assert params.early_stopping == "never"


# ---- errors, as the package raises them ----


def test_errors(site, client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="gpt-5", prompt="a")
    assert caught.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="fake", prompt="long")
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "text"
    with pytest.raises(openai.RateLimitError) as caught:
        client.completions.create(model="fake", prompt="full")
    assert caught.value.response.headers["retry-after"] == "1"
    with pytest.raises(openai.InternalServerError):
        client.completions.create(model="fake", prompt="bug")
    with pytest.raises(openai.BadRequestError, match=r"prompt\[1\]: the prompt is too long"):
        client.completions.create(model="fake", prompt=["a", "long"])
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="fake", prompt="full", stream=True)


def test_wrong_key():
    with fake.served(api_key="right") as site:
        with openai.OpenAI(base_url=site.url + "/v1", api_key="wrong") as client:
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
        with openai.OpenAI(base_url=site.url + "/v1", api_key="right") as client:
            assert [model.id for model in client.models.list()] == ["fake"]
            assert client.models.retrieve("fake").id == "fake"


def test_error_in_a_stream(site, client):
    whole = site.engine._chunks

    async def breaks(request, rid, prompt, aborted):
        async for chunk in whole(request, rid, prompt, aborted):
            yield chunk
            await asyncio.sleep(0.05)
            raise fake.Overloaded("it broke")

    site.engine._chunks = breaks
    try:
        stream = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="it broke"):
            list(stream)
    finally:
        site.engine._chunks = whole


def test_comments_in_a_stream():
    """The package takes keep-alive comments for nothing."""
    with fake.served(keep_alive=0.02) as site:
        site.engine.hold()
        with openai.OpenAI(base_url=site.url + "/v1", api_key="x") as client:
            stream = client.chat.completions.create(
                model="fake", messages=MESSAGES, stream=True, max_tokens=4
            )
            site.loop.call_soon_threadsafe(site.loop.call_later, 0.1, site.engine.release)
            assert "".join(c.choices[0].delta.content or "" for c in stream) == "The "


def test_closed_stream_aborts(site, client):
    before = len(site.engine.closed)
    site.engine.hold(after=2)
    try:
        stream = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
        next(iter(stream))
        stream.close()
        for _ in range(1000):
            if len(site.engine.closed) > before:
                break
            asyncio.run(asyncio.sleep(0.005))
        assert len(site.engine.closed) == before + 1
        assert not site.engine.running
    finally:
        site.engine.held = None
