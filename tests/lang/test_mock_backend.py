"""The mock backend: what it says, records and counts."""

import pytest

import boughs
from boughs.lang import loop
from boughs.lang.errors import BackendError, InvalidRequest, RequestAborted
from boughs.lang.requests import GenerateRequest, ScoreRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Content, Ids, Role, Text
from boughs.testing import MockBackend


def ask(backend, prompt="p", **fields):
    params = SamplingParams(
        **{k: v for k, v in fields.items() if k in ("n", "max_new_tokens", "cache_salt")}
    )
    rest = {k: v for k, v in fields.items() if k not in ("n", "max_new_tokens", "cache_salt")}
    return loop.run(
        collect(backend.generate(GenerateRequest(prompt=prompt, params=params, **rest)))
    )


def test_answers_in_order_and_an_error_when_none_is_left():
    backend = MockBackend(["a", ValueError("b"), ["c", "d"], "e"])
    assert ask(backend)[0].text == "a"
    with pytest.raises(ValueError, match="b"):
        ask(backend)
    assert [answer.text for answer in ask(backend, n=2)] == ["c", "d"]
    assert [answer.text for answer in ask(backend, n=2)] == ["e", "e"]
    with pytest.raises(BackendError, match="no answer is left for 'the prompt'"):
        ask(backend, "the prompt")


def test_a_function_sees_the_whole_call():
    backend = MockBackend(lambda call: f"{call.text}|{call.request.rid}|{call.choices}")
    state = [Role("user", "begin"), Content("hi"), Role("user", "end"), Text("A"), Ids([66])]
    (answer,) = ask(backend, state, rid="r")
    assert answer.text == "<|im_start|>user\nhi<|im_end|>\nAB|r|None"
    assert answer.rendered == ["<|im_start|>user\n", "<|im_end|>\n"]
    assert backend.calls[0].text == "<|im_start|>user\nhi<|im_end|>\nAB"


def test_pieces_tokens_and_segments():
    async def chunks():
        request = GenerateRequest(prompt="p")
        return [c async for c in MockBackend("abcdefg", piece=3).generate(request)]

    made = loop.run(chunks())
    assert [c.text for c in made] == ["abc", "def", "g"]
    assert [c.completion_tokens for c in made] == [3, 6, 7]
    assert [c.finish is not None for c in made] == [False, False, True]
    assert made[-1].segments == [Ids(list(map(ord, "abcdefg")))]


def test_a_prefill_is_recorded_and_not_answered():
    backend = MockBackend(["only one"])
    (answer,) = ask(backend, max_new_tokens=0)
    assert (answer.text, answer.segments, answer.finish.type) == ("", [], "length")
    assert backend.calls[0].prefills
    assert ask(backend)[0].text == "only one"


def test_what_prompts_share_counts_as_cached():
    backend = MockBackend("xyz")
    assert ask(backend, "abc")[0].cached_tokens == 0
    assert ask(backend, "abcxyz!")[0].cached_tokens == 6
    assert ask(backend, "abd")[0].cached_tokens == 2
    assert ask(backend, "abc")[0].cached_tokens == 2  # one token is always computed
    assert ask(backend, "abc", cache_salt="s")[0].cached_tokens == 0
    loop.run(backend.flush_cache())
    assert ask(backend, "abc")[0].cached_tokens == 0


def score(backend, choices, **fields):
    return loop.run(backend.score(ScoreRequest(prompt="p", choices=choices, **fields)))


def test_a_select_is_answered_by_a_choice_or_by_means():
    scores = score(MockBackend(["b"]), ["a", "b"])
    assert scores.choices[1].logprobs > scores.choices[0].logprobs
    scores = score(MockBackend([[-1.0, -2.0]]), ["a", "bc"], unconditional=True)
    assert [c.logprobs for c in scores.choices] == [[-1.0], [-2.0, -2.0]]
    assert scores.choices[0].unconditional is not None
    assert score(MockBackend("ok"), ["a", "b"]).choices[0].logprobs == [-0.5]
    with pytest.raises(InvalidRequest, match="none of the choices"):
        score(MockBackend(["c"]), ["a", "b"])
    with pytest.raises(InvalidRequest, match="does not answer a gen with n=3"):
        ask(MockBackend([["a", "b"]]), n=3)


def test_what_is_left_early_is_recorded():
    async def leave(backend):
        chunks = backend.generate(GenerateRequest(prompt="p", rid="r"))
        await anext(chunks)
        await chunks.aclose()

    backend = MockBackend("abcdefg")
    loop.run(leave(backend))
    assert backend.aborted == ["r"]


def test_an_error_class_of_ours_may_be_said_too():
    program = boughs.function(lambda s: s.__iadd__(boughs.gen("x")) and None)
    with pytest.raises(RequestAborted):
        program.run(backend=MockBackend(lambda _: RequestAborted("gone")))


@pytest.mark.parametrize("options", [{"piece": 0}, {"delay": -1}])
def test_wrong_options(options):
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        MockBackend(**options)
