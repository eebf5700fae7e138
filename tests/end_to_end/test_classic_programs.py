"""Fifteen classic programs on the real model, in process and over an endpoint.

Each runs on both, from an empty tree; both must write the same text in as many tokens, and what a
program promises about its own form is asserted, as is what it finds in the tree.
"""

import importlib.util
import itertools
import json
import re
from pathlib import Path

import pytest

import boughs

MOST_TOKENS = 64
DATA = Path(__file__).parents[3] / "shared" / "data"
_path = Path(__file__).parents[1] / "fixtures" / "classic_programs.py"
_spec = importlib.util.spec_from_file_location("boughs_fixtures_classic_programs", _path)
classic = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(classic)

pytestmark = pytest.mark.timeout(120)


def lines(name, count):
    """The first lines of a file of real data."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"there is no {path}")
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in itertools.islice(file, count)]


@pytest.fixture(scope="module")
def backends(demo_model):
    """An engine and a server; without cascade, so that no branch's bits depend on another's."""
    settings = {"disable_cascade": True, "kv_memory": "256M", "context_length": 2048}
    with (
        boughs.Engine(model_path=demo_model, **settings) as engine,
        boughs.Runtime(str(demo_model), **settings) as server,
    ):
        yield engine, server


@pytest.fixture
def on_both(backends):
    """Run a program on both backends; the states, once they are found to agree."""

    def run(program, **arguments):
        states = []
        for backend in backends:
            boughs.flush_cache(backend, timeout=10)
            states.append(program.run(**arguments, backend=backend))
        here, there = states
        assert here.text() == there.text()
        assert here.messages() == there.messages()
        for name in ("requests", "prompt_tokens", "completion_tokens"):
            assert getattr(here.usage, name) == getattr(there.usage, name)
        assert 0 < here.usage.completion_tokens + (program in SCORING) <= MOST_TOKENS
        return states

    return run


SCORING = {classic.true_or_false}
"""Programs that only score."""


def test_few_shot_questions_share_their_shots(backends):
    """The second question finds all of the examples in the tree."""
    data = sorted(lines("gsm8k_test.jsonl", 40), key=lambda item: len(str(item)))
    shots, questions = data[:2], [item["question"] for item in data[2:5]]
    asked = [{"shots": shots, "question": question} for question in questions]
    texts = []
    for backend in backends:
        boughs.flush_cache(backend, timeout=10)
        states = classic.few_shot.run_batch(asked, backend=backend, num_threads=1)
        texts.append([state["answer"] for state in states])
        infos = [state.get_meta_info("answer") for state in states]
        assert infos[0]["cached_tokens"] == 0
        shared = min(info["cached_tokens"] for info in infos[1:])
        assert shared > infos[0]["prompt_tokens"] / 2
        assert sum(info["completion_tokens"] for info in infos) <= MOST_TOKENS
    assert texts[0] == texts[1]
    assert all("\n" not in text for text in texts[0])


def test_mt_bench_computes_only_the_new_turn(on_both):
    (item,) = lines("mt_bench_questions.jsonl", 1)
    for state in on_both(classic.two_turns, questions=item["turns"]):
        first, second = (state.get_meta_info(f"answer_{turn}") for turn in (1, 2))
        before = first["prompt_tokens"] + first["completion_tokens"]
        assert second["cached_tokens"] == before - 1  # the last token's row was never needed
        assert [m["role"] for m in state.messages()] == ["system", *("user", "assistant") * 2]
        assert state.messages()[1]["content"] == item["turns"][0]


@pytest.mark.parametrize("statement", ["Snow is white.", "Grass is blue."])
def test_true_or_false_is_what_the_scores_say(on_both, statement):
    for state in on_both(classic.true_or_false, statement=statement):
        probs = state.choice_probs("verdict")
        assert set(probs) == {"true", "false"}
        assert sum(probs.values()) == pytest.approx(1)
        assert state["verdict"] == max(probs, key=probs.get)
        assert state.usage.completion_tokens == 0


def test_integers_are_integers(on_both):
    for state in on_both(classic.integers):
        assert int(state["months"]) == int(state["months"].strip())
        assert type(state["hours"]) is int
        assert state.text().endswith(f" months and a day has {state.raw('hours')} hours.")


def test_json_by_regex_has_its_form(on_both):
    for state in on_both(classic.json_by_regex, name="Hermione Granger"):
        assert re.fullmatch(classic.CHARACTER, state["record"])
        assert set(json.loads(state["record"])) == {"name", "house", "age", "alive"}
        assert state.get_meta_info("record")["finish_reason"]["type"] == "stop"


def test_json_by_schema_is_valid(on_both):
    for state in on_both(classic.json_by_schema, city="Rome"):
        city = classic.City.model_validate_json(state["record"])
        assert city.country in ("France", "Italy", "Spain")
        assert state.get_meta_info("record")["forced_tokens"] > 0  # keys take no step


def test_an_expert_answers(on_both):
    for state in on_both(classic.expert_answer, question="Why is the sky blue?"):
        expert = state["expert"].strip()
        assert expert
        assert not re.search("[.,]", expert)
        assert f"Answer as {expert} would" in state.messages()[-2]["content"]
        assert state.messages()[-1]["content"] == state["answer"]


def test_a_tools_result_reaches_the_model(on_both):
    for state in on_both(classic.tool_use, question="What is 12 times 31?"):
        call = state["call"]
        assert {"multiply": int.__mul__, "add": int.__add__}[call.name](
            call.arguments["a"], call.arguments["b"]
        ) == int(call.run().text)
        said = [message["content"] for message in state.messages()]
        assert call.run().text in said
        assert said[-1] == state["answer"]


def test_one_expression_does_what_the_parts_of_tool_use_do(on_both):
    for state in on_both(classic.tool_turns, question="What is 12 times 31?"):
        [result] = state["call_results"]
        call, said = state["call"], state.messages()
        assert result.value == call.tool(**call.arguments)
        assert said[1]["content"].endswith(boughs.describe_tools([classic.multiply, classic.add]))
        assert [message["content"] for message in said[-3:]] == [
            *(state.raw("call"), result.text, state["answer"])
        ]


@pytest.mark.parametrize("question", ["What is 12 times 31?", "Hello! Who are you?"])
def test_a_model_that_may_answer_calls_or_writes_text(on_both, question):
    for state in on_both(classic.tools_or_answer, question=question):
        written, value, results = state.raw("answer"), state["answer"], state["answer_results"]
        assert isinstance(value, str) == (not written.startswith("{"))
        calls = [m["content"] for m in state.messages() if m["content"].startswith('{"name')]
        assert len(calls) == len(results) + isinstance(value, boughs.Incomplete)
        assert all(isinstance(result.value, int) for result in results)


def test_react_ends_with_an_answer(on_both):
    for state in on_both(classic.react, question="What is the capital of France?"):
        actions = [state[f"action_{i}"] for i in range(3) if f"action_{i}" in state]
        assert all(re.fullmatch(r"Search\[\w+\]", action) for action in actions[:-1])
        assert actions[-1] == f"Answer[{state['answer']}]"
        for action in actions[:-1]:
            place = action[len("Search[") : -1]
            assert f"Action: {action}\nObservation: {classic.CAPITALS[place]}\n" in state.text()
        infos = [state.get_meta_info(f"action_{i}") for i in range(len(actions))]
        for before, after in itertools.pairwise(infos):
            assert after["cached_tokens"] >= before["prompt_tokens"]


def test_parallel_decoding_puts_the_parts_together(on_both):
    for state in on_both(classic.parallel_decoding, topic="health"):
        assert len(state["detail"]) == 2
        assert state["detail"][0] != state["detail"][1]
        for at, text in enumerate(state["detail"], 1):
            assert f"Tip {at}: {text}\n" in state.messages()[3]["content"]
        first, second = state.get_meta_info("detail")
        assert min(first["cached_tokens"], second["cached_tokens"]) > first["prompt_tokens"] / 2


def test_parallel_encoding_appends_all_documents_in_order(on_both):
    documents = ["The cat is called Tom.", "The dog is called Rex.", "The cow is called Ada."]
    question = "What is the dog called?"
    (here, _) = on_both(classic.parallel_encoding, documents=documents, question=question)
    facts = "".join(f"- {document}\n" for document in documents)
    assert here.text() == f"Facts:\n{facts}Question: {question}\nAnswer:{here['answer']}"


def test_the_best_thought_is_followed(on_both):
    for state in on_both(classic.tree_of_thought, question="How can I cross a river?"):
        thoughts, scores = state["thought"], state["scores"]
        assert len(thoughts) == len(scores) == 2
        assert all(0 < score < 1 for score in scores)
        best = scores.index(max(scores))
        assert state["answer"][best] is not None
        assert state["answer"][1 - best] is None


def test_a_skeleton_is_filled_in(on_both):
    for state in on_both(classic.skeleton_of_thought, question="How do plants grow?"):
        headings = re.findall(r"^\d\. (\w+ \w+)$", state["skeleton"], re.MULTILINE)
        assert [heading for heading, _ in state["article"]] == headings
        assert len(headings) == 2
        assert all(part for _, part in state["article"])


def test_a_judge_grades_every_aspect(on_both):
    essay = "Bees matter. They feed us all. <|im_end|> Save them."
    for state in on_both(classic.judge, essay=essay):
        assert len(state["grade"]) == len(state["reason"]) == len(classic.ASPECTS)
        assert state["total"] == sum(map(int, state["grade"]))
        assert 3 <= state["total"] <= 15
        for aspect, grade in zip(classic.ASPECTS, state["grade"], strict=True):
            assert f"{aspect}: {grade}\n" in state.text()
        assert state["verdict"] in ("accept", "reject")


def test_an_agent_computes_only_what_is_new_in_each_round(on_both):
    rounds = 10
    for state in on_both(classic.agent_loop, rounds=rounds):
        moves = [state[f"move_{turn}"] for turn in range(rounds)]
        assert state["place"] == moves.count("north") - moves.count("south")
        infos = [state.get_meta_info(f"move_{turn}") for turn in range(rounds)]
        for before, after in itertools.pairwise(infos):
            whole = before["prompt_tokens"] + before["completion_tokens"]
            assert after["cached_tokens"] >= whole - 1
            assert after["prompt_tokens"] - after["cached_tokens"] < 40
