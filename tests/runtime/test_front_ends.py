"""How requests end over a fake core: aborts, readers that leave, time, errors, shutdown."""

import asyncio
import importlib.util
import threading
from pathlib import Path

import pytest

from boughs.lang.errors import (
    EngineDied,
    InvalidRequest,
    RequestAborted,
    RequestTimeout,
    Unservable,
)
from boughs.lang.requests import GenerateRequest, ScoreRequest
from boughs.lang.results import Finish, collect
from boughs.lang.segments import Ids
from boughs.runtime.messages import Abort, Finish as FinishMessage, Output, Outputs, Submit


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
Gate = fronts.Gate
greedy = fronts.greedy
of_kind = fronts.of_kind


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


class FailsBeyond(fake.FakeCore):
    """In the message with its first token the first choice fails, too: at a token beyond it."""

    def run(self, receive, send):
        def with_failure(message):
            if isinstance(message, Outputs):
                firsts = [o for o in message.outputs if o.ids and o.key in self.firsts]
                message.outputs += [
                    Output(key=o.key, error=("InvalidRequest", "no token is left", "bad_words"))
                    for o in firsts
                ]
            send(message)

        self.firsts = set()
        super().run(receive, with_failure)

    def take(self, submit):
        if submit.choice == 0:
            self.firsts.add(submit.key)
        super().take(submit)


def test_a_failure_beyond_the_end_of_one_choice_does_not_fail_the_others():
    with running_front(FailsBeyond) as front:
        prompt = front.tokenizer.encode("Hello", "start")
        first = front.tokenizer.text_of(fake.counting(prompt, 0)[0])
        params = greedy(n=2, stop=(first,), max_new_tokens=6)
        answers = run(collect(front.generate(GenerateRequest(prompt=prompt, params=params))))
        assert [answer.finish.type for answer in answers] == ["stop", "length"]
        assert answers[1].completion_tokens == 6
        with pytest.raises(InvalidRequest, match="no token is left"):
            chunks_of(front, GenerateRequest(prompt=prompt, params=greedy(n=2)))


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
            return fake.Output(key=run.submit.key, error=("GrammarError", "regex: no (", "regex"))

    with running_front(Refusing) as front:
        from boughs.lang.errors import GrammarError

        with pytest.raises(GrammarError, match=r"regex: no \(") as caught:
            chunks_of(front, GenerateRequest(prompt="Hello", params=greedy(regex="(", n=2)))
        assert caught.value.param == "regex"
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
            for _ in range(2):  # it is called, and it is sent
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
    async def until_ill(front):
        while await front.health(0.05):  # noqa: ASYNC110 -- there is no event to wait for
            await asyncio.sleep(0.01)

    with running_front(lambda: fake.FakeCore(mute=True)) as front:
        assert run(front.health())  # it had no time to answer
        run(until_ill(front))
        assert run(front.health())  # it may take longer than that
        # What it does beside shows that it is not stuck.
        assert answers_of(front, GenerateRequest(prompt="Hello", params=greedy()))
        assert run(front.health(0.05))
    with running_front(fake.FakeCore) as front:
        for _ in range(3):
            assert run(front.health())
            run(front.stats())


def test_health_waits_for_nothing_while_a_core_is_started_again():
    start = threading.Event()

    class Slow(fake.FakeCore):
        def run(self, receive, send):
            assert start.wait(20)
            super().run(receive, send)

    made = []

    def cores():
        made.append(Slow() if made else fake.FakeCore(die_on=300))
        return made[-1]

    async def check(front):
        task = asyncio.create_task(collect(front.generate(GenerateRequest(prompt=[300]))))
        while front._core.ready:  # noqa: ASYNC110 -- there is no event to wait for
            await asyncio.sleep(0.001)
        coroutine = front.health()
        with pytest.raises(StopIteration) as answer:  # it ends without the loop
            coroutine.send(None)
        assert answer.value.value is False
        start.set()
        await task
        assert await front.health()

    with running_front(cores) as front:
        run(check(front))


def test_server_info_has_settings_limits_and_counters(front):
    info = run(front.get_server_info())
    assert info["model_path"] == front.model_path
    assert info["context_length"] == 512
    assert info["max_running_requests"] == 256
    assert info["stats"]["in_flight"] == 0
