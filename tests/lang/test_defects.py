"""The defects of SGLang's frontend (0.5.23): none is here.

Numbers are those of the list in the project's notes on that frontend; those that concern backends
are in `test_defects_backends.py`. Most have deeper tests in the other files; each is named here
once, in the smallest program that shows it.
"""

import math
import threading
import time

import pytest

import boughs
from boughs.lang.errors import BackendError, InvalidRequest, NotFound
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(20)


def broken(_call):
    return BackendError("the disk is full")


@boughs.function
def one(s, question="q"):
    s += question + boughs.gen("x")


def test_01_a_backends_error_is_raised_and_not_a_key_error():
    with pytest.raises(BackendError, match="the disk is full"):
        one.run(backend=MockBackend(broken))
    state = one.run(backend=MockBackend(broken), stream=True)
    with pytest.raises(BackendError, match="the disk is full"):
        state["x"]


def test_02_03_what_comes_after_an_error_never_hangs():
    @boughs.function
    def program(s):
        s += boughs.gen("x")
        for action in (s.text, s.sync, lambda: s["x"], lambda: s["later"]):
            with pytest.raises(BackendError):
                action()
        with pytest.raises(BackendError):
            s += boughs.gen("later")
        assert "disk" in str(s.error())

    with pytest.raises(BackendError):
        program.run(backend=MockBackend(broken))
    with pytest.raises(BackendError):
        program.run_batch([{}] * 3, backend=MockBackend(broken))


def test_04_an_error_of_a_streamed_body_reaches_the_consumer():
    @boughs.function
    def program(s):
        s += "a"
        raise RuntimeError("of the body")

    with pytest.raises(RuntimeError, match="of the body"):
        list(program.run(backend=MockBackend(), stream=True).text_iter())


def test_05_a_late_reader_sees_everything():
    state = one.run(backend=MockBackend("abcdefgh"))
    assert "".join(state.text_iter("x")) == "abcdefgh"
    assert "".join(state.text_iter()) == "qabcdefgh"


def test_06_a_waiting_reader_uses_no_processor_time():
    used = []

    def read(state):
        before = time.thread_time()
        list(state.text_iter("x"))
        used.append(time.thread_time() - before)

    @boughs.function
    def program(s):
        time.sleep(0.3)
        s += boughs.gen("x")

    state = program.run(backend=MockBackend(), stream=True)
    thread = threading.Thread(target=read, args=(state,))
    thread.start()
    thread.join(10)
    assert used[0] < 0.1


def test_07_08_09_a_batch_runs_each_body_once_and_on_its_own_arguments():
    bodies = []

    @boughs.function
    def program(s, key, table):
        bodies.append(key)
        s += str(table[key])
        s += boughs.gen("x")
        while s["x"] != "END":
            s += boughs.gen("x")

    table = {"a": 1, "b": 2}
    backend = MockBackend(lambda c: "END" if len(c.text) > 8 else "go")
    states = program.run_batch([{"key": k, "table": table} for k in table], backend=backend)
    assert sorted(bodies) == ["a", "b"]
    assert [s["x"] for s in states] == ["END", "END"]


def test_10_one_failing_item_loses_nothing():
    def answer(call):
        return BackendError("b") if call.text == "bad" else "ok"

    results = one.run_batch(
        [("a",), ("bad",), ("c",)], backend=MockBackend(answer), return_exceptions=True
    )
    assert [type(r).__name__ for r in results] == ["ProgramState", "BackendError", "ProgramState"]


def test_11_bound_arguments_yield_and_users_dicts_stay():
    items = [{"question": "given"}, {}]
    states = one.bind(question="bound").run_batch(items, backend=MockBackend())
    assert [s.text() for s in states] == ["givenok", "boundok"]
    assert items == [{"question": "given"}, {}]


def test_13_arguments_may_be_called_like_parameters():
    @boughs.function
    def program(s, n, stop, temperature):
        return n, stop, temperature

    run = program.run(n=1, stop="x", temperature="hot", backend=MockBackend())
    assert run.ret_value == (1, "x", "hot")


def test_14_15_16_stops_of_users_stay_as_they_are():
    shared = ["."]
    backend = MockBackend()

    @boughs.function
    def program(s):
        for _ in range(40):
            s += boughs.assistant(boughs.gen_int("x", stop=shared))
        s += boughs.gen_int("y", stop=".") + boughs.gen("z", stop=("a", "b"))

    program.run(backend=backend)
    assert shared == ["."]
    stops = [call.request.params.stop for call in backend.calls]
    assert stops == [(".",)] * 41 + [("a", "b")]


