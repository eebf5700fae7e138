"""The front's requests over a fake core: what it sends, refuses, ends and gives back."""

import asyncio
import importlib.util
import threading
from pathlib import Path

import pytest

from boughs.lang.backend import Finish, GenerateRequest, ScoreRequest, collect
from boughs.lang.errors import (
    EngineDied,
    InvalidRequest,
    Overloaded,
    RequestAborted,
    RequestTimeout,
    Unservable,
)
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Content, Ids, Role, Text
from boughs.runtime.messages import Abort, Submit
from boughs.runtime.messages import Finish as FinishMessage


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")
running_front, run, chunks_of, answers_of = (
    fronts.running_front, fronts.run, fronts.chunks_of, fronts.answers_of,
)  # fmt: skip
EOS = fake.EOS


@pytest.fixture(scope="module")
def shared():
    """A front that tests share, with its core; nothing may be left in it."""
    core = fake.FakeCore()
    with running_front(lambda: core) as front:
        yield front, core
        run(front.check())


@pytest.fixture
def front(shared):
    shared[1].log.clear()
    yield shared[0]
    assert run(shared[0].stats())["in_flight"] == 0
    run(shared[0].check())


@pytest.fixture
def log(shared):
    return shared[1].log


class Gate:
    """Holds a core between its steps."""

    def __init__(self):
        self.open = threading.Event()
        self.open.set()

    def __call__(self):
        assert self.open.wait(20)


def of_kind(log, kind):
    return [message for message in log if isinstance(message, kind)]


def greedy(**fields):
    return SamplingParams(**{"max_new_tokens": 4, **fields})


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


# ---- what is refused ----


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": []}, "prompt", "empty"),
        ({"prompt": [Text(""), Content(""), Ids([])]}, "prompt", "empty"),
        ({"prompt": None}, "prompt", "expected a string"),
        ({"prompt": [5, "x"]}, "prompt", r"prompt\[0\]"),
        ({"prompt": [True]}, "prompt", r"prompt\[0\]"),
        ({"prompt": [5, 384]}, "segments[0].ids", "384 is not in the vocabulary of 384"),
        ({"prompt": [-1]}, "segments[0].ids", "-1 is not in the vocabulary"),
        ({"prompt": "a\ud800"}, "segments[0]", "surrogate"),
        ({"prompt": [Role("user", "end")]}, "segments[0]", "no message is open"),
        ({"params": greedy(stop=("\ud800",))}, "stop", "surrogate"),
        ({"params": greedy(stop_regex=("\udc00",))}, "stop_regex", "surrogate"),
        ({"params": greedy(regex="\ud800")}, "regex", "surrogate"),
        ({"params": greedy(cache_salt="\ud800")}, "cache_salt", "surrogate"),
        ({"params": SamplingParams(temperature=-1)}, "temperature", "temperature"),
        ({"params": greedy(stop_regex=("(",))}, "stop_regex", r"\("),
        ({"params": greedy(stop_token_ids=(1, 999))}, "stop_token_ids", "999"),
        ({"params": greedy(logit_bias={-3: 1.0})}, "logit_bias", "-3"),
        ({"return_logprob": True, "logprob_start_len": 4}, "logprob_start_len", "past the prompt"),
        ({"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len", "at least -1"),
        ({"logprob_start_len": 0}, "logprob_start_len", "needs return_logprob"),
        ({"top_logprobs_num": 1}, "top_logprobs_num", "needs return_logprob"),
        ({"return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num", "from 0 to"),
        ({"return_logprob": True, "top_logprobs_num": 385}, "top_logprobs_num", "from 0 to 384"),
    ],
)
def test_a_wrong_request_is_refused_by_field_and_sends_nothing(front, log, fields, param, message):
    request = GenerateRequest(**{"prompt": "Hello", "params": greedy(), **fields})
    with pytest.raises(InvalidRequest, match=message) as caught:
        chunks_of(front, request)
    assert caught.value.param == param
    run(front.stats())
    assert not of_kind(log, Submit)


@pytest.mark.parametrize(
    ("limits", "length", "fits"),
    [
        ({"context": 64}, 63, True),
        ({"context": 64}, 64, False),
        ({"context": 512, "pool": 96}, 95, True),
        ({"context": 512, "pool": 96}, 96, False),
        ({"context": 512, "pool": 96}, 5000, False),
    ],
)
def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers(limits, length, fits):
    with running_front(lambda: fake.FakeCore(**limits)) as front:
        request = GenerateRequest(prompt=[5] * length, params=greedy())
        score = ScoreRequest(prompt=[5] * (length - 1), choices=["a"])
        if fits:
            answers_of(front, request)
            run(front.score(score))
            return
        with pytest.raises(Unservable, match=rf"{length}.*{min(limits.values())}"):
            answers_of(front, request)
        with pytest.raises(Unservable, match=rf"choices\[0\].*{length}|prompt.*{length - 1}"):
            run(front.score(score))


