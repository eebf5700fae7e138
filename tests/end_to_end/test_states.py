"""A state's tokens are never tokenized again, so a turn finds the whole turn before it."""

import itertools

import pytest

import boughs


@pytest.fixture(scope="module")
def engine(demo_model):
    with boughs.Engine(model_path=demo_model, in_process=True, check_invariants=True) as engine:
        yield engine


@boughs.function
def chat(s, questions, max_tokens, temperature):
    s += boughs.system("You are a helpful assistant.")
    for turn, question in enumerate(questions):
        s += boughs.user(question)
        s += boughs.assistant(
            boughs.gen(
                f"a{turn}",
                max_tokens=max_tokens,
                temperature=temperature,
                seed=turn,
                ignore_eos=True,
            )
        )


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_the_next_turn_is_cached_but_for_the_last_generated_token(engine, temperature):
    """At temperature 1.5 the output is seldom what the tokenizer would make of its text."""
    engine.flush_cache()
    questions = ["What is a fox?", "And a dog?", "Which is faster?"]
    # Six tokens or more, so that a retokenized state would show.
    state = chat.run(questions, 12, temperature, backend=engine)
    infos = [state.get_meta_info(f"a{turn}") for turn in range(3)]
    for before, after in itertools.pairwise(infos):
        whole = before["prompt_tokens"] + before["completion_tokens"]
        assert after["cached_tokens"] == whole - 1


def test_a_turn_that_ends_by_itself_is_cached_whole(engine):
    """The end-of-turn token that the model made is the one that the template writes."""

    @boughs.function
    def short(s):
        s += boughs.user("Say hi.")
        s += boughs.assistant(boughs.gen("a", max_tokens=64, temperature=0))
        s += boughs.user("Again.")
        s += boughs.assistant(boughs.gen("b", max_tokens=4, temperature=0))

    engine.flush_cache()
    state = short.run(backend=engine)
    first, second = state.get_meta_info("a"), state.get_meta_info("b")
    assert first["finish_reason"]["type"] == "stop"
    assert second["cached_tokens"] == first["prompt_tokens"] + first["completion_tokens"] - 1
    assert state.text().count("<|im_end|>") == 5  # with the default system prompt


def test_a_trimmed_stop_loses_no_more_than_the_token_it_cuts(engine):
    @boughs.function
    def lines(s):
        s += "Colours:\n1. red\n2."
        s += boughs.gen("a", max_tokens=16, temperature=0, stop="\n", ignore_eos=True)
        s += "\n3."
        s += boughs.gen("b", max_tokens=16, temperature=0, stop="\n", ignore_eos=True)

    engine.flush_cache()
    state = lines.run(backend=engine)
    first, second = state.get_meta_info("a"), state.get_meta_info("b")
    assert first["finish_reason"] == {"type": "stop", "matched": "\n"}
    assert second["cached_tokens"] >= first["prompt_tokens"] + first["completion_tokens"] - 2
    assert "\n" not in state["a"] + state["b"]


def test_branches_of_a_fork_share_what_stands_before_it(engine):
    @boughs.function
    def branch(s):
        s += boughs.user("Name an animal. " * 10)
        for index, one in enumerate(s.fork(4)):
            one += boughs.assistant(f"{index}:" + boughs.gen("x", max_tokens=4, temperature=0))
            infos.append(one.get_meta_info("x"))

    infos = []
    engine.flush_cache()
    branch.run(backend=engine)
    for info in infos:
        assert info["cached_tokens"] >= info["prompt_tokens"] - 10
