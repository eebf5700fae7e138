"""Errors: raised where the user reads, as themselves, with their place; nothing ever hangs."""

import asyncio
import signal
import subprocess
import sys
import threading
import time

import pytest

import boughs
from boughs.lang.choices import ChoicesSamplingMethod
from boughs.lang.errors import (
    BackendError,
    GrammarError,
    InvalidRequest,
    Overloaded,
    ProgramError,
    RequestAborted,
)
from boughs.lang.results import Chunk, Finish
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(30)


def refuses(call):
    """Answers anything but what ends with an exclamation mark."""
    if call.text.endswith("!"):
        return InvalidRequest("temperature: too hot", "temperature")
    return "ok"


@boughs.function
def fails(s):
    s += "a" + boughs.gen("good") + "!" + boughs.gen("bad") + "b" + boughs.gen("later")


PLACE = r"program fails, variable 'bad', request [0-9a-f]{32}: temperature: too hot"


def test_run_raises_the_error_itself_with_its_place_and_cause():
    with pytest.raises(InvalidRequest, match=f"^{PLACE}$") as caught:
        fails.run(backend=MockBackend(refuses))
    assert caught.value.param == "temperature"
    assert isinstance(caught.value.__cause__, InvalidRequest)
    assert str(caught.value.__cause__) == "temperature: too hot"
    assert caught.value.__cause__.__traceback__ is None  # of frames that are not the user's


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s["bad"],
        lambda s: s["later"],
        lambda s: s["unknown"],
        lambda s: s.text(),
        lambda s: s.messages(),
        lambda s: s.sync(),
        lambda s: "x" in s,
        lambda s: s.get_meta_info("bad"),
        lambda s: list(s.text_iter("bad")),
        lambda s: list(s.text_iter()),
        lambda s: s.fork(2).join(),
        lambda s: s.fork(2)[0]["x"],
    ],
)
def test_every_read_after_a_failure_raises_it_again(read):
    seen = []

    @boughs.function
    def program(s):
        s += "!" + boughs.gen("bad")
        for _ in range(3):
            with pytest.raises(InvalidRequest, match=r"variable 'bad'.*too hot"):
                read(s)
            seen.append(1)
        for statement in ("text", boughs.gen("more"), boughs.select("c", choices=["a"])):
            with pytest.raises(InvalidRequest, match=r"variable 'bad'.*too hot"):
                s += statement
        with pytest.raises(InvalidRequest, match="variable 'bad'"):
            s["y"] = 5
        assert isinstance(s.error(), InvalidRequest)

    with pytest.raises(InvalidRequest, match="variable 'bad'"):
        program.run(backend=MockBackend(refuses))
    assert len(seen) == 3


def test_error_is_none_where_nothing_failed():
    state = boughs.function(lambda s: s.error()).run(backend=MockBackend())
    assert state.ret_value is None
    assert state.error() is None


def test_attributes_of_an_error_stay():
    error = Overloaded("full")
    error.retry_after = 7.0
    with pytest.raises(Overloaded, match="full") as caught:
        fails.run(backend=MockBackend(lambda _: error))
    assert caught.value.retry_after == 7.0


def test_an_error_that_is_none_of_ours_becomes_a_program_error():
    with pytest.raises(
        ProgramError, match=r"variable 'good'.*ZeroDivisionError: by zero"
    ) as caught:
        fails.run(backend=MockBackend(lambda _: ZeroDivisionError("by zero")))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_an_error_of_the_body_is_raised_as_it_is():
    boom = ValueError("boom")

    @boughs.function
    def program(s):
        s += boughs.gen("x")
        raise boom

    with pytest.raises(ValueError, match=r"^boom$") as caught:
        program.run(backend=MockBackend())
    assert caught.value is boom


def test_an_error_of_the_body_tells_of_a_failure_before_it():
    @boughs.function
    def program(s):
        s += "!" + boughs.gen("bad")
        s._executor.backlog.settle()
        raise KeyError("boom")

    with pytest.raises(KeyError) as caught:
        program.run(backend=MockBackend(refuses))
    assert any("too hot" in note for note in caught.value.__notes__)


def test_an_error_of_the_body_ends_what_runs():
    backend = MockBackend("a" * 100, delay=0.02)

    @boughs.function
    def program(s):
        s += boughs.gen("x")
        s += boughs.gen("y")
        next(iter(s.text_iter("x")))
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        program.run(backend=backend)
    deadline = time.monotonic() + 5
    while not backend.aborted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(backend.aborted) == len(backend.calls) == 1


# ---- branches ----


def test_a_branchs_error_is_raised_at_the_join_and_the_program_may_go_on():
    @boughs.function
    def program(s):
        branches = s.fork(3)
        branches += ["a", "b!", "c!"]
        branches += boughs.gen("x")
        with pytest.raises(InvalidRequest, match=r"branch 1, variable 'x'.*too hot"):
            branches.join()
        s += "go on" + boughs.gen("y")
        return s["y"]

    assert program.run(backend=MockBackend(refuses)).ret_value == "ok"


