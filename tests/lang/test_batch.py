"""`run_batch`: each body once, results in order, errors in their places, bounded."""

import contextvars
import gc
import threading
import time
import weakref
from collections import Counter

import pytest

import boughs
from boughs.lang.errors import InvalidRequest, Overloaded
from boughs.lang.state import ProgramState
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(60)


@boughs.function
def ask(s, question, suffix="?"):
    s += question + suffix + boughs.gen("answer")


def answer(call):
    if "bad" in call.text:
        return Overloaded("full")
    return call.text


ITEMS = [{"question": f"q{i}"} for i in range(40)]


@pytest.mark.parametrize("num_threads", ["auto", 1, 3, 1000])
@pytest.mark.parametrize("generator_style", [False, True])
def test_results_are_in_order_and_equal_those_of_single_runs(num_threads, generator_style):
    states = ask.run_batch(
        ITEMS,
        backend=MockBackend(answer, delay=0.001),
        num_threads=num_threads,
        generator_style=generator_style,
    )
    alone = [ask.run(**item, backend=MockBackend(answer)) for item in ITEMS]
    assert [s["answer"] for s in states] == [s["answer"] for s in alone]


def test_items_may_be_dicts_tuples_or_lists_and_stay_as_they_are():
    items = [{"question": "a"}, ("b",), ["c", "!"], {"suffix": ".", "question": "d"}]
    before = [type(item)(item) for item in items]
    states = ask.run_batch(tuple(items), backend=MockBackend())
    assert [s.text() for s in states] == ["a?ok", "b?ok", "c!ok", "d.ok"]
    assert items == before
    assert [s.text() for s in ask.run_batch(iter(items), backend=MockBackend())] == [
        *("a?ok", "b?ok", "c!ok", "d.ok")
    ]


def test_nothing_in_nothing_out():
    assert ask.run_batch([], backend=MockBackend()) == []
    assert list(ask.run_batch([], backend=MockBackend(), generator_style=True)) == []


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ("ab", InvalidRequest, "batch_kwargs"),
        ({"question": "a"}, InvalidRequest, "batch_kwargs"),
        (5, InvalidRequest, "batch_kwargs"),
        (["a"], InvalidRequest, "item 0: expected a dict"),
        ([("a",), ()], TypeError, "item 1: .*question"),
        ([{"question": "a"}, {"query": "b"}], TypeError, r"item 1: ask\(\)"),
        ([("a", "b", "c")], TypeError, "item 0"),
    ],
)
def test_items_that_do_not_fit_are_named_before_anything_runs(batch, error, message):
    backend = MockBackend()
    with pytest.raises(error, match=message):
        ask.run_batch(batch, backend=backend)
    assert backend.calls == []


@pytest.mark.parametrize(
    "options", [{"num_threads": 0}, {"num_threads": "many"}, {"temperature": -1}, {"stream": True}]
)
def test_wrong_options_are_named_before_anything_runs(options):
    backend = MockBackend()
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        ask.run_batch(ITEMS, backend=backend, **options)
    with pytest.raises(InvalidRequest, match="not a parameter of a run"):
        ask.run_batch(ITEMS, backend=backend, question="x")
    assert backend.calls == []


def test_each_body_runs_exactly_once():
    ran = Counter()

    @boughs.function
    def program(s, i, table):
        ran[i] += 1
        s += str(table[i])  # tracing with a dummy would raise
        while "END" not in s.text():  # tracing would never end
            s += boughs.gen("x")

    table = {i: i for i in range(30)}
    states = program.run_batch(
        [{"i": i, "table": table} for i in range(30)], backend=MockBackend("END"), num_threads=4
    )
    assert len(states) == 30
    assert ran == Counter(range(30))


def test_one_error_loses_no_result():
    items = [("a",), ("bad 1",), ("c",), ("bad 2",), ("e",)]
    seen = {}
    with pytest.raises(Overloaded, match=r"^item 1: program ask, variable 'answer', .*: full$"):
        ask.run_batch(items, backend=MockBackend(answer), on_result=seen.__setitem__)
    assert {i: s["answer"] for i, s in seen.items() if isinstance(s, ProgramState)} == {
        0: "a?", 2: "c?", 4: "e?"
    }  # fmt: skip
    results = ask.run_batch(items, backend=MockBackend(answer), return_exceptions=True)
    assert [isinstance(r, Overloaded) for r in results] == [False, True, False, True, False]
    assert "item 3" in str(results[3])


@pytest.mark.parametrize("error", [Overloaded, ZeroDivisionError])
def test_an_error_carries_what_the_other_items_came_to(error):
    @boughs.function
    def program(s, i):
        s += f"{i}" + boughs.gen("x")
        assert s["x"] == "ok"
        return 10 // i

    def say(call):
        return Overloaded("full") if error is Overloaded and call.text == "0" else "ok"

    with pytest.raises(error) as caught:
        program.run_batch([(1,), (0,), (2,)], backend=MockBackend(say))
    results = caught.value.results
    assert results[1] is caught.value
    assert [results[i].ret_value for i in (0, 2)] == [10, 5]
    assert results.usage.requests == (2 if error is Overloaded else 3)
    with pytest.raises(Overloaded) as alone:
        ask.run("bad", backend=MockBackend(answer))
    assert alone.value.results is None


