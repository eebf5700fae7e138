"""Forward steps, and each token's characters, in the front: of stops, lives, ranks and scores."""

from types import SimpleNamespace

from boughs.lang.sampling import SamplingParams
from boughs.runtime.front.output import Asked, ChoiceOutput
from boughs.runtime.front.submission import Submission
from boughs.runtime.messages import Output, Submit


class Letters:
    """A tokenizer whose tokens are letters; token 0 is special."""

    special_ids = frozenset([0])
    eos_token_ids = (0,)

    def text_of(self, token):
        return chr(token)


def choice(**params):
    """An output that grows, of which the detokenizer takes letters."""
    made = SamplingParams.from_mapping(params)
    one = ChoiceOutput(Letters(), Asked("r", [1], made))
    one._text = SimpleNamespace(
        add=lambda token: "" if token == 0 else chr(token), end=lambda: "", incomplete=False
    )
    return one


def test_steps_are_those_up_to_the_token_that_an_answer_ends_with():
    one = choice(stop="c")
    first = one.add(Output(key=1, ids=[97], forward_steps=3), 0)
    assert (first.forward_steps, first.token_chars) == (3, None)
    last = one.add(Output(key=1, ids=[98, 99, 100], forced=2, forward_steps=4), 0)
    assert last.text == "b"
    assert (last.forward_steps, last.completion_tokens, last.forced_tokens) == (4, 3, 1)
    assert (last.token_chars, last.forced_at) == ([1, 1, 1], [2])


def test_an_answer_without_tokens_has_the_steps_of_its_prompt():
    last = choice(max_new_tokens=0).add(Output(key=1, forward_steps=5, finish="length"), 0)
    assert (last.forward_steps, last.token_chars, last.forced_at) == (5, [], [])


def test_a_token_that_is_not_shown_has_no_characters():
    last = choice().add(Output(key=1, ids=[97, 0], forward_steps=2, finish="stop", matched=0), 0)
    assert (last.text, last.token_chars) == ("a", [1, 0])


def test_the_steps_of_all_lives_of_a_core_count():
    got = []
    submit = Submit(key=1, prompt_ids=[1], params=SamplingParams(max_new_tokens=9))
    submission = Submission(submit, got.append)
    submission.next_message()
    for steps in (2, 3):
        submission.take(Output(key=1, ids=[7], forward_steps=steps))
    assert submission.next_message().output_ids == [7, 7]
    submission.take(Output(key=1, ids=[7], forward_steps=1))
    submission.next_message()
    submission.take(Output(key=1, ids=[7], forward_steps=2))
    assert [output.forward_steps for output in got] == [2, 3, 4, 6]
