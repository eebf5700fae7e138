"""Scoring of choices over a fake core."""

import importlib.util
from pathlib import Path

import pytest

from boughs.lang.backend import ScoreRequest
from boughs.lang.errors import (
    InvalidRequest,
)
from boughs.lang.segments import Ids, Role, Text
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
    assert {message.prompt_logprobs_from for message in of_kind(log, Submit)} == {border}
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
        (["a", 5], r"choices\[1\]: expected a string"),
        (["a", "\ud800"], r"choices\[1\].*surrogate"),
    ],
)
def test_wrong_choices_are_refused_by_place(front, choices, message):
    with pytest.raises(InvalidRequest, match=message):
        run(front.score(ScoreRequest(prompt="Hello", choices=choices)))