def test_17_37_joins_are_aligned_and_branches_know_all_that_the_state_knew():
    @boughs.function
    def program(s):
        s += boughs.gen("x")
        branches = s.fork(3)
        assert branches[0].get_meta_info("x")["finish_reason"]["type"] == "stop"
        branches[1]["x"] = "overwritten"
        branches[2]["only here"] = 1
        with s.copy() as c:
            c["leak"] = 1
        branches.join()
        return s["x"], s["only here"], "leak" in s

    assert program.run(backend=MockBackend()).ret_value == (
        ["ok", "overwritten", "ok"],
        [None, None, 1],
        False,
    )

    @boughs.function
    def failing(s):
        branches = s.fork(3)
        branches += lambda i: f"{i}" + boughs.gen("x")
        branches.join()

    backend = MockBackend(lambda c: BackendError("b") if c.text == "1" else "ok")
    with pytest.raises(BackendError, match="branch 1"):
        failing.run(backend=backend)


def test_18_the_shared_prefix_is_always_sent_before_the_branches():
    @boughs.function
    def program(s):
        s += "prefix"
        s.fork(2).__iadd__(boughs.gen("x"))

    for _ in range(100):
        backend = MockBackend()
        program.run(backend=backend)
        assert backend.calls[0].prefills


def test_19_reading_a_scope_inside_of_itself_is_an_error():
    @boughs.function
    def program(s):
        with s.var_scope("x"):
            s["x"]

    with pytest.raises(InvalidRequest, match="var_scope"):
        program.run(backend=MockBackend())


@pytest.mark.parametrize("value", [5, None, ["a"]])
def test_20_what_cannot_be_added_is_an_error_at_once(value):
    @boughs.function
    def program(s):
        s += value

    with pytest.raises(InvalidRequest):
        program.run(backend=MockBackend())


def test_21_unnamed_gens_have_no_variable():
    @boughs.function
    def program(s):
        s += boughs.gen() + boughs.gen()
        assert None not in s

    with pytest.raises(InvalidRequest):
        program.run(backend=MockBackend())[None]


def test_22_no_choices_are_an_error():
    for make in (boughs.gen, boughs.select):
        with pytest.raises(InvalidRequest, match="choices"):
            make("x", choices=[])


def test_23_choices_drop_no_argument():
    for name, value in (("max_tokens", 3), ("return_logprob", True), ("stop", "a"), ("n", 2)):
        with pytest.raises(InvalidRequest, match=name):
            boughs.gen("x", choices=["a"], **{name: value})


def test_24_an_async_program_runs():
    @boughs.function
    async def program(s):
        s += boughs.gen("x")
        return await s.get("x")

    assert program.run(backend=MockBackend()).ret_value == "ok"


def test_25_methods_are_programs_and_metadata_stays():
    class Asker:
        @boughs.function
        def ask(self, s, question):
            """Asks."""
            s += question + boughs.gen("x")

    assert Asker().ask.run("q", backend=MockBackend())["x"] == "ok"
    assert (Asker.ask.__name__, Asker.ask.__doc__) == ("ask", "Asks.")


def test_26_a_program_can_be_a_part_of_another():
    @boughs.function
    def outer(s):
        s += one(question="a")
        one(s, "b")

    assert outer.run(backend=MockBackend()).text() == "aokbok"


def test_27_in_waits():
    @boughs.function
    def program(s):
        s += boughs.gen("x")
        return "x" in s

    assert program.run(backend=MockBackend(delay=0.01)).ret_value


@pytest.mark.parametrize("prompt", ["", "a", "ab", "so so", "\n\n", "."])
@pytest.mark.parametrize(
    "method",
    [
        boughs.token_length_normalized,
        boughs.greedy_token_selection,
        boughs.unconditional_likelihood_normalized,
    ],
    ids=lambda m: type(m).__name__,
)
def test_28_every_choice_method_works_on_every_prompt(prompt, method):
    @boughs.function
    def program(s):
        s += prompt + boughs.select("x", ["a", "bcd", "e f g h"], choices_method=method)

    state = program.run(backend=MockBackend(lambda _: "bcd"))
    assert state["x"] == "bcd"
    assert math.isclose(sum(state.choice_probs("x").values()), 1)


def test_29_texts_of_branches_are_appended_and_nothing_hangs():
    @boughs.function
    def program(s):
        branches = s.fork(2)
        branches += lambda i: f"{i}" + boughs.gen("x")
        branches.join("concate_and_append")
        s += boughs.gen("y")

    assert program.run(backend=MockBackend()).text() == "0ok1okok"


def test_36_join_can_be_traced():
    @boughs.function
    def program(s):
        branches = s.fork(2)
        branches += boughs.gen("x")
        branches.join()
        return s["x"]

    trace = program.trace()
    assert trace.ret_value == ["{x}", "{x}"]
    assert "join 2" in str(trace)


def test_unknown_variables_are_not_key_errors_that_hide_something():
    with pytest.raises(NotFound, match="known: 'x'"):
        one.run(backend=MockBackend())["y"]