def test_two_running_requests_cannot_share_an_id():
    gate = Gate()
    with running_front(lambda: fake.FakeCore(pause=gate)) as front:
        request = GenerateRequest(prompt="Hello", params=greedy(max_new_tokens=50), rid="a")

        async def both():
            gate.open.clear()
            first = asyncio.create_task(collect(front.generate(request)))
            await asyncio.sleep(0)
            with pytest.raises(InvalidRequest, match="'a' runs already") as caught:
                await collect(front.generate(request))
            assert caught.value.param == "rid"
            with pytest.raises(InvalidRequest, match="runs already"):
                await front.score(ScoreRequest(prompt="Hello", choices=["x"], rid="a"))
            gate.open.set()
            return await first

        assert run(both())[0].completion_tokens == 50
        assert answers_of(front, request)[0].completion_tokens == 50


def test_more_than_may_wait_are_told_to_try_again():
    gate = Gate()
    limits = {"max_running_requests": 2, "max_queued_requests": 3}
    with running_front(lambda: fake.FakeCore(pause=gate), **limits) as front:

        async def crowd():
            gate.open.clear()
            tasks = [
                asyncio.create_task(
                    collect(front.generate(GenerateRequest(prompt="Hello", params=greedy())))
                )
                for _ in range(8)
            ]
            await asyncio.sleep(0.05)
            gate.open.set()
            return await asyncio.gather(*tasks, return_exceptions=True)

        results = run(crowd())
        assert sum(isinstance(result, Overloaded) for result in results) == 3
        assert sum(isinstance(result, list) for result in results) == 5
        with pytest.raises(Overloaded):
            chunks_of(front, GenerateRequest(prompt="Hello", params=greedy(n=6)))
        chunks_of(front, GenerateRequest(prompt="Hello", params=greedy(n=5)))


# ---- how it ends ----


def test_closing_the_iterator_aborts_every_choice():
    core = fake.FakeCore()
    with running_front(lambda: core) as front:

        async def leave():
            params = greedy(max_new_tokens=400, n=3)
            chunks = front.generate(GenerateRequest(prompt="Hello", params=params))
            await anext(chunks)
            await chunks.aclose()
            return await front.stats()

        stats = run(leave())
        assert (stats["running"], stats["in_flight"], stats["requests"]) == (0, 0, 0)
        assert {m.key for m in of_kind(core.log, Abort)} == {
            m.key for m in of_kind(core.log, Submit)
        }


def test_a_choice_that_ended_unread_is_confirmed_too():
    """The core keeps the pages of what it ended until it is told where the text ended."""
    core = fake.FakeCore(burst=100)
    with running_front(lambda: core) as front:

        async def leave():
            params = greedy(max_new_tokens=50, n=3, stop=("@@@",))
            chunks = front.generate(GenerateRequest(prompt="Hello", params=params))
            await anext(chunks)
            await chunks.aclose()
            await front.stats()

        run(leave())
        assert (len(of_kind(core.log, Abort)), len(of_kind(core.log, FinishMessage))) == (2, 1)
        run(front.check())


def test_a_stop_pattern_that_explodes_ends_its_request_alone():
    core = fake.FakeCore(lambda *_: [68] * 400, burst=40)  # the letter "b"
    with running_front(lambda: core) as front:
        params = greedy(max_new_tokens=400, stop_regex=("(b|bb)+x",))
        with pytest.raises(InvalidRequest, match="takes too long"):
            chunks_of(front, GenerateRequest(prompt="Hello", params=params))
        run(front.check())
        assert run(front.stats())["in_flight"] == 0


def test_a_long_prompt_is_tokenized_aside_and_a_hopeless_one_not_at_all():
    with running_front(lambda: fake.FakeCore(context=60_000, pool=60_000)) as front:
        (answer,) = answers_of(front, GenerateRequest(prompt="ab" * 20_000, params=greedy()))
        assert answer.prompt_tokens > 10_000

        async def hopeless():
            front.tokenizer.encode = None
            await collect(front.generate(GenerateRequest(prompt="ab" * 10_000_000)))

        with pytest.raises(Unservable, match="20000000 characters"):
            run(hopeless())


def test_a_fork_of_the_process_has_no_engine(front, monkeypatch):
    monkeypatch.setattr(front._core, "_owner", 1)
    with pytest.raises(EngineDied, match="fork"):
        run(front.stats())
    with pytest.raises(EngineDied, match="fork"):
        run(collect(front.generate(GenerateRequest(prompt="Hello"))))
    monkeypatch.undo()


def test_a_cancelled_reader_aborts_its_request():
    core = fake.FakeCore()
    with running_front(lambda: core) as front:

        async def leave():
            request = GenerateRequest(prompt="Hello", params=greedy(max_new_tokens=400))
            task = asyncio.create_task(collect(front.generate(request)))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return await front.stats()

        assert run(leave())["running"] == 0


def test_an_iterator_that_nobody_reads_runs_nothing(front, log):
    async def make():
        chunks = front.generate(GenerateRequest(prompt="Hello", params=greedy()))
        await chunks.aclose()

    run(make())
    assert not of_kind(log, Submit)


