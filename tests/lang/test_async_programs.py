"""`async def` programs: native, never blocking, on any loop."""

import asyncio
import threading

import pytest

import boughs
from boughs.lang.errors import InvalidRequest
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(30)


@boughs.function
async def ask(s, question):
    s += boughs.user(question) + boughs.assistant(boughs.gen("answer"))
    answer = await s.get("answer")
    s += boughs.user("sure?") + boughs.assistant(boughs.gen("sure"))
    return answer, threading.current_thread().name


@boughs.function
def plain(s, question):
    s += question + boughs.gen("answer")
    return s["answer"]


def test_the_body_runs_on_the_loop():
    state = ask.run("a", backend=MockBackend(["1", "2"]))
    assert state.ret_value == ("1", "boughs-loop")
    assert state["sure"] == "2"
    assert len(state.messages()) == 4


def test_it_streams_and_runs_in_batches():
    state = ask.run("a", backend=MockBackend("abcdefgh"), stream=True)
    assert list(state.text_iter("answer")) == ["abcd", "efgh"]
    states = ask.run_batch([{"question": str(i)} for i in range(20)], backend=MockBackend())
    assert [s.messages()[0]["content"] for s in states] == [str(i) for i in range(20)]


@pytest.mark.parametrize("program", [ask, plain])
def test_a_run_is_awaited_on_any_loop(program):
    async def main():
        states = await asyncio.gather(
            *(program.run_async(question=str(i), backend=MockBackend()) for i in range(5))
        )
        return [await state.get("answer") for state in states]

    assert asyncio.run(main()) == ["ok"] * 5


def test_a_blocking_read_on_the_loop_says_what_to_await():
    @boughs.function
    async def program(s):
        s += boughs.gen("x")
        for read in (
            lambda: s["x"],
            s.sync,
            s.text,
            s.messages,
            s.error,
            lambda: "x" in s,
            lambda: list(s.text_iter("x")),
            lambda: list(s.text_iter()),
            lambda: plain.run("q"),
            lambda: plain.run_batch([("q",)]),
        ):
            with pytest.raises(InvalidRequest, match="async program"):
                read()
        await s.wait()
        return s["x"], "x" in s, s.messages(), s.error(), await s.get_text()

    state = program.run(backend=MockBackend(delay=0.01))
    assert state.ret_value == ("ok", True, [], None, "ok")


def test_forks_and_joins_without_blocking():
    @boughs.function
    async def program(s):
        s += "a"
        branches = s.fork(3)
        branches += lambda i: f"{i}" + boughs.gen("x")
        branches.join()
        values = await s.get("x")
        with s.copy() as c:
            c += boughs.gen("y")
            assert await c.get("y") == "a"
        return values

    state = program.run(backend=MockBackend(lambda c: c.text[-1]))
    assert state.ret_value == ["0", "1", "2"]


def test_a_branchs_error_is_that_of_the_state_it_is_joined_to():
    @boughs.function
    async def program(s):
        branches = s.fork(2)
        branches[1] += boughs.gen("x")
        branches.join()
        await s.get("x")

    with pytest.raises(InvalidRequest, match=r"program program, branch 1, variable 'x'.*bad"):
        program.run(backend=MockBackend(lambda _: InvalidRequest("bad")))


def test_programs_in_programs():
    @boughs.function
    async def outer(s):
        first, _ = await ask(s, "a")
        s += plain_part(word="b")
        with pytest.raises(InvalidRequest, match="await other"):
            s += ask(question="c")
        inner = await plain.run_async("q")
        return first, inner["answer"]

    @boughs.function
    def plain_part(s, word):
        s += word

    @boughs.function
    def sync_outer(s):
        s += ask(question="a")
        return ask(s, "b")[0]

    assert outer.run(backend=MockBackend()).ret_value == ("ok", "ok")
    state = sync_outer.run(backend=MockBackend(["1", "2", "3", "4"]))
    assert state.ret_value == "3"
    assert len(state.messages()) == 8


def test_the_text_is_streamed_to_the_programs_own_loop():
    @boughs.function
    async def program(s):
        s += boughs.gen("x")
        pieces = [piece async for piece in s.text_async_iter("x")]
        return pieces, [piece async for piece in s.text_async_iter()]

    assert program.run(backend=MockBackend("abcdef")).ret_value == (["abcd", "ef"], ["abcdef"])


def test_an_error_of_the_body_is_raised_as_it_is():
    @boughs.function
    async def program(s):
        s += boughs.gen("x")
        await s.get("x")
        raise ValueError("boom")

    with pytest.raises(ValueError, match=r"^boom$"):
        program.run(backend=MockBackend())
    with pytest.raises(ValueError, match="boom"):
        asyncio.run(program.run_async(backend=MockBackend()))
    with pytest.raises(ValueError, match="boom"):
        list(program.run(backend=MockBackend(), stream=True).text_iter())


def test_a_callable_that_returns_a_coroutine_runs_too():
    async def body(s):
        s += boughs.gen("x")
        return await s.get("x")

    @boughs.function
    def program(s):
        return body(s)

    assert program.run(backend=MockBackend()).ret_value == "ok"


def test_two_hundred_programs_use_no_threads_of_their_own():
    most = 0

    @boughs.function
    async def program(s):
        nonlocal most
        branches = s.fork(3)
        branches += boughs.gen("x")
        branches.join()
        await s.wait()
        most = max(most, threading.active_count())

    async def main():
        backend = MockBackend(delay=0.01)
        await asyncio.gather(*(program.run_async(backend=backend) for _ in range(200)))

    before = threading.active_count()
    asyncio.run(main())
    assert most <= before + 1
