"""The core dies, another takes over, and nobody who reads can tell."""

import asyncio
import importlib.util
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.errors import (
    EngineDied,
    RequestAborted,
    RequestTimeout,
    Unservable,
)
from boughs.lang.requests import GenerateRequest, ScoreRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.runtime.front import link as links, supervisor
from boughs.runtime.messages import Submit


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")
running_front, run, answers_of = fronts.running_front, fronts.run, fronts.answers_of

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class Cores:
    """Makes one core after the other, each from its own arguments, the last ones from none."""

    def __init__(self, *plans):
        self.plans = list(plans)
        self.made = []

    def __call__(self):
        plan = self.plans.pop(0) if self.plans else {}
        self.made.append(fake.FakeCore(log=[], **plan))
        return self.made[-1]


def requests():
    """Requests of every kind, as functions of the front that give plain data."""
    params = SamplingParams(max_new_tokens=9, n=2, stop=("#z",), stop_regex=("~+",))
    logprobs = GenerateRequest(
        prompt=[70, 71, 72],
        params=SamplingParams(max_new_tokens=6, seed=5),
        return_logprob=True,
        logprob_start_len=0,
        top_logprobs_num=1,
        rid="b",
    )
    return [
        lambda front: collect(front.generate(GenerateRequest(prompt="Hi", params=params, rid="a"))),
        lambda front: collect(front.generate(logprobs)),
        lambda front: front.score(
            ScoreRequest(prompt="Hello", choices=[" a", " bcd"], unconditional=True)
        ),
    ]


def all_of(front):
    async def gather():
        return await asyncio.gather(*(request(front) for request in requests()))

    return run(gather())


@pytest.fixture(scope="module")
def undisturbed():
    with running_front(fake.FakeCore) as front:
        return without_chance(all_of(front))


def without_chance(results):
    """Which of the requests came first at the fake's cache is chance; a burst is one step."""
    *answers, scores = results
    for group in answers:
        for answer in group:
            answer.cached_tokens = answer.forward_steps = 0
    scores.cached_tokens = scores.forward_steps = 0
    return results


@given(
    deaths=st.lists(st.integers(0, 24), min_size=1, max_size=2),
    burst=st.integers(1, 4),
)
@settings(max_examples=40, deadline=None)
def test_answers_are_those_of_a_core_that_lives(undisturbed, deaths, burst):
    cores = Cores(*({"die_after": after, "burst": burst} for after in deaths))
    with running_front(cores) as front:
        assert without_chance(all_of(front)) == undisturbed
        assert run(front.stats())["in_flight"] == 0
        run(front.check())


def test_what_was_sent_is_not_sent_again_and_counts_stay():
    cores = Cores({"die_after": 3}, {"die_after": 2})
    with running_front(cores) as front:
        request = GenerateRequest(
            prompt=[70, 71, 72],
            params=SamplingParams(max_new_tokens=8),
            return_logprob=True,
            logprob_start_len=1,
        )
        chunks = fronts.chunks_of(front, request)
        assert [len(chunk.output_ids) for chunk in chunks] == [1] * 8
        assert [chunk.completion_tokens for chunk in chunks] == list(range(1, 9))
        assert [chunk.prompt_logprobs is not None for chunk in chunks] == [True] + [False] * 7
        assert {chunk.cached_tokens for chunk in chunks} == {0}
        assert [chunk.forward_steps for chunk in chunks] == list(range(1, 9))  # of all three
        sent = [[m for m in core.log if isinstance(m, Submit)] for core in cores.made]
        assert [len(messages) for messages in sent] == [1, 1, 1]
        first, second, third = (messages[0] for messages in sent)
        assert (len(first.output_ids), len(second.output_ids), len(third.output_ids)) == (0, 3, 5)
        assert third.output_ids == [id_ for chunk in chunks[:5] for id_ in chunk.output_ids]
        assert (first.prompt_logprobs_from, second.prompt_logprobs_from) == (1, None)
        assert first.params == second.params == third.params
        assert run(front.stats())["restarts"] == 2


def test_what_a_new_core_can_serve_is_what_counts():
    cores = Cores({"die_on": 300}, {"context": 64})
    with running_front(cores) as front:
        answers_of(front, GenerateRequest(prompt=[300], params=SamplingParams(max_new_tokens=2)))
        assert front.limits.context_length == 64
        with pytest.raises(Unservable, match="context of 64"):
            answers_of(front, GenerateRequest(prompt=[70] * 64))


