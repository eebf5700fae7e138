"""The front's requests over a fake core: what it sends, and what it gives back."""

import importlib.util
from pathlib import Path

import pytest

from boughs.lang.requests import GenerateRequest
from boughs.lang.results import Finish
from boughs.lang.segments import Content, Ids, Role, Text
from boughs.runtime.messages import Abort, Finish as FinishMessage, Submit


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")
shared, front, log = fronts.shared, fronts.front, fronts.log
running_front = fronts.running_front
run = fronts.run
chunks_of = fronts.chunks_of
answers_of = fronts.answers_of
greedy = fronts.greedy
of_kind = fronts.of_kind
EOS = fake.EOS


# ---- what is sent ----


def test_an_answer_has_text_tokens_and_counts(front):
    (answer,) = answers_of(front, GenerateRequest(prompt="Hello", params=greedy(), rid="me"))
    assert answer.rid == "me"
    assert answer.output_ids == fake.counting(front.tokenizer.encode("Hello", "start"), 0)[:4]
    assert answer.text == "".join(map(front.tokenizer.text_of, answer.output_ids))
    assert (answer.prompt_tokens, answer.completion_tokens) == (4, 4)
    assert answer.finish == Finish("length", length=4)
    assert answer.segments == [Ids(answer.output_ids)]
    again = answers_of(front, GenerateRequest(prompt="Hello", params=greedy()))[0]
    assert again.cached_tokens == 3


@pytest.mark.parametrize(
    "prompt", ["Hello", [5, 6, 7], [Text("Hel"), Content("lo")], [Ids([5, 6]), Text("x")]]
)
def test_every_form_of_prompt_runs(front, log, prompt):
    answers_of(front, GenerateRequest(prompt=prompt, params=greedy()))
    (sent,) = of_kind(log, Submit)
    want = {
        str: front.tokenizer.encode("Hello", "start"),
        int: [5, 6, 7],
        Text: front.tokenizer.encode("Hello", "start"),
        Ids: [5, 6, *front.tokenizer.encode("x", "ids")],
    }[str if isinstance(prompt, str) else type(prompt[0])]
    assert sent.prompt_ids == want


def test_n_choices_are_n_submissions_with_one_seed(front, log):
    params = greedy(n=3, stop=("@",), stop_regex=("@+",), timeout=20.0, cache_salt="salt")
    answers = answers_of(front, GenerateRequest(prompt="Hello", params=params))
    assert [answer.index for answer in answers] == [0, 1, 2]
    assert len({answer.text for answer in answers}) == 3
    sent = of_kind(log, Submit)
    assert [message.choice for message in sent] == [0, 1, 2]
    assert len({message.params.seed for message in sent}) == 1
    assert len({message.key for message in sent}) == 3
    for message in sent:
        assert (message.params.n, message.params.stop, message.params.stop_regex) == (1, (), ())
        assert message.params.timeout is None
        assert message.namespace == "salt"
        assert message.confirm


def test_a_seed_is_drawn_where_none_is_given(front, log):
    for seed in (None, None, 7):
        answers_of(front, GenerateRequest(prompt="Hello", params=greedy(seed=seed)))
    first, second, given = [message.params.seed for message in of_kind(log, Submit)]
    assert first != second
    assert given == 7
    assert 0 <= first < 2**63


@pytest.mark.parametrize(("asked", "sent"), [(None, 508), (508, 508), (10**9, 508), (5, 5)])
def test_an_output_ends_at_the_context(front, log, asked, sent):
    prompt = front.tokenizer.encode("Hello", "start")
    chunks = chunks_of(front, GenerateRequest(prompt=prompt, params=greedy(max_new_tokens=asked)))
    assert of_kind(log, Submit)[0].params.max_new_tokens == sent
    assert chunks[-1].finish == Finish("length", length=sent)


def test_prefill_only_answers_with_no_token(front):
    params = greedy(max_new_tokens=0)
    (answer,) = answers_of(front, GenerateRequest(prompt="Hello", params=params))
    assert (answer.text, answer.output_ids, answer.prompt_tokens) == ("", [], 4)
    assert answer.finish == Finish("length", length=0)


