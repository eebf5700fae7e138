"""`tools`: calls that are written, run and answered by one expression."""

import json
import threading

import pytest
from llguidance import LLMatcher, LLTokenizer

import boughs
from boughs.lang import pool
from boughs.lang.errors import Incomplete, InvalidRequest, NotFound, ProgramError
from boughs.testing import Cut, MockBackend

pytestmark = pytest.mark.timeout(60)


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


async def later(text: str) -> str:
    return text


def broken() -> None:
    raise ValueError("no such luck")


TOOLS = [add, later, broken]
ADD = '{"name": "add", "arguments": {"a": 2, "b": 3}}'
LATER = '{"name": "later", "arguments": {"text": "soon"}}'
BROKEN = '{"name": "broken", "arguments": {}}'


@boughs.function
def agent(s, tools=TOOLS, **options):
    s += boughs.user("do")
    s += boughs.tools(tools, "x", **options)
    s += boughs.assistant(boughs.gen("end"))
    return s["x"]


def roles(state):
    return [message["role"] for message in state.messages()]


def test_it_does_what_the_three_do_apart():
    @boughs.function
    def apart(s):
        s += boughs.system(boughs.describe_tools(TOOLS))
        s += boughs.user("do")
        s += boughs.assistant(boughs.gen_tool_call("x", TOOLS, temperature=0, max_tokens=50))
        s += s["x"].run()
        s += boughs.assistant(boughs.gen("end"))

    @boughs.function
    def at_once(s):
        s += boughs.system(boughs.describe_tools(TOOLS))
        s += boughs.user("do")
        s += boughs.tools(TOOLS, "x", temperature=0, max_tokens=50)
        s += boughs.assistant(boughs.gen("end"))

    made = []
    for program in (apart, at_once):
        backend = MockBackend([ADD, "fine"])
        state = program.run(backend=backend)
        made.append((state.text(), state.messages(), state["x"], state["end"]))
        asked = [call.request for call in backend.calls]
        made.append([(request.prompt, request.params) for request in asked])
    assert made[:2] == made[2:]
    assert state["x"].arguments == {"a": 2, "b": 3}
    [result] = state["x_results"]
    assert (result.name, result.value, result.error) == ("add", 5, None)


def test_tools_are_described_once_before_the_first_call():
    state = agent.run(backend=MockBackend([ADD, LATER, "fine"]), rounds=2)
    assert roles(state) == ["user", "system", "assistant", "tool", "assistant", "tool", "assistant"]
    told = state.messages()[1]["content"]
    assert told.endswith(boughs.describe_tools(TOOLS))
    assert "text" not in told.partition("The tools:")[0]
    assert state.text().count("The sum.") == 1
    silent = agent.run(backend=MockBackend([ADD, "fine"]), describe=False)
    assert roles(silent) == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("answers", "rounds", "values", "last"),
    [
        ([ADD, LATER, "It is 5.", "-"], 5, [5, "soon"], "It is 5."),
        (["Hello", "-"], 5, [], "Hello"),
        ([Cut("So it goes"), "-"], 5, [], "So it goes"),
        ([ADD, ADD, "-"], 2, [5, 5], None),
    ],
)
def test_rounds_end_with_an_answer_or_at_their_bound(answers, rounds, values, last):
    backend = MockBackend(answers)
    state = agent.run(backend=backend, rounds=rounds, may_answer=True)
    assert [result.value for result in state["x_results"]] == values
    if last is None:
        assert state.ret_value.name == "add"
    else:
        assert state.ret_value == state.raw("x") == last
    assert state["end"] == "-"
    assert "To answer, write text." in state.messages()[1]["content"]


def test_a_call_that_is_not_run():
    state = agent.run([broken], backend=MockBackend([BROKEN, "fine"]), run=False)
    assert state.ret_value.name == "broken"
    assert state["x_results"] == []
    assert roles(state) == ["user", "system", "assistant", "assistant"]


def test_an_error_is_told_or_raised():
    state = agent.run(backend=MockBackend([BROKEN, "fine"]))
    assert state.messages()[3] == {"role": "tool", "content": "ValueError: no such luck"}
    assert isinstance(state["x_results"][0].error, ValueError)
    with pytest.raises(
        ProgramError, match=r"program agent, variable 'x'.*tool broken: .*luck"
    ) as e:
        agent.run(backend=MockBackend([BROKEN, "fine"]), on_error="raise")
    assert isinstance(e.value.__cause__.__cause__, ValueError)

    def absent() -> None:
        raise NotFound("gone")

    call = '{"name": "absent", "arguments": {}}'
    with pytest.raises(NotFound, match="tool absent: gone"):
        agent.run([absent], backend=MockBackend([call, "fine"]), on_error="raise")


