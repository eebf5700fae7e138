"""Tools: calls of Python functions that a model writes."""

import datetime as dt
import enum
import json
from typing import Annotated

import pytest
from llguidance import LLMatcher, LLTokenizer
from pydantic import Field

import boughs
from boughs.lang.errors import Incomplete, InvalidRequest
from boughs.testing import Cut, MockBackend

pytestmark = pytest.mark.timeout(60)


class Unit(enum.Enum):
    CELSIUS = "celsius"
    KELVIN = "kelvin"


@boughs.tool
def weather(city: str, unit: Unit = Unit.CELSIUS, *, day: dt.date | None = None) -> str:
    """The weather of a city."""
    return f"{city}: 20 {unit.value}, {day}"


def add(a: int, b: Annotated[int, Field(ge=0, description="not below 0")]) -> int:
    """The sum."""
    return a + b


async def later(seconds: float) -> dict:
    return {"slept": seconds}


@boughs.tool(name="fail", description="Always fails.")
def broken() -> None:
    raise ValueError("no such luck")


TOOLS = [weather, add, later, broken]
CALLS = {
    "weather": '{"name": "weather", "arguments": {"city": "Rome", "day": "2026-03-01"}}',
    "add": '{"name": "add", "arguments": {"a": 2, "b": 3}}',
    "later": '{"name": "later", "arguments": {"seconds": 0.5}}',
    "fail": '{"name": "fail", "arguments": {}}',
}


@boughs.function
def agent(s, tools, **options):
    s += boughs.user("do")
    s += boughs.assistant(boughs.gen_tool_call("call", tools, **options))
    result = s["call"].run()
    s += result
    s += boughs.assistant(boughs.gen("answer"))
    return result


def test_a_call_is_parsed_run_and_answered():
    backend = MockBackend([CALLS["weather"], "fine"])
    state = agent.run(TOOLS, temperature=0, max_tokens=60, backend=backend)
    call = state["call"]
    day = dt.date(2026, 3, 1)
    assert (call.name, call.arguments) == ("weather", {"city": "Rome", "day": day})
    assert call.tool is weather
    assert state.ret_value.value == "Rome: 20 celsius, 2026-03-01"
    assert state.messages()[2] == {"role": "tool", "content": state.ret_value.text}
    assert f"<|im_start|>tool\n{state.ret_value.text}<|im_end|>\n" in backend.calls[-1].text
    assert state.raw("call") == CALLS["weather"]
    params = backend.calls[0].request.params
    assert (params.temperature, params.max_new_tokens) == (0, 60)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("add", "5"),
        ("later", '{"slept":0.5}'),
        ("fail", "ValueError: no such luck"),
    ],
)
def test_what_the_model_is_told(name, text):
    state = agent.run(TOOLS, backend=MockBackend([CALLS[name], "fine"]))
    assert state.ret_value.text == text
    assert isinstance(state.ret_value.error, ValueError) == (name == "fail")
    assert state.messages()[2]["content"] == text