def test_a_stop_is_told_to_the_core_with_the_final_length(front, log):
    ids = fake.counting(front.tokenizer.encode("Hello", "start"), 0)
    texts = [front.tokenizer.text_of(id_) for id_ in ids]
    params = greedy(max_new_tokens=50, stop=(texts[4] + texts[5],))
    (answer,) = answers_of(front, GenerateRequest(prompt="Hello", params=params))
    assert answer.text == "".join(texts[:4])
    assert answer.output_ids == ids[:6]
    assert answer.finish == Finish("stop", matched=texts[4] + texts[5])
    assert answer.segments == [Ids(ids[:4])]
    run(front.stats())  # the core has read all that was sent before
    (sent,) = of_kind(log, FinishMessage)
    assert (sent.key, sent.length) == (of_kind(log, Submit)[0].key, 6)
    assert not of_kind(log, Abort)


def test_an_output_that_ends_without_its_stop_is_confirmed_too(front, log):
    answers_of(front, GenerateRequest(prompt="Hello", params=greedy(stop=("@",), n=2)))
    run(front.stats())
    assert [message.length for message in of_kind(log, FinishMessage)] == [4, 4]


def test_a_special_token_as_stop_string_is_a_stop_token(front, log):
    params = greedy(stop=("<|im_start|>", "x"), stop_token_ids=(9,))
    answers_of(front, GenerateRequest(prompt="Hello", params=params))
    assert of_kind(log, Submit)[0].params.stop_token_ids == (9, 1)


def test_the_end_of_text_is_named_by_its_token():
    script = [70, 71, EOS, 72]
    with running_front(lambda: fake.FakeCore(lambda *_: script)) as front:
        (answer,) = answers_of(front, GenerateRequest(prompt="Hello", params=greedy()))
        assert (answer.output_ids, answer.finish) == (script[:3], Finish("stop", matched=EOS))
        assert answer.segments == [Ids([70, 71])]
        params = greedy(ignore_eos=True)
        (answer,) = answers_of(front, GenerateRequest(prompt="Hello", params=params))
        assert answer.output_ids == script


def test_the_next_turn_goes_on_from_the_tokens_of_the_last(front, log):
    state = [Role("user", "begin"), Content("hi <|im_end|>"), Role("user", "end")]
    state.append(Role("assistant", "begin"))
    for _ in range(3):
        (answer,) = answers_of(front, GenerateRequest(prompt=state, params=greedy(stop=("z",))))
        sent = of_kind(log, Submit)[-1].prompt_ids
        assert answer.rendered[:2] == ["<|im_start|>user\n", "<|im_end|>\n"]
        assert len(answer.rendered) == sum(isinstance(s, Role) for s in state)
        state = [*state, *answer.segments, Role("assistant", "end"), Role("user", "begin")]
        state += [Text("more"), Role("user", "end"), Role("assistant", "begin")]
        answers_of(front, GenerateRequest(prompt=state, params=greedy(max_new_tokens=0)))
        follows = of_kind(log, Submit)[-1].prompt_ids
        assert follows[: len(sent) + 4] == sent + answer.output_ids
    assert sent.count(2) == 1 + 4  # the user's own "<|im_end|>" is none of them


# ---- logprobs ----


def test_logprobs_have_texts_and_places(front):
    prompt = [70, 71, 72, 73]
    request = GenerateRequest(
        prompt=prompt, params=greedy(), return_logprob=True, logprob_start_len=1, top_logprobs_num=2
    )
    (answer,) = answers_of(front, request)
    text_of = front.tokenizer.text_of
    assert [(e.logprob, e.token_id, e.text) for e in answer.prompt_logprobs] == [
        (fake.logprob(at, prompt[at]), prompt[at], text_of(prompt[at])) for at in (1, 2, 3)
    ]
    ids = answer.output_ids
    assert [(e.logprob, e.token_id, e.text) for e in answer.logprobs] == [
        (fake.logprob(4 + at, id_), id_, text_of(id_)) for at, id_ in enumerate(ids)
    ]
    assert answer.logprobs[0].top == [
        (fake.logprob(4, ids[0]), ids[0], text_of(ids[0])),
        (fake.logprob(4, ids[0]) - 1, ids[0] + 1, text_of(ids[0] + 1)),
    ]


def test_the_first_token_of_a_prompt_has_no_logprob(front):
    request = GenerateRequest(
        prompt=[70, 71], params=greedy(max_new_tokens=0), return_logprob=True, logprob_start_len=0
    )
    (answer,) = answers_of(front, request)
    assert [entry.logprob for entry in answer.prompt_logprobs] == [None, fake.logprob(1, 71)]
    assert answer.logprobs == []


def test_without_logprobs_there_are_none(front):
    (answer,) = answers_of(front, GenerateRequest(prompt="Hello", params=greedy()))
    assert (answer.logprobs, answer.prompt_logprobs) == (None, None)