def test_errors_of_bodies_are_named_too():
    @boughs.function
    def program(s, i):
        if i == 2:
            raise KeyError("boom")

    with pytest.raises(KeyError, match="boom") as caught:
        program.run_batch([(i,) for i in range(4)], backend=MockBackend())
    assert "in item 2 of run_batch" in caught.value.__notes__
    results = program.run_batch([(2,), (3,)], backend=MockBackend(), return_exceptions=True)
    assert isinstance(results[0], KeyError)


def test_a_generator_gives_what_was_good_before_the_error():
    items = [("a",), ("b",), ("bad",), ("d",)]
    states = ask.run_batch(items, backend=MockBackend(answer), generator_style=True)
    assert [next(states)["answer"], next(states)["answer"]] == ["a?", "b?"]
    with pytest.raises(Overloaded, match="item 2"):
        next(states)
    results = ask.run_batch(
        items, backend=MockBackend(answer), generator_style=True, return_exceptions=True
    )
    assert [isinstance(r, Overloaded) for r in results] == [False, False, True, False]


def test_a_generator_runs_a_bounded_number_ahead_and_stops_when_it_is_dropped():
    begun = []

    @boughs.function
    def program(s, i):
        begun.append(i)

    states = program.run_batch(
        [(i,) for i in range(5000)],
        backend=MockBackend(),
        generator_style=True,
        num_threads=4,
    )
    next(states)
    time.sleep(0.2)
    assert len(begun) <= 202
    states.close()
    time.sleep(0.1)
    assert len(begun) <= 202


def test_results_are_handed_over_as_they_come_in_the_callers_thread():
    order, names = [], set()

    def note(i, _):
        order.append(i)
        names.add(threading.current_thread().name)

    @boughs.function
    def program(s, i):
        time.sleep(0.2 if i == 0 else 0)

    program.run_batch([(i,) for i in range(4)], backend=MockBackend(), on_result=note)
    assert order[-1] == 0
    assert sorted(order) == [0, 1, 2, 3]
    assert names == {threading.current_thread().name}


def test_an_error_of_on_result_stops_the_batch():
    def stop(i, _):
        raise RuntimeError("stop")

    backend = MockBackend(delay=0.05)
    with pytest.raises(RuntimeError, match="stop"):
        ask.run_batch(ITEMS, backend=backend, num_threads=1, on_result=stop)
    time.sleep(0.2)
    begun = len(backend.calls)
    time.sleep(0.2)
    assert len(backend.calls) == begun < len(ITEMS)


def test_programs_in_programs_cannot_exhaust_the_threads():
    @boughs.function
    def inner(s, i):
        s += f"{i}" + boughs.gen("x")
        return s["x"]

    @boughs.function
    def outer(s, i):
        batch = inner.run_batch([(i,), (i + 1,)], num_threads=1)
        return inner.run(i).ret_value, [b.ret_value for b in batch]

    states = outer.run_batch([(i,) for i in range(20)], backend=MockBackend(), num_threads=2)
    assert [s.ret_value for s in states] == [("ok", ["ok", "ok"])] * 20


def test_no_more_programs_than_threads_run_at_once():
    running, most = 0, 0
    lock = threading.Lock()

    @boughs.function
    def program(s):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        s += boughs.gen("x")
        s.sync()
        with lock:
            running -= 1

    program.run_batch([{}] * 30, backend=MockBackend(delay=0.002), num_threads=3)
    assert 1 <= most <= 3


def test_context_variables_reach_the_bodies():
    variable = contextvars.ContextVar("v", default="no")
    variable.set("yes")
    program = boughs.function(lambda s: variable.get())
    states = program.run_batch([{}] * 3, backend=MockBackend())
    assert [s.ret_value for s in states] == ["yes"] * 3


def test_the_progress_bar_shows_rates(capsys):
    ask.run_batch(
        [("a",), ("bad",)], backend=MockBackend(answer), progress_bar=True, return_exceptions=True
    )
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "2/2" in printed.err
    assert "tokens/s" in printed.err
    assert "1 failed" in printed.err


def test_ten_thousand_programs_use_few_threads():
    most = 0

    @boughs.function
    def program(s, i):
        nonlocal most
        most = max(most, threading.active_count())

    before = threading.active_count()
    states = program.run_batch([(i,) for i in range(10_000)], backend=MockBackend(), num_threads=8)
    assert len(states) == 10_000
    assert most <= before + 9


def test_a_generator_keeps_no_state_that_was_handed_over():
    alive = weakref.WeakSet()

    @boughs.function
    def program(s, i):
        alive.add(s._executor)
        s += f"{i}" + boughs.gen("x")

    most = 0
    states = program.run_batch(
        ((i,) for i in range(2000)), backend=MockBackend(), num_threads=8, generator_style=True
    )
    for state in states:
        assert state["x"] == "ok"
        most = max(most, len(alive))
    del state
    gc.collect()
    assert most < 600  # 200 run ahead, and what the collector has not met yet
    assert not alive


def test_a_generator_that_is_left_ends_what_runs():
    backend = MockBackend(lambda c: "ok" if c.text.startswith("0?") else "abcdefgh", delay=0.01)
    states = ask.run_batch(
        [(f"{i}",) for i in range(30)], backend=backend, num_threads=4, generator_style=True
    )
    next(states)
    states.close()
    end = time.monotonic() + 20
    while [t for t in threading.enumerate() if t.name.startswith("boughs-batch")]:
        assert time.monotonic() < end
        time.sleep(0.005)
    asked = len(backend.calls)
    time.sleep(0.05)
    assert len(backend.calls) == asked < 30