def test_an_abort_ends_the_request_with_exactly_this_id():
    with running_front(fake.FakeCore) as front:

        async def both():
            async def read(rid):
                params = greedy(max_new_tokens=450, n=2, stop=("@@@",))
                return await collect(
                    front.generate(GenerateRequest(prompt="Hello", params=params, rid=rid))
                )

            tasks = {rid: asyncio.create_task(read(rid)) for rid in ("a", "ab")}
            await asyncio.sleep(0.002)
            assert front.abort("a")
            assert not front.abort("b")
            results = {rid: await task for rid, task in tasks.items()}
            assert not front.abort("a")
            return results, await front.stats()

        results, stats = run(both())
        assert stats["running"] == 0
        for answer in results["a"]:
            assert answer.finish == Finish("abort", message="the request was aborted")
            assert answer.completion_tokens == len(answer.output_ids) < 450
            assert answer.segments == ([Ids(answer.output_ids)] if answer.output_ids else [])
        assert [answer.finish.type for answer in results["ab"]] == ["length", "length"]
        run(front.check())


def test_abort_all_ends_generations_and_scores():
    gate = Gate()
    with running_front(lambda: fake.FakeCore(pause=gate)) as front:

        async def all_of_them():
            gate.open.clear()
            tasks = [
                asyncio.create_task(
                    collect(front.generate(GenerateRequest(prompt="Hello", params=greedy())))
                ),
                asyncio.create_task(front.score(ScoreRequest(prompt="Hello", choices=["x"]))),
            ]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert front.abort_all() == 2
            results = await asyncio.gather(*tasks, return_exceptions=True)
            gate.open.set()
            return results, await front.stats()

        (answers, error), stats = run(all_of_them())
        assert answers[0].finish.type == "abort"
        assert isinstance(error, RequestAborted)
        assert stats["in_flight"] == 0


def test_a_request_that_takes_too_long_is_ended():
    gate = Gate()
    core = fake.FakeCore(pause=gate)
    with running_front(lambda: core) as front:
        gate.open.clear()
        with pytest.raises(RequestTimeout, match=r"timeout=0\.05 seconds"):
            chunks_of(front, GenerateRequest(prompt="Hello", params=greedy(timeout=0.05)))
        gate.open.set()
        assert run(front.stats())["running"] == 0
        assert len(of_kind(core.log, Abort)) == 1


def test_closing_the_engine_ends_what_runs_and_can_be_repeated():
    gate = Gate()
    with running_front(lambda: fake.FakeCore(pause=gate)) as front:

        async def close():
            gate.open.clear()
            task = asyncio.create_task(
                collect(front.generate(GenerateRequest(prompt="Hello", params=greedy())))
            )
            await asyncio.sleep(0)
            gate.open.set()
            await front.close()
            await front.close()
            return await asyncio.gather(task, return_exceptions=True)

        (error,) = run(close())
        assert isinstance(error, RequestAborted)
        assert not run(front.health())


def test_an_error_of_the_core_is_raised_to_the_one_who_asked():
    class Refusing(fake.FakeCore):
        def take(self, submit):
            if submit.params.regex is not None:
                self.refused = submit.key
            super().take(submit)

        def step(self, run):
            if run.submit.params.regex is None:
                return super().step(run)
            del self.running[run.submit.key]
            return fake.Output(key=run.submit.key, error=("GrammarError", "regex: no ("))

    with running_front(Refusing) as front:
        from boughs.lang.errors import GrammarError

        with pytest.raises(GrammarError, match=r"regex: no \("):
            chunks_of(front, GenerateRequest(prompt="Hello", params=greedy(regex="(", n=2)))
        assert run(front.stats())["running"] == 0


# ---- the engine ----


def test_the_cache_is_not_flushed_while_requests_run():
    gate = Gate()
    with running_front(lambda: fake.FakeCore(pause=gate)) as front:

        async def flush():
            gate.open.clear()
            task = asyncio.create_task(
                collect(front.generate(GenerateRequest(prompt="Hello", params=greedy())))
            )
            await asyncio.sleep(0)
            flushed = asyncio.create_task(front.flush_cache())
            await asyncio.sleep(0)
            gate.open.set()
            with pytest.raises(InvalidRequest, match="requests run"):
                await flushed
            await task
            await front.flush_cache()

        run(flush())
        answer = answers_of(front, GenerateRequest(prompt="Hello", params=greedy()))[0]
        assert answer.cached_tokens == 0


def test_a_core_that_does_not_answer_is_not_healthy():
    with running_front(lambda: fake.FakeCore(mute=True)) as front:
        assert not run(front.health(0.05))
    with running_front(fake.FakeCore) as front:
        assert run(front.health())


def test_server_info_has_settings_limits_and_counters(front):
    info = run(front.get_server_info())
    assert info["model_path"] == front.model_path
    assert info["context_length"] == 512
    assert info["max_running_requests"] == 256
    assert info["stats"]["in_flight"] == 0


# ---- score ----


def test_choices_are_scored_from_the_border_on(front, log):
    prompt, choices = "Question: yes", [" yes", " no", " yesterday"]
    scores = run(front.score(ScoreRequest(prompt=prompt, choices=choices)))
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