def test_a_branchs_error_that_nobody_saw_is_raised_at_the_end():
    @boughs.function
    def program(s):
        branches = s.fork(2)
        branches[1] += "!" + boughs.gen("x")

    with pytest.raises(InvalidRequest, match=r"branch 1, variable 'x'.*too hot"):
        program.run(backend=MockBackend(refuses))


def test_a_branchs_error_that_was_caught_at_a_read_is_not_raised_again():
    @boughs.function
    def program(s):
        branches = s.fork(2)
        branches[1] += "!" + boughs.gen("x")
        try:
            branches[1]["x"]
        except InvalidRequest:
            return "caught"

    assert program.run(backend=MockBackend(refuses)).ret_value == "caught"


def test_branches_of_a_state_that_failed_before_the_fork_get_its_error():
    @boughs.function
    def program(s):
        s += boughs.gen("slow") + "!" + boughs.gen("bad")
        branches = s.fork(2)
        branches += boughs.gen("x")
        inner = branches[0].fork(2)
        inner += boughs.gen("y")
        for state in (branches[1], inner[0]):
            with pytest.raises(InvalidRequest, match="program program, variable 'bad'"):
                state["x"]
        branches.join()

    with pytest.raises(InvalidRequest, match="variable 'bad'"):
        program.run(backend=MockBackend(refuses, delay=0.02))


def test_nested_branches_are_named():
    @boughs.function
    def program(s):
        outer = s.fork(2)
        inner = outer[1].fork(3)
        inner[2] += "!" + boughs.gen("x")
        inner.join()

    with pytest.raises(InvalidRequest, match=r"branch 1\.2, variable 'x'"):
        program.run(backend=MockBackend(refuses))


def test_the_error_of_a_shared_prefix_is_the_states():
    class NoPrefill(MockBackend):
        async def generate(self, request):
            if request.params.max_new_tokens == 0:
                raise GrammarError("no prefill here")
            async for chunk in super().generate(request):
                yield chunk

    @boughs.function
    def program(s):
        s += "shared"
        branches = s.fork(2)
        branches += boughs.gen("x")
        branches.join()

    with pytest.raises(GrammarError, match=r"program program, fork into 2, request .*no prefill"):
        program.run(backend=NoPrefill())


def test_an_error_in_a_copy_is_raised_at_its_end():
    @boughs.function
    def program(s):
        with s.copy() as c:
            c += "!" + boughs.gen("x")
        raise AssertionError("not reached")

    with pytest.raises(InvalidRequest, match="branch 0, variable 'x'"):
        program.run(backend=MockBackend(refuses))


# ---- answers that are wrong ----


def chunk(**fields):
    return Chunk(rid="r", text="a", output_ids=[1], **fields)


@pytest.mark.parametrize(
    ("chunks", "error", "message"),
    [
        ([], BackendError, "answered nothing"),
        ([chunk()], BackendError, "without a finish reason"),
        (
            [chunk(finish=Finish("abort", message="gone"))],
            RequestAborted,
            "gone",
        ),
        ([chunk(finish=Finish("stop"), segments=[])] * 1, None, ""),
    ],
)
def test_a_backend_that_does_not_keep_the_contract(chunks, error, message):
    class Odd(MockBackend):
        async def generate(self, request):
            for item in chunks:
                yield item

    program = boughs.function(lambda s: s.__iadd__(boughs.gen("x")) and None)
    if error is None:
        assert program.run(backend=Odd())["x"] == "a"
        return
    with pytest.raises(error, match=f"variable 'x'.*{message}"):
        program.run(backend=Odd())
    with pytest.raises(BackendError, match="2 choices were asked for"):
        program.run(
            n=2,
            backend=type("One", (Odd,), {"generate": _one_choice})(),
        )


async def _one_choice(_self, _request):
    yield chunk(finish=Finish("stop"), segments=[])


class Broken(ChoicesSamplingMethod):
    def __call__(self, **_):
        return self.answer


def test_a_choice_method_that_errs():
    @boughs.function
    def program(s, method):
        s += boughs.select("x", choices=["a", "b"], choices_method=method)

    method = Broken()
    with pytest.raises(ProgramError, match=r"variable 'x'.*AttributeError"):
        program.run(method, backend=MockBackend())
    method.answer = "c"
    with pytest.raises(InvalidRequest, match=r"variable 'x'.*Broken must return a ChoicesDecision"):
        program.run(method, backend=MockBackend())


# ---- var_scope ----


def test_reading_a_scope_inside_of_itself_is_an_error():
    @boughs.function
    def program(s):
        with s.var_scope("x"):
            s += "a"
            for read in (lambda: s["x"], lambda: list(s.text_iter("x"))):
                with pytest.raises(InvalidRequest, match=r"'x'.*var_scope.*after the scope"):
                    read()
            branch = s.fork(1)[0]
            with pytest.raises(InvalidRequest, match="var_scope"):
                branch["x"]
            with pytest.raises(InvalidRequest, match="open already"):
                s.var_scope("x").__enter__()
        return s["x"]

    assert program.run(backend=MockBackend()).ret_value == "a"