def test_a_call_that_waits_is_asked_again():
    cores = Cores({"mute": True, "die_on": 300})
    with running_front(cores) as front:

        async def ask():
            stats = asyncio.create_task(front.stats())
            await asyncio.sleep(0.01)
            answers = await collect(front.generate(GenerateRequest(prompt=[300])))
            return await stats, answers

        stats, answers = run(ask())
        assert stats["restarts"] == 1
        assert answers[0].finish.type == "length"


def test_a_request_that_kills_cores_is_given_up_and_the_others_go_on():
    cores = Cores(*[{"die_on": 300}] * 8)
    with running_front(cores) as front:

        async def both():
            good = asyncio.create_task(
                collect(front.generate(GenerateRequest(prompt=[70], rid="good")))
            )
            await good
            bad = front.generate(GenerateRequest(prompt=[300], rid="bad"))
            with pytest.raises(EngineDied, match=r"3 times while it ran this request.*token 300"):
                await collect(bad)
            return await collect(front.generate(GenerateRequest(prompt=[70])))

        assert run(both())[0].completion_tokens == 128
        assert len(cores.made) == 4


@given(
    bad=st.sets(st.integers(0, 5), max_size=3),
    late=st.lists(st.booleans(), min_size=6, max_size=6),
    burst=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_only_the_requests_that_kill_cores_fail(bad, late, burst):
    """However many there are, and whoever comes while they are looked for."""
    cores = Cores(*[{"die_on": 300, "burst": burst}] * 20)
    params = SamplingParams(max_new_tokens=9, ignore_eos=True)

    async def ask(front, at):
        if late[at]:
            await asyncio.sleep(0.005 * at)
        prompt = [300, 70 + at] if at in bad else [70 + at]
        return await collect(front.generate(GenerateRequest(prompt=prompt, params=params)))

    async def ask_all(front):
        return await asyncio.gather(*(ask(front, at) for at in range(6)), return_exceptions=True)

    with running_front(cores) as front:
        results = run(ask_all(front))
        for at, result in enumerate(results):
            if at in bad:
                assert isinstance(result, EngineDied)
                assert "with no other beside it" in str(result)
            else:
                assert result[0].output_ids == fake.counting([70 + at], 0)[:9]
        assert run(front.stats())["in_flight"] == 0
        run(front.check())


def test_a_suspect_that_is_aborted_lets_the_next_be_tried():
    cores = Cores(*[{"die_on": 300}] * 2, {"pause": lambda: time.sleep(0.2)})
    params = SamplingParams(max_new_tokens=5, ignore_eos=True)

    async def leave(front):
        bad = asyncio.create_task(collect(front.generate(GenerateRequest(prompt=[300]))))
        good = asyncio.create_task(
            collect(front.generate(GenerateRequest(prompt=[70], params=params)))
        )
        while len(cores.made) < 3 or not cores.made[-1].log:  # noqa: ASYNC110 -- no event
            await asyncio.sleep(0.002)
        bad.cancel()
        return (await good)[0].output_ids

    with running_front(cores) as front:
        assert run(leave(front)) == fake.counting([70], 0)[:5]


def test_after_too_many_deaths_without_a_cause_everything_fails_and_says_why():
    class Dying(fake.FakeCore):
        """Ends by itself, whatever it is given."""

        def take(self, submit):
            pass

        def call(self, call):
            raise fake.Crash("no reason")

    made = []

    def cores():
        made.append(Dying())
        return made[-1]

    with running_front(cores) as front:
        with pytest.raises(EngineDied, match=r"4 times within 60 seconds.*no reason"):
            run(front.stats())
        for ask in (
            front.stats(),
            front.flush_cache(),
            front.score(ScoreRequest(prompt="a", choices=["b"])),
            collect(front.generate(GenerateRequest(prompt=[70]))),
        ):
            with pytest.raises(EngineDied, match="does not run"):
                run(ask)
        assert not run(front.health())
        assert len(made) == 4


def test_deaths_far_apart_are_forgiven(monkeypatch):
    monkeypatch.setattr(supervisor, "RESTART_WINDOW", 0.0)
    cores = Cores(*[{"die_after": 1}] * 7)
    with running_front(cores) as front:
        (answer,) = answers_of(
            front, GenerateRequest(prompt=[70], params=SamplingParams(max_new_tokens=9))
        )
        assert answer.output_ids == fake.counting([70], 0)[:9]
        assert len(cores.made) == 8


def test_what_comes_while_there_is_no_core_waits_for_one():
    start = threading.Event()

    class Slow(fake.FakeCore):
        def run(self, receive, send):
            assert start.wait(20)
            super().run(receive, send)

    made = []

    def cores():
        made.append(fake.FakeCore(die_on=300) if not made else Slow())
        return made[-1]

    with running_front(cores) as front:

        async def ask():
            bad = asyncio.create_task(collect(front.generate(GenerateRequest(prompt=[300]))))
            while await front.health(0.01):  # noqa: ASYNC110 -- there is no event to wait for
                await asyncio.sleep(0.001)
            late = asyncio.create_task(collect(front.generate(GenerateRequest(prompt=[70]))))
            gone = asyncio.create_task(collect(front.generate(GenerateRequest(prompt=[71]))))
            await asyncio.sleep(0)
            gone.cancel()
            start.set()
            return await bad, await late

        bad, late = run(ask())
        assert (bad[0].completion_tokens, late[0].completion_tokens) == (128, 128)
        prompts = [m.prompt_ids for m in made[1].log if isinstance(m, Submit)]
        assert prompts == [[300], [70]]


def test_closing_while_a_core_is_replaced_ends_both():
    started = threading.Event()

    class Never(fake.FakeCore):
        def run(self, receive, send):
            started.set()
            while not any(isinstance(m, fake.Shutdown) for m in receive(None)):
                pass

    made = []

    def cores():
        made.append(fake.FakeCore(die_on=300) if not made else Never())
        return made[-1]

    with running_front(cores) as front:

        async def ask():
            task = asyncio.create_task(collect(front.generate(GenerateRequest(prompt=[300]))))
            await asyncio.to_thread(started.wait, 20)
            await front.close()
            return await asyncio.gather(task, return_exceptions=True)

        (error,) = run(ask())
        assert isinstance(error, RequestAborted)


def test_a_core_that_is_stuck_is_replaced_and_one_that_is_slow_is_not(monkeypatch):
    monkeypatch.setattr(supervisor, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(links, "SHUTDOWN_SECONDS", 0.1)
    wait = threading.Event()
    cores = Cores({"pause": lambda: wait.wait(20)})
    try:
        with running_front(cores) as front:
            (answer,) = answers_of(front, GenerateRequest(prompt=[70]))
            assert answer.completion_tokens == 128
            assert run(front.stats())["restarts"] == 1
    finally:
        wait.set()

    class Slow(fake.FakeCore):
        """Answers calls, and makes no token for long."""

        def run(self, receive, send):
            asked = 0

            def count(timeout):
                nonlocal asked
                messages = receive(0.01 if asked < 3 else timeout)
                asked += sum(isinstance(m, fake.Call) for m in messages)
                return messages

            self.step_, self.step = (
                self.step,
                lambda run: (
                    fake.Output(key=run.submit.key, cached_tokens=0)
                    if asked < 3
                    else self.step_(run)
                ),
            )
            super().run(count, lambda m: None if quiet(m) else send(m))

    def quiet(message):
        return isinstance(message, fake.Outputs) and not any(o.ids for o in message.outputs)

    with running_front(Slow) as front:
        (answer,) = answers_of(front, GenerateRequest(prompt=[70]))
        assert answer.completion_tokens == 128
        assert run(front.stats())["restarts"] == 0


def test_an_idle_core_is_left_alone(monkeypatch):
    monkeypatch.setattr(supervisor, "SILENCE_SECONDS", 0.02)
    cores = Cores({"mute": True})
    with running_front(cores):
        run(asyncio.sleep(0.2))
        assert not cores.made[0].log
    assert len(cores.made) == 1


def test_a_call_that_is_not_answered_ends(monkeypatch):
    monkeypatch.setattr(supervisor, "CALL_SECONDS", 0.05)
    with running_front(lambda: fake.FakeCore(mute=True)) as front:
        with pytest.raises(RequestTimeout, match="stats"):
            run(front.stats())


def test_a_core_that_speaks_of_a_fault_and_stays_is_replaced():
    class Odd(fake.FakeCore):
        def take(self, submit):
            self.send(fake.Failed(("EngineDied", "out of luck", None)))
            super().take(submit)

        def run(self, receive, send):
            self.send = send
            super().run(receive, send)

    made = []

    def cores():
        made.append(fake.FakeCore() if made else Odd())
        return made[-1]

    with running_front(cores) as front:
        (answer,) = answers_of(front, GenerateRequest(prompt=[70]))
        assert answer.output_ids == fake.counting([70], 0)[:128]
        assert isinstance(made[0].log[-1], fake.Shutdown)
