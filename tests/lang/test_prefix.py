"""`program.cache`: what all runs begin with is computed ahead, and nothing else."""

import pytest

import boughs
from boughs.testing import MockBackend

SHOTS = "Q: 1+1?\nA: 2\n\n"


@boughs.function
def few_shot(s, question):
    s += SHOTS
    s += "Q: " + question + "\nA:" + boughs.gen("x")


@boughs.function
async def few_shot_async(s, question):
    s += SHOTS
    s += "Q: " + question + "\nA:" + boughs.gen("x")
    await s.wait()


@boughs.function
def loops(s, questions):
    s += SHOTS + "Q: "
    for question in questions:
        s += question + boughs.gen("x")


@boughs.function
def counts(s, number):
    s += SHOTS + "Q: "
    s += str(number + 1)


@boughs.function
def waits(s, question):
    s += SHOTS + "Q: "
    s += boughs.gen("x")
    while s["x"] != "END":
        s += boughs.gen("x") + question


@pytest.mark.parametrize("program", [few_shot, few_shot_async, loops, counts, waits])
def test_the_prefix_ends_where_runs_may_part(program):
    backend = MockBackend()
    assert program.cache(backend=backend) == len(SHOTS + "Q: ")
    (call,) = backend.calls
    assert call.prefills
    assert call.text == SHOTS + "Q: "


def test_the_first_run_finds_it():
    backend = MockBackend()
    made = few_shot.cache(backend=backend)
    state = few_shot.run("2+2?", backend=backend)
    assert state.get_meta_info("x")["cached_tokens"] >= made


def test_arguments_that_are_given_belong_to_it():
    @boughs.function
    def program(s, system, question, backend="b"):
        s += boughs.system(system) + boughs.user(backend + ": " + question)
        s += boughs.assistant(boughs.gen("x"))

    mock = MockBackend()
    with boughs.backend(mock):
        program.cache("Be brief.")
        program.bind(system="Be kind.").cache(backend="c")
    assert [call.text for call in mock.calls] == [
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nb: ",
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nc: ",
    ]


@pytest.mark.parametrize("begin", ["", "x"])
def test_where_runs_share_nothing_nothing_is_asked(begin):
    @boughs.function
    def program(s, question):
        s += question + begin

    backend = MockBackend()
    assert program.cache(backend=backend) == 0
    assert backend.calls == []