def test_only_calls_that_their_functions_take_are_allowed():
    node = boughs.gen_tool_call("call", TOOLS)
    source = node.sampling["json_schema"]
    wide = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    grammar = LLMatcher.grammar_from_json_schema(json.loads(source), overrides=wide)

    def allowed(text):
        matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
        tokens = list(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    assert all(map(allowed, CALLS.values()))
    for bad in (
        '{"name": "add", "arguments": {"a": 2}}',
        '{"name": "add", "arguments": {"a": 2, "b": -3}}',
        '{"name": "fail", "arguments": {"a": 2}}',
        '{"name": "weather", "arguments": {"city": "Rome", "unit": "miles"}}',
        '{"name": "multiply", "arguments": {}}',
        '{"name": "add"}',
    ):
        assert not allowed(bad), bad


def test_tools_described_for_a_prompt():
    lines = [json.loads(line) for line in boughs.describe_tools(TOOLS).splitlines()]
    assert [line["name"] for line in lines] == ["weather", "add", "later", "fail"]
    assert lines[1]["description"] == "The sum."
    assert lines[1]["parameters"]["properties"]["b"]["description"] == "not below 0"
    assert lines[0]["parameters"]["required"] == ["city"]
    assert lines[3]["description"] == "Always fails."


def test_a_tool_is_still_its_function():
    assert weather("Oslo") == "Oslo: 20 celsius, None"
    assert weather.__name__ == "weather"
    assert weather.__doc__ == "The weather of a city."


def test_a_template_without_the_role_gets_a_users_message():
    class Old(MockBackend):
        async def generate(self, request):
            if any(getattr(segment, "role", "") == "tool" for segment in request.prompt):
                raise InvalidRequest("the template has no tool")
            async for chunk in super().generate(request):
                yield chunk

    state = agent.run(TOOLS, backend=Old([CALLS["add"], "fine"]))
    assert [message["role"] for message in state.messages()] == ["user", "assistant"] * 2
    assert state.messages()[2]["content"] == "5"
    assert "".join(state.text_iter()) == state.text()
    assert state["answer"] == "fine"


def test_without_roles_and_inside_of_one_the_result_is_text():
    @boughs.function
    def plain(s):
        s += "Call: " + boughs.gen_tool_call("call", TOOLS)
        s += "\nResult: " + s["call"].run() + "\n"
        with s.assistant():
            s += boughs.gen_tool_call("again", TOOLS)
            s += s["again"].run()

    backend = MockBackend([CALLS["add"], CALLS["add"]])
    text = plain.run(backend=backend).text()
    assert text.startswith(f"Call: {CALLS['add']}\nResult: 5\n<|im_start|>assistant")
    assert text.endswith("}5<|im_end|>\n")


def test_async_programs_await_their_tools():
    @boughs.function
    async def program(s):
        for name in ("later", "add", "fail"):
            s += boughs.gen_tool_call(name, TOOLS)
            call = await s.get(name)
            if name == "later":
                with pytest.raises(InvalidRequest, match=r"later: .*run_async"):
                    call.run()
            s += await call.run_async()
        return await s.get_text()

    backend = MockBackend([CALLS["later"], CALLS["add"], CALLS["fail"]])
    text = program.run(backend=backend).ret_value
    assert '{"slept":0.5}' in text
    assert text.endswith("ValueError: no such luck")


def test_a_cut_call():
    backend = MockBackend([Cut('{"name": "add", "argu')])
    with pytest.raises(Incomplete, match=r"program agent, variable 'call'.*tool call"):
        agent.run(TOOLS, backend=backend)


def test_tracing_calls_nothing():
    called = []

    def touch(path: str) -> None:
        called.append(path)

    trace = agent.trace([touch])
    assert not called
    assert "tool says '{touch}'" in str(trace)


def untyped(a, b: int):
    pass


def starred(*args: int):
    pass


def by_place(a: int, /):
    pass


def unconstrained(a: set[int]):
    pass


def unknown(a: "Nothing"):  # noqa: F821
    pass


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ([], "tools: expected a list"),
        (weather, "tools: expected a list"),
        ("weather", "tools: expected a list"),
        ([5], "tool: expected a function, got 5"),
        ([untyped], "tool untyped: parameter a has no type"),
        ([starred], "tool starred: parameter args cannot be given by name"),
        ([by_place], "tool by_place: parameter a cannot be given by name"),
        ([unconstrained], "variable 'x': tool unconstrained: type: .*uniqueItems"),
        ([unknown], "tool unknown: .*Nothing"),
        ([add, add], "two are called add"),
    ],
)
def test_what_is_no_tool_is_refused_by_name(tools, said):
    with pytest.raises(InvalidRequest, match=said):
        boughs.gen_tool_call("x", tools)


def test_wrong_parameters_are_named():
    for options in ({"stop": "a"}, {"max_tokenz": 3}, {"type": int}, {"on_incomplete": "never"}):
        with pytest.raises(InvalidRequest, match=next(iter(options))):
            boughs.gen_tool_call("x", TOOLS, **options)
