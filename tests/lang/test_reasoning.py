"""`separate_reasoning`: what a model thought, apart from what it answered."""

import pytest

import boughs
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.reasoning import MARKS
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(30)

TYPED = boughs.gen("x", type=int)
TEXT = "<think>\nTwo and two.\n</think>\n\nFour"


@boughs.function
def program(s, model_type=None, n=None):
    s += boughs.user("2 + 2?")
    turn = boughs.assistant("So: " + boughs.gen("a", n=n) + "!" + boughs.gen("b"))
    s += boughs.separate_reasoning(turn, model_type)
    s += boughs.user("and 3?") + boughs.assistant(boughs.gen("c"))


def test_reasoning_and_answer_of_each_gen():
    backend = MockBackend([TEXT, "Yes", "Five"], piece=3)
    state = program.run(backend=backend)
    assert state["a"] == "Four"
    assert state["a_reasoning_content"] == "Two and two."
    assert state.raw("a") == TEXT
    assert (state["b"], state["b_reasoning_content"]) == ("Yes", "")
    assert state.messages()[1]["content"] == "So: Four!Yes"
    assert "think" not in backend.calls[-1].text
    assert "So: Four!Yes<|im_end|>" in backend.calls[-1].text


def test_streams_are_of_the_answer():
    state = program.run(backend=MockBackend([TEXT, "Yes", "Five"], piece=3), stream=True)
    assert list(state.text_iter("a")) == ["Four"]
    assert "".join(state.text_iter()) == state.text()
    assert state["a_reasoning_content"] == "Two and two."


def test_choices():
    state = program.run(n=2, backend=MockBackend([[TEXT, "<think>b</think>c"], "Yes", "Five"]))
    assert state["a"] == ["Four", "c"]
    assert state["a_reasoning_content"] == ["Two and two.", "b"]


@pytest.mark.parametrize(
    ("model_type", "text", "reasoning", "answer"),
    [
        (None, "plain", "", "plain"),
        (None, "the prompt began it</think>x", "the prompt began it", "x"),
        (None, "<think>cut", "cut", ""),
        (None, "<think></think> x </think>", "", "x </think>"),
        ("qwen3", "<think>a</think>b", "a", "b"),
        ("deepseek-r1", "cut before any mark", "cut before any mark", ""),
        ("deepseek-r1", "a</think>b", "a", "b"),
        ("kimi", "◁think▷a◁/think▷b", "a", "b"),
        ("kimi", "<think>a</think>b", "", "<think>a</think>b"),
    ],
)
def test_the_marks_of_models(model_type, text, reasoning, answer):
    state = program.run(model_type, backend=MockBackend([text, "Yes", "Five"]))
    assert (state["a_reasoning_content"], state["a"]) == (reasoning, answer)
    if model_type:
        assert MARKS[model_type].split(text) == (reasoning, answer)


def test_branches_and_traces():
    @boughs.function
    def forked(s):
        s += "p"
        branches = s.fork(2)
        branches += boughs.separate_reasoning(boughs.gen("a"))
        branches.join()
        return s["a"], s["a_reasoning_content"]

    backend = MockBackend(lambda call: TEXT)
    assert forked.run(backend=backend).ret_value == (["Four"] * 2, ["Two and two."] * 2)
    assert program.trace().variables["a_reasoning_content"] == "{a_reasoning_content}"


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (boughs.separate_reasoning, InvalidRequest, "separate_reasoning: expected"),
        (lambda: boughs.separate_reasoning("a"), InvalidRequest, "no gen"),
        (lambda: boughs.separate_reasoning(boughs.gen()), InvalidRequest, "no name"),
        (
            lambda: boughs.separate_reasoning(boughs.gen("x", type=int)),
            InvalidRequest,
            r"'x'.*type",
        ),
        (lambda: boughs.separate_reasoning(boughs.gen("x"), "gpt-9"), Unsupported, r"gpt-9.*qwen3"),
    ],
)
def test_what_is_wrong_is_said_at_once(make, error, said):
    with pytest.raises(error, match=said):
        make()


@pytest.mark.parametrize(("dropped", "warnings"), [(["</think>"], 1), (["◁/think▷"], 0), (None, 0)])
def test_a_program_is_warned_of_what_its_template_would_drop(caplog, dropped, warnings):
    class Knowing(MockBackend):
        asked = 0

        async def get_server_info(self):
            self.asked += 1
            if dropped is None:
                raise ConnectionError("gone")
            return {"dropped_reasoning": dropped}

    def body(s):
        for turn in range(3):
            s += boughs.user("q") + boughs.assistant(boughs.gen(f"a{turn}"))

    body.__name__ = body.__qualname__ = f"thinks_{dropped}"
    program, backend = boughs.function(body), Knowing("<think>hm</think>a")
    with caplog.at_level("WARNING", "boughs"):
        state = program.run(backend=backend)
        assert state.messages()[1]["content"] == "<think>hm</think>a"
        assert backend.asked == 1
        program.run(backend=backend)
    assert len(caplog.messages) == warnings
    assert all("separate_reasoning" in message for message in caplog.messages)
