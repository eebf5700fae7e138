"""Scoring of choices over a fake core, and the tree that they make."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.errors import InvalidRequest, Unservable
from boughs.lang.requests import ScoreRequest
from boughs.lang.segments import Ids, Role, Text
from boughs.runtime.front.score import WORTH_A_STEP, ChoiceTree
from boughs.runtime.messages import Submit


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")
shared, front, log = fronts.shared, fronts.front, fronts.log
run = fronts.run
of_kind = fronts.of_kind


def test_choices_are_scored_from_the_border_on(front, log):
    prompt, choices = "Question: yes", [" yes", " no", " yesterday"]
    scores = run(front.score(ScoreRequest(prompt=prompt, choices=choices, priority=3)))
    assert {message.params.priority for message in of_kind(log, Submit)} == {3}
    encode = front.tokenizer.encode
    whole = [encode(prompt + choice, "start") for choice in choices]
    alone = encode(prompt, "start")
    border = min(fake.common(alone, ids) for ids in whole)
    assert border <= len(alone)
    for ids, scored in zip(whole, scores.choices, strict=True):
        assert scored.token_ids == ids[border:]
        assert scored.logprobs == [fake.logprob(at, ids[at]) for at in range(border, len(ids))]
        assert scored.unconditional is None
    assert scores.prompt_tokens == len(alone)
    first = of_kind(log, Submit)[0]
    assert len(first.prompt_ids) + 1 - len(first.targets) == border
    assert {message.params.max_new_tokens for message in of_kind(log, Submit)} == {0}


def test_a_border_that_merges_is_scored_with_the_token_that_crosses_it(front):
    """Where prompt and choice make one token, all choices are scored from that token on."""
    encode = front.tokenizer.encode
    prompt, choices = "th", ["e", "ree"]
    whole = [encode(prompt + choice, "start") for choice in choices]
    border = min(fake.common(encode(prompt, "start"), ids) for ids in whole)
    scores = run(front.score(ScoreRequest(prompt=prompt, choices=choices)))
    assert [scored.token_ids for scored in scores.choices] == [ids[border:] for ids in whole]
    if border == 0:
        assert scores.choices[0].logprobs[0] == 0.0


def test_unconditional_scores_are_of_the_same_tokens_alone(front):
    request = ScoreRequest(prompt="Hello", choices=[" world", " a b c"], unconditional=True)
    for scored in run(front.score(request)).choices:
        assert len(scored.unconditional) == len(scored.token_ids) == len(scored.logprobs)
        assert scored.unconditional == [
            0.0 if at == 0 else fake.logprob(at, id_) for at, id_ in enumerate(scored.token_ids)
        ]


def test_an_empty_choice_has_no_tokens(front):
    scores = run(front.score(ScoreRequest(prompt="Hello", choices=["", "x"], unconditional=True)))
    empty, other = scores.choices
    assert (empty.token_ids, empty.logprobs, empty.unconditional) == ([], [], [])
    assert len(other.token_ids) == 1


def test_a_choice_after_tokens_is_bare(front):
    state = [Role("user", "begin"), Text("q"), Role("user", "end"), Ids([70, 71])]
    scores = run(front.score(ScoreRequest(prompt=state, choices=["ab", "<|im_end|>"])))
    encode = front.tokenizer.encode
    assert [scored.token_ids for scored in scores.choices] == [encode("ab", "ids"), [2]]
    assert scores.rendered == ["<|im_start|>user\n", "<|im_end|>\n"]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([], "choices: expected a list of at least one"),
        ("abc", "choices: expected a list"),
        (None, "choices: expected a list"),
        (["a", 5], r"choices\[1\]: expected a string"),
        (["a", "\ud800"], r"choices\[1\].*surrogate"),
    ],
)
def test_wrong_choices_are_refused_by_place(front, choices, message):
    with pytest.raises(InvalidRequest, match=message):
        run(front.score(ScoreRequest(prompt="Hello", choices=choices)))


def test_choices_of_one_token_are_one_submission(front, log):
    """Their logprobs are read off one row; so are those of a choice that begins another."""
    letters = [chr(97 + at) for at in range(26)]
    prompt = [70, 71, 72]
    scores = run(front.score(ScoreRequest(prompt=prompt, choices=[*letters, "", "a", "ab"])))
    encode = front.tokenizer.encode
    tails = [encode(letter, "ids") for letter in letters]
    assert [scored.token_ids for scored in scores.choices[:26]] == tails
    assert scores.choices[-1].token_ids == encode("ab", "ids")
    (message,) = of_kind(log, Submit)
    stem = encode("ab", "ids")[:-1]
    assert message.prompt_ids == prompt + stem


def test_a_choice_may_fill_the_context(front):
    """Nothing is generated behind it."""
    room = front.limits.context_length
    choice = "a"
    fits = [70] * (room - 1)
    scores = run(front.score(ScoreRequest(prompt=fits, choices=[choice])))
    assert scores.prompt_tokens == room - 1
    with pytest.raises(Unservable, match=r"choices\[1\]: .* do not fit the context"):
        run(front.score(ScoreRequest(prompt=[*fits, 70], choices=["", choice])))


tails = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=12)
long_tails = st.lists(
    st.tuples(st.integers(0, 40), st.lists(st.integers(0, 2), max_size=4)), min_size=1, max_size=6
).map(lambda made: [[7] * sevens + rest for sevens, rest in made])


@given(st.sampled_from([[], [9], [9, 8, 9]]), tails | long_tails)
@settings(max_examples=300, deadline=None)
def test_each_token_of_a_tree_is_scored_once_where_it_stands(head, tails):
    tree = ChoiceTree(head, tails)
    read, computed = [], set()
    branches = list(tree.branches())
    for branch in branches:
        ids = head + branch.ids
        first = len(ids) + 1 - len(branch.targets)
        assert first >= 1  # nothing predicts the first token of all
        for at, tokens in enumerate(branch.targets):
            read += [(*ids[: first + at], token) for token in tokens]
        shared = first - 1  # rows before it are another branch's, or the head's
        assert tuple(ids[:shared]) in computed or shared <= len(head)
        computed |= {tuple(ids[:end]) for end in range(len(ids) + 1)}
        for node in branch.nodes:
            node.logprobs = dict.fromkeys(node.children, 0.0)
        assert branch.again < WORTH_A_STEP
    wanted = {
        (*head, *tail[: at + 1])
        for tail in tails
        for at in range(len(tail))
        if head or at  # nothing predicts it
    }
    assert len(read) == len(set(read)), "read twice"
    assert set(read) == wanted
    stems = [tuple(branch.ids) for branch in branches]
    assert not any(a != b and b[: len(a)] == a for a in stems for b in stems)
    assert len(set(stems)) == len(stems)
    for branch in branches:
        ids = head + branch.ids
        first = len(ids) + 1 - len(branch.nodes)
        for at, node in enumerate(branch.nodes):
            before = tuple(ids[: first + at])
            node.logprobs = {token: hash((*before, token)) for token in node.children}
    for tail in tails:
        assert tree.logprobs(tail) == [
            hash((*head, *tail[: at + 1])) if head or at else 0.0 for at in range(len(tail))
        ]
