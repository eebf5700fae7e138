"""Tracing: the statements of a program, without a backend."""

import pytest

import boughs
from boughs.lang import ir
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.expression import Node

pytestmark = pytest.mark.timeout(30)


@boughs.function
def program(s, topic, *, size=2):
    s += boughs.system("be nice")
    s += boughs.user("About " + topic)
    s += boughs.assistant(boughs.gen("essay", max_tokens=9, stop="\n"))
    branches = s.fork(size)
    for i, branch in enumerate(branches):
        branch += boughs.user(f"judge {i}") + boughs.assistant(boughs.gen("points", 2, dtype=int))
    branches.join()
    total = sum(map(int, s["points"]))
    s["total"] = total
    with s.var_scope("verdict"):
        s += "So: " + boughs.select("good", choices=["yes", "no"])
    assert "essay" in s
    assert s.choice_probs("good") == {"yes": 0.5, "no": 0.5}
    assert s.get_meta_info("essay") == {}
    return s["essay"], s["verdict"]


EXPECTED = """\
program program
  system begins
  'be nice'
  system ends
  user begins
  'About {topic}'
  user ends
  assistant begins
  gen('essay', max_new_tokens=9, stop=('\\n',))
  assistant ends
  fork into 2
    branch 0
      user begins
      'judge 0'
      user ends
      assistant begins
      gen('points', max_new_tokens=2, dtype='int')
      assistant ends
    branch 1
      user begins
      'judge 1'
      user ends
      assistant begins
      gen('points', max_new_tokens=2, dtype='int')
      assistant ends
  join 2 (gather_variable)
  total = 0
  scope verdict begins
  'So: '
  select('good', choices=['yes', 'no'])
  scope verdict ends"""


def test_a_trace_prints_the_statements_with_their_branches():
    trace = program.trace()
    assert str(trace) == EXPECTED
    assert trace.variables["total"] == 0
    assert trace.ret_value == ("{essay}", "So: yes")
    assert sum(isinstance(node, ir.Gen) for node in trace.nodes) == 1
    assert all(isinstance(node, Node) for node in trace.nodes)


def test_given_arguments_are_used():
    trace = program.trace("cats", size=3)
    assert "'About cats'" in str(trace)
    assert "fork into 3" in str(trace)
    assert "About dogs" in str(program.bind(topic="dogs").trace())
    with pytest.raises(TypeError):
        program.trace(nothing=1)


def test_text_and_messages_of_a_trace():
    @boughs.function
    def reads(s):
        s += boughs.user("q") + boughs.assistant(boughs.gen("x", n=2))
        return s.text(), s.messages(), s["x"]

    text, messages, value = reads.trace().ret_value
    assert text == "<user>q</user><assistant>{x}</assistant>"
    assert [m["content"] for m in messages] == ["q", "{x}"]
    assert value == ["{x}", "{x}"]


def test_a_loop_that_waits_for_a_model_ends_with_a_clear_error():
    @boughs.function
    def loops(s):
        while s["x"] != "END" if "x" in s else True:
            s += boughs.gen("x")

    with pytest.raises(InvalidRequest, match="program loops: tracing stopped after 10000"):
        loops.trace()


def test_async_programs_and_errors_of_bodies():
    @boughs.function
    async def waits(s):
        s += boughs.gen("x")
        return await s.get("x")

    assert waits.trace().ret_value == "{x}"
    with pytest.raises(ZeroDivisionError):
        boughs.function(lambda s: 1 / 0).trace()


def test_a_program_that_runs_another_one_cannot_be_traced():
    @boughs.function
    def outer(s):
        program.run("x")

    with pytest.raises(Unsupported, match="tracing has no backend"):
        outer.trace()


def test_a_part_is_traced_with_the_program():
    @boughs.function
    def part(s, word):
        s += word + boughs.gen("y")

    @boughs.function
    def outer(s):
        s += "a" + part(word="b")

    assert [str(node) for node in outer.trace().nodes] == ["'a'", "'b'", "gen('y')"]