def test_a_scope_whose_body_fails_sets_nothing():
    def fail(s):
        with s.var_scope("x"):
            s += "a"
            raise ValueError("boom")

    @boughs.function
    def program(s):
        with pytest.raises(ValueError, match="boom"):
            fail(s)
        assert "x" not in s
        with s.var_scope("x"):
            s += "b"
        return s["x"]

    assert program.run(backend=MockBackend()).ret_value == "b"


# ---- streaming ----


def test_an_error_of_the_body_reaches_the_readers_of_a_stream():
    @boughs.function
    def program(s):
        s += "a" + boughs.gen("x")
        s.sync()
        raise ValueError("boom")

    for name in (None, "never"):
        state = program.run(backend=MockBackend(), stream=True)
        with pytest.raises(ValueError, match="boom"):
            list(state.text_iter(name))
        for read in (state.text, state.sync, lambda s=state: s["x"], lambda s=state: s.ret_value):
            with pytest.raises(ValueError, match="boom"):
                read()
    assert list(program.run(backend=MockBackend(), stream=True).text_iter("x")) == ["ok"]


def test_an_error_of_a_request_reaches_the_readers_of_a_stream():
    state = fails.run(backend=MockBackend(refuses), stream=True)
    assert list(state.text_iter("good")) == ["ok"]
    for name in ("bad", "later", None):
        with pytest.raises(InvalidRequest, match=PLACE):
            list(state.text_iter(name))


def test_the_first_part_of_a_text_that_breaks_off_is_read():
    class Breaks(MockBackend):
        async def generate(self, request):
            async for item in super().generate(request):
                if item.finish is not None:
                    raise BackendError("the connection broke")
                yield item

    @boughs.function
    def program(s):
        s += "a" + boughs.gen("x")

    for name, expected in (("x", ["one ", "two ", "thre"]), (None, ["a", "one ", "two ", "thre"])):
        state = program.run(backend=Breaks("one two three"), stream=True)
        pieces = []
        with pytest.raises(BackendError, match=r"variable 'x'.*broke"):
            pieces.extend(_collecting(state.text_iter(name), pieces))
        assert pieces == expected


def _collecting(items, into):
    for item in items:
        into.append(item)
    return []


def test_an_error_of_a_branch_reaches_the_readers_of_the_program():
    @boughs.function
    def program(s):
        s += "a"
        s.fork(1)[0].__iadd__("!" + boughs.gen("x"))

    state = program.run(backend=MockBackend(refuses), stream=True)
    with pytest.raises(InvalidRequest, match="branch 0, variable 'x'"):
        list(state.text_iter())


# ---- interrupts and exits ----


def test_an_interrupt_of_the_caller_ends_the_program():
    backend = MockBackend("a" * 1000, delay=0.05)
    program = boughs.function(lambda s: s.__iadd__(boughs.gen("x")) and None)
    main = threading.main_thread().ident
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        program.run(backend=backend)
    deadline = time.monotonic() + 5
    while not backend.aborted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(backend.aborted) == 1


SCRIPT = """
import boughs
from boughs.testing import MockBackend

@boughs.function
def program(s):
    s += boughs.gen("x")
    branches = s.fork(2)
    branches += boughs.gen("y")
    {tail}

def answer(call):
    return {answer}

{call}
"""


@pytest.mark.parametrize(
    ("tail", "answer", "call", "printed"),
    [
        ("s['x']", "ValueError('boom')", "program.run(backend=MockBackend(answer))", "boom"),
        (
            "raise KeyError('body')",
            "'ok'",
            "program.run(backend=MockBackend(answer, delay=60))",
            "body",
        ),
        (
            "s['x']",
            "'ok'",
            "program.run(backend=MockBackend(answer, delay=60), stream=True); raise SystemExit(3)",
            "",
        ),
        (
            "s['x']",
            "ValueError('boom')",
            "program.run_batch([{}] * 5, backend=MockBackend(answer))",
            "item 0",
        ),
    ],
)
def test_the_process_always_exits(tail, answer, call, printed):
    code = SCRIPT.format(tail=tail, answer=answer, call=call)
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode != 0
    assert printed in done.stderr
    assert "never awaited" not in done.stderr
    assert "was destroyed" not in done.stderr


def test_nothing_waits_for_a_state_that_is_cancelled():
    @boughs.function
    async def program(s):
        s += boughs.gen("x")
        await s.get("x")

    backend = MockBackend("a", delay=30)

    async def main():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(program.run_async(backend=backend), 0.1)

    asyncio.run(main())
    deadline = time.monotonic() + 5
    while not backend.aborted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(backend.aborted) == 1