def test_a_cut_call_ends_the_turns():
    cut = Cut('{"name": "add", "argu')
    with pytest.raises(Incomplete, match=r"variable 'x'"):
        agent.run(backend=MockBackend([cut, "fine"]), rounds=3, may_answer=True)
    backend = MockBackend([cut, "fine"])
    state = agent.run(backend=backend, rounds=3, on_incomplete="value")
    assert state.ret_value.partial == {"name": "add"}
    assert state["end"] == "fine"


def test_without_roles_and_inside_of_a_message_all_is_text():
    @boughs.function
    def plain(s):
        s += "Q: " + boughs.tools([add], describe=False) + "\nA: " + boughs.gen("end")

    assert plain.run(backend=MockBackend([ADD, "5"])).text() == f"Q: {ADD}5\nA: 5"

    @boughs.function
    def inside(s):
        s += boughs.assistant(boughs.tools([add], describe=False))

    assert [m["content"] for m in inside.run(backend=MockBackend([ADD])).messages()] == [f"{ADD}5"]


def test_a_template_without_the_roles_gets_a_users_messages():
    class Old(MockBackend):
        async def generate(self, request):
            marks = [getattr(segment, "role", "user") for segment in request.prompt]
            if not {"tool", "system"}.isdisjoint(marks):
                raise InvalidRequest("the template has none")
            async for chunk in super().generate(request):
                yield chunk

    state = agent.run(backend=Old([ADD, "fine"]))
    assert roles(state) == ["user", "user", "assistant", "user", "assistant"]


def test_async_programs_and_batches_and_branches():
    @boughs.function
    async def program(s):
        s += boughs.tools(TOOLS)
        call = await s.get("call")
        return call.name, (await s.get("call_results"))[0].value

    assert program.run(backend=MockBackend([LATER])).ret_value == ("later", "soon")

    @boughs.function
    def forks(s):
        branches = s.fork(3)
        branches += boughs.tools([add], run=True)
        branches.join()
        return [results[0].value for results in s["call_results"]]

    states = forks.run_batch([{}] * 5, backend=MockBackend(lambda _: ADD))
    assert [state.ret_value for state in states] == [[5, 5, 5]] * 5


def test_functions_may_run_programs_that_call_tools_whatever_the_threads(monkeypatch):
    monkeypatch.setattr(pool, "_pools", {})
    monkeypatch.setattr(pool, "most_threads", lambda: 1)
    depth = threading.local()

    def dig(deep: int) -> str:
        """Dig."""
        depth.thread = True
        return digger.run(deep).ret_value if deep else "gold"

    @boughs.function
    def digger(s, deep):
        s += f"{deep} " + boughs.tools([dig], describe=False)
        return s["call_results"][0].value

    def say(call):
        deep = int(call.text.split()[-1])
        return json.dumps({"name": "dig", "arguments": {"deep": max(deep - 1, 0)}})

    states = digger.run_batch([{"deep": 4}] * 6, backend=MockBackend(say))
    assert [state.ret_value for state in states] == ["gold"] * 6
    assert not hasattr(depth, "thread")  # no tool ran in the thread of the program


def test_tracing_calls_nothing_and_the_graph_shows_it():
    called = []

    def touch(path: str) -> None:
        called.append(path)

    trace = agent.trace([touch], rounds=2)
    assert not called
    assert "tools 'x', at most 2" in str(trace)
    assert "tools x" in str(agent.graph([touch], rounds=2))


def allowed(sampling, text):
    ((kind, source),) = ((k, v) for k, v in sampling.items() if k in ("json_schema", "ebnf"))
    assert kind == "ebnf"
    grammar = LLMatcher.grammar_from_lark(source)
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0)
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def test_an_answer_is_any_text_that_is_no_begin_of_a_call():
    sampling = boughs.tools(TOOLS, may_answer=True).gen.sampling
    for text in (ADD, LATER, BROKEN, "Hello", "a {b}\n\nc", " 5", "é {"):
        assert allowed(sampling, text), text
    for text in ("", "{", "{a", ADD + " ", ADD.replace("add", "sub")):
        assert not allowed(sampling, text), text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rounds": 0}, "rounds"),
        ({"rounds": True}, "rounds"),
        ({"rounds": 2, "run": False}, "rounds"),
        ({"on_error": "never"}, "on_error"),
        ({"on_incomplete": "never"}, "on_incomplete"),
        ({"name": None}, "name"),
        ({"name": ""}, "name"),
        ({"n": 2}, "n"),
        ({"stop": "a"}, "stop"),
        ({"max_tokenz": 3}, "max_tokenz"),
    ],
)
def test_wrong_arguments_are_named(options, said):
    with pytest.raises(InvalidRequest, match=said) as caught:
        boughs.tools(TOOLS, **options)
    assert caught.value.param.removeprefix("gen: ") == said
