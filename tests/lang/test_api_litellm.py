"""LiteLLM's adapter against a small stand-in of the package, which is too large for the tests."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

import boughs
from boughs.lang.errors import Overloaded, Unsupported


class RateLimitError(Exception):
    """As LiteLLM's, which are OpenAI's."""

    status_code = 429
    response = SimpleNamespace(headers={"retry-after": "3"})


class Stream:
    """As `CustomStreamWrapper`: iterated, and closed with `aclose`."""

    def __init__(self, text):
        self._text = text
        self.closed = False
        self._events = self._make()

    def __aiter__(self):
        return self

    async def __anext__(self):
        return await anext(self._events)

    async def aclose(self):
        self.closed = True

    async def _make(self):
        for at in range(0, len(self._text), 2):
            delta = SimpleNamespace(content=self._text[at : at + 2])
            choice = SimpleNamespace(index=0, delta=delta, finish_reason=None)
            yield SimpleNamespace(choices=[choice])
        end = SimpleNamespace(index=0, delta=SimpleNamespace(content=None), finish_reason="stop")
        yield SimpleNamespace(choices=[end])
        usage = SimpleNamespace(
            prompt_tokens=9, completion_tokens=len(self._text), prompt_tokens_details=None
        )
        yield SimpleNamespace(choices=[], usage=usage)


@pytest.fixture
def litellm(monkeypatch):
    """The stand-in: it says `said`, and notes its calls."""
    module = ModuleType("litellm")
    module.calls, module.streams, module.said = [], [], "four"

    async def acompletion(**given):
        module.calls.append(given)
        if isinstance(module.said, Exception):
            raise module.said
        module.streams.append(Stream(module.said))
        return module.streams[-1]

    def get_model_info(model):
        if model == "unknown":
            raise LookupError("this model isn't mapped yet")
        return {"supports_assistant_prefill": model.startswith("anthropic/")}

    module.acompletion, module.get_model_info = acompletion, get_model_info
    monkeypatch.setitem(sys.modules, "litellm", module)
    return module


@boughs.function
def ask(s, before="", **gen):
    s += boughs.user("2+2?") + boughs.assistant(before + boughs.gen("x", **gen))


def test_a_call_has_the_options_and_the_parameters(litellm):
    backend = boughs.LiteLLM(
        "groq/m", api_key="k", base_url="http://b", timeout=5, default_headers={"a": "b"}
    )
    s = ask.run(temperature=0.5, stop="!", max_tokens=7, seed=1, backend=backend)
    assert s["x"] == "four"
    assert litellm.calls == [
        {
            "model": "groq/m",
            "messages": [{"role": "user", "content": "2+2?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.5,
            "seed": 1,
            "stop": ["!"],
            "max_tokens": 7,
            "api_key": "k",
            "base_url": "http://b",
            "timeout": 5,
            "max_retries": 2,
            "extra_headers": {"a": "b"},
        }
    ]
    assert litellm.streams[0].closed
    assert s.usage.completion_tokens == 4
    ask.run(json_object=True, backend=backend)
    assert litellm.calls[1]["response_format"] == {"type": "json_object"}


def test_a_turn_is_gone_on_with_where_the_package_says_so(litellm):
    ask.run(before="It is", backend=boughs.LiteLLM("anthropic/m"))
    assert litellm.calls[0]["messages"][-1] == {
        "role": "assistant",
        "content": "It is",
        "prefix": True,
    }
    for model in ("groq/m", "unknown"):
        with pytest.raises(Unsupported, match="cannot go on with a turn"):
            ask.run(before="It is", backend=boughs.LiteLLM(model))


def test_a_stop_found_here_closes_the_stream(litellm):
    litellm.said = "ab;cd"
    assert ask.run(stop_regex=";", backend=boughs.LiteLLM("groq/m"))["x"] == "ab"
    assert litellm.streams[0].closed


def test_errors_are_ours(litellm):
    litellm.said = RateLimitError("slow down")
    with pytest.raises(Overloaded, match=r"LiteLLM \(groq/m\): slow down") as caught:
        ask.run(backend=boughs.LiteLLM("groq/m"))
    assert caught.value.retry_after == 3.0
    with pytest.raises(Unsupported, match="chat_template"):
        boughs.LiteLLM("groq/m", chat_template="chatml")
