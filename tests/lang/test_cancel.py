"""Time-outs, cancelling, and threads that are bounded: nothing runs on that nobody wants."""

import asyncio
import threading
import time

import pytest

import boughs
from boughs.lang.errors import InvalidRequest, RequestAborted, RequestTimeout
from boughs.lang.pool import Pool, most_threads
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(60)


@boughs.function
def ask(s, question="q"):
    s += question + boughs.gen("x")
    return s["x"]


@boughs.function
async def ask_async(s, question="q"):
    s += question + boughs.gen("x")
    return await s.get("x")


@boughs.function
def spread(s):
    branches = s.fork(3)
    branches += lambda i: f"{i}" + boughs.gen("x")
    branches.join()


def until(condition):
    """Wait for what must come true."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)


def slow():
    return MockBackend("abcdefgh", delay=60)


@pytest.mark.parametrize("program", [ask, ask_async, spread])
def test_a_streamed_program_is_cancelled(program):
    backend = slow()
    state = program.run(backend=backend, stream=True)
    requests = 3 if program is spread else 1
    until(lambda: len(backend.calls) == requests)
    state.cancel()
    for read in (state.sync, state.text, lambda: state["x"], lambda: list(state.text_iter())):
        with pytest.raises(RequestAborted, match="cancelled"):
            read()
    assert isinstance(state.error(), RequestAborted)
    until(lambda: len(backend.aborted) == requests)


def test_a_body_that_is_cancelled_gets_it_at_its_next_statement():
    seen = []
    here, there = threading.Event(), threading.Event()

    @boughs.function
    def program(s):
        here.set()
        there.wait(20)
        try:
            s += "more"
        except RequestAborted as error:
            seen.append(error)
            raise

    state = program.run(backend=MockBackend(), stream=True)
    here.wait(20)
    state.cancel()
    there.set()
    until(lambda: seen)
    with pytest.raises(RequestAborted):
        state.sync()


def test_cancelling_what_has_ended_changes_nothing():
    state = ask.run(backend=MockBackend())
    state.cancel()
    assert (state["x"], state.text(), state.error()) == ("ok", "qok", None)


@pytest.mark.parametrize("program", [ask, ask_async])
def test_cancelling_an_awaited_run_aborts_its_requests(program):
    backend = slow()

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await program.run_async(backend=backend)

    asyncio.run(main())
    until(lambda: len(backend.aborted) == len(backend.calls) == 1)


def test_cancelling_a_read_leaves_the_program_running():
    @boughs.function
    async def program(s):
        s += boughs.gen("x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await s.get("x")
        return await s.get("x")

    assert program.run(backend=MockBackend("abcd", delay=0.2)).ret_value == "abcd"


@pytest.mark.parametrize("program", [ask, ask_async, spread])
@pytest.mark.parametrize("how", ["run", "run_batch", "run_async", "stream"])
def test_the_limit_of_time_of_a_run_holds_for_each_request(program, how):
    options = {"backend": slow(), "timeout": 0.05}
    run = {
        "run": lambda: program.run(**options),
        "run_batch": lambda: program.run_batch([{}, {}], **options),
        "run_async": lambda: asyncio.run(program.run_async(**options)),
        "stream": lambda: program.run(**options, stream=True).sync(),
    }
    with pytest.raises(RequestTimeout, match=r"no answer within 0\.05 s"):
        run[how]()


def test_a_gens_own_limit_goes_before_the_runs():
    @boughs.function
    def program(s):
        s += boughs.gen("x", timeout=0.05)

    with pytest.raises(RequestTimeout, match="variable 'x'"):
        program.run(backend=slow(), timeout=1000)


def test_what_was_cancelled_before_it_began_never_begins():
    began = []
    hold = threading.Event()

    @boughs.function
    def program(s, i):
        began.append(i)
        hold.wait(20)

    async def main():
        many = most_threads() + 20
        tasks = [asyncio.create_task(program.run_async(i)) for i in range(many)]
        await asyncio.to_thread(until, lambda: len(began) == most_threads())
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(error, asyncio.CancelledError) for error in done)

    try:
        with boughs.backend(MockBackend()):
            asyncio.run(main())
    finally:
        hold.set()
    until(lambda: not [t for t in threading.enumerate() if t.name == "boughs-pool"])
    assert len(began) == most_threads()


def test_thousands_of_awaited_plain_programs_use_a_bounded_number_of_threads():
    most = 0

    @boughs.function
    def program(s, i):
        nonlocal most
        most = max(most, threading.active_count())
        s += f"{i}" + boughs.gen("x")
        return s["x"]

    async def main():
        backend = MockBackend(delay=0.001)
        runs = (program.run_async(i, backend=backend) for i in range(2000))
        return [state.ret_value for state in await asyncio.gather(*runs)]

    before = threading.active_count()
    assert asyncio.run(main()) == ["ok"] * 2000
    assert most <= before + most_threads() + 2


def test_plain_programs_that_await_others_do_not_wait_for_each_others_threads():
    @boughs.function
    def inner(s):
        s += boughs.gen("x")
        return s["x"]

    @boughs.function
    def outer(s):
        async def both():
            return await asyncio.gather(inner.run_async(), inner.run_async())

        return [state.ret_value for state in asyncio.run(both())]

    async def main():
        runs = (outer.run_async() for _ in range(most_threads() + 10))
        return [state.ret_value for state in await asyncio.gather(*runs)]

    with boughs.backend(MockBackend(delay=0.001)):
        assert asyncio.run(main()) == [["ok", "ok"]] * (most_threads() + 10)


def test_a_pool_runs_all_in_order_and_keeps_no_thread():
    pool, ran, running, most = Pool(3), [], 0, 0
    lock = threading.Lock()

    def work(i):
        nonlocal running, most
        with lock:
            ran.append(i)
            running += 1
            most = max(most, running)
        time.sleep(0.001)
        with lock:
            running -= 1

    for i in range(50):
        pool.submit(lambda i=i: work(i))
    until(lambda: len(ran) == 50 and not running)
    assert ran == list(range(50))
    assert most <= 3
    until(lambda: pool._threads == 0)


def test_without_a_thread_each_statement_ends_before_the_next():
    @boughs.function
    def program(s):
        s += "a" + boughs.gen("x")
        seen.append(len(backend.calls))
        with s.user():
            s += "b"
        branches = s.fork(2)
        branches += boughs.gen("y")
        seen.append(len(backend.calls))
        branches.join()

    seen, backend = [], MockBackend()
    state = program.run(backend=backend, use_thread=False)
    assert seen == [1, 4]  # the fork's prefix is one
    assert state["y"] == ["ok", "ok"]


def test_without_a_thread_an_error_is_raised_by_its_own_statement():
    @boughs.function
    def program(s):
        s += "a"
        with pytest.raises(InvalidRequest, match="bad"):
            s += boughs.gen("x")
        raise KeyError("the body's own")

    with pytest.raises(KeyError, match="own"):
        program.run(backend=MockBackend(lambda _: InvalidRequest("bad")), use_thread=False)
    with pytest.raises(InvalidRequest, match="use_thread"):
        ask_async.run(backend=MockBackend(), use_thread=False)


def test_a_read_waits_no_longer_than_it_is_told():
    hold = threading.Event()

    @boughs.function
    def program(s):
        s += "a" + boughs.gen("x")
        hold.wait(20)
        s["y"] = 1

    state = program.run(backend=MockBackend(), stream=True)
    for read in (
        lambda: state.get_var("y", timeout=0),
        lambda: state.get_var("y", timeout=0.05),
        lambda: state.get_var("nonesuch", timeout=0.01),
        lambda: state.sync(timeout=0.01),
    ):
        with pytest.raises(RequestTimeout, match=r"program program: .*runs on"):
            read()
    assert state.get_var("x", timeout=20) == "ok"
    hold.set()
    state.sync(timeout=20)
    assert state.get_var("y", timeout=0) == 1  # it is there
    assert state._backlog._done._waiters == state._backlog._announced._waiters == []
    for wrong in (-1, "1", True, float("nan")):
        with pytest.raises(InvalidRequest, match="timeout"):
            state.sync(timeout=wrong)


# ---- the limit of a whole program ----


@boughs.function
def talk(s):
    for _ in range(10_000):
        s += "again" + boughs.gen("x")
        s.sync()


@boughs.function
async def talk_async(s):
    for _ in range(10_000):
        s += "again" + boughs.gen("x")
        await s.wait()


@boughs.function
async def sleep(s):
    await asyncio.sleep(60)


@pytest.mark.parametrize("program", [talk, talk_async, sleep, spread, ask])
@pytest.mark.parametrize("how", ["run", "run_batch", "run_async", "stream"])
def test_a_program_that_takes_too_long_is_ended(program, how):
    backend = MockBackend("abcdefgh", delay=60 if program in (spread, ask) else 0.01)
    options = {"backend": backend, "max_seconds": 0.1}
    run = {
        "run": lambda: program.run(**options),
        "run_batch": lambda: program.run_batch([{}, {}], **options),
        "run_async": lambda: asyncio.run(program.run_async(**options)),
        "stream": lambda: program.run(**options, stream=True).sync(),
    }
    with pytest.raises(RequestTimeout, match=r"max_seconds: it had not ended after 0\.1 s"):
        run[how]()
    if program in (spread, ask):
        until(lambda: len(backend.aborted) == sum(not call.prefills for call in backend.calls))


@pytest.mark.parametrize("program", [ask, ask_async])
def test_a_program_that_ends_in_time_does_not_feel_its_limit(program):
    state = program.run(backend=MockBackend(), max_seconds=60)
    assert (state["x"], state.error()) == ("ok", None)


def test_a_time_out_of_the_bodys_own_is_its_own():
    @boughs.function
    async def program(s):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError) as caught:
        program.run(backend=MockBackend(), max_seconds=60)
    assert not isinstance(caught.value, RequestTimeout)
    for wrong in (0, -1, "soon"):
        with pytest.raises(InvalidRequest, match="max_seconds"):
            ask.run(backend=MockBackend(), max_seconds=wrong)
