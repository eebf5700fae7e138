"""What is asked of a core beside requests: flush, leases, snapshots."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from boughs.radix import RadixTree
from boughs.runtime.messages import Abort, Call, Finish

_path = Path(__file__).parents[1] / "fixtures" / "page_model.py"
_spec = importlib.util.spec_from_file_location("page_model", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

Driver, alone, submit = pages.Driver, pages.alone, pages.submit


def nothing(steps):
    return [[] for _ in range(steps)]


def pin(id_, tokens, seconds=1000.0, namespace=""):
    args = {"lease": id_, "tokens": list(tokens), "namespace": namespace, "seconds": seconds}
    return Call(id_, "pin", args)


def unpin(id_, lease):
    return Call(id_, "unpin", {"lease": lease})


def results(driver):
    return {reply.id: reply.error or reply.result for reply in driver.replies}


# ---- flush ----


def test_flush_is_refused_while_requests_run_and_empties_the_tree_after():
    driver = Driver(num_pages=80)
    driver.run(
        [
            [submit(0, range(1, 20), 3), Call(1, "flush")],
            *nothing(9),
            [Call(2, "flush"), Call(3, "stats")],
        ]
    )
    assert results(driver)[1][0] == "InvalidRequest"
    assert results(driver)[2] > 0
    stats = results(driver)[3]["cache"]
    assert (stats["cached"], stats["free"]) == (0, 79)


def test_a_flush_that_may_wait_lets_what_runs_end_and_begins_nothing_before():
    first, second = submit(0, range(1, 20), 8), submit(1, range(1, 25), 3)
    driver = Driver(num_pages=80).run(
        [[first], [], [second, Call(7, "flush", {"wait": 1000.0})], *nothing(12)]
    )
    assert results(driver)[7] > 0
    assert [driver.ids(r.key) for r in (first, second)] == [alone(first), alone(second)]
    assert driver.outputs[1][0].cached_tokens == 0, "it was admitted before the flush"
    order = list(dict.fromkeys(key for step in driver.model.steps for key, _, _ in step))
    assert order == [0, 1]


def test_a_flush_that_may_wait_is_done_at_once_where_nothing_runs():
    driver = Driver().run([[submit(0, range(1, 9), 1)], *nothing(3), [Call(7, "flush", FLUSH)]])
    assert results(driver)[7] > 0


def test_a_flush_waits_for_the_confirmation_of_an_end():
    request = submit(0, range(1, 20), 3, confirm=True)
    length = len(alone(request))
    schedule = [[request], *nothing(8), [Call(7, "flush", FLUSH)], [], [Finish(0, length)], []]
    driver = Driver().run(schedule)
    assert results(driver)[7] > 0
    assert driver.core.scheduler.is_empty


def test_a_flush_that_waited_in_vain_says_so_and_requests_go_on():
    first, second = submit(0, range(1, 20), 30), submit(1, range(1, 25), 3)
    flush = Call(7, "flush", {"wait": 1e-9})
    driver = Driver(num_pages=80).run([[first], [second, flush], *nothing(3)])
    assert results(driver)[7][0] == "RequestTimeout"
    assert [driver.ids(r.key) for r in (first, second)] == [alone(first), alone(second)]
    assert driver.outputs[1][0].cached_tokens > 0


@pytest.mark.parametrize("others", [0, 1])
def test_a_flush_that_nobody_waits_for_any_more_holds_nobody_up(others):
    first, second = submit(0, range(1, 20), 30), submit(1, range(1, 25), 3)
    flushes = [Call(7 + at, "flush", FLUSH) for at in range(1 + others)]
    forget = [Call(20, "forget", {"call": 7}), Call(21, "forget", {"call": 99})]
    driver = Driver(num_pages=80).run([[first], [second, *flushes], [], forget, *nothing(40)])
    assert [driver.ids(r.key) for r in (first, second)] == [alone(first), alone(second)]
    assert 7 not in results(driver), "it was flushed for nobody"
    if others:
        assert results(driver)[8] > 0
    else:
        assert driver.outputs[1][0].cached_tokens > 0, "it waited for the first to end"


FLUSH = {"wait": 1000.0}


# ---- leases ----


def test_a_pinned_prefix_outlives_what_pushes_others_out():
    kept, other = range(1, 17), range(17, 32)
    driver = Driver(num_pages=17, page_size=4)
    schedule = [[submit(0, kept, 1)], [], [submit(1, other, 1)], [], [pin(7, kept)]]
    # These fill the pool several times over, one after the other.
    schedule += [[submit(2 + k, [20 + k] * 30, 1)] for k in range(10)]
    schedule += [*nothing(30), [submit(50, kept, 1), submit(51, other, 1)]]
    driver.run(schedule)
    assert results(driver)[7] == 16
    assert driver.outputs[50][0].cached_tokens == 15
    assert driver.outputs[51][0].cached_tokens == 0
    assert driver.leases == []


def test_leases_are_broken_before_a_request_has_to_wait_and_the_front_is_told():
    driver = Driver(num_pages=9, page_size=4)
    large = submit(1, range(1, 31), 2)
    schedule = [[submit(0, [9] * 12, 1)], [], [pin(7, [9] * 12), pin(8, [9] * 4, 9.0)], [large]]
    driver.run([*schedule, *nothing(6), [Call(9, "stats")]])
    assert driver.ids(1) == alone(large)
    assert driver.leases == [(7, "broken"), (8, "broken")]
    stats = results(driver)[9]["cache"]
    assert stats["leases_broken"] == len(driver.leases)
    assert stats["leases"] == 2 - len(driver.leases)


def test_a_lease_ends_at_its_deadline_when_it_is_given_back_and_by_a_flush():
    tokens = range(1, 13)
    driver = Driver()
    driver.run(
        [
            [submit(0, tokens, 1)],
            [],
            [pin(1, tokens, seconds=1e-9), pin(2, tokens), pin(3, tokens)],
            [unpin(4, 2), unpin(5, 2), unpin(6, 99)],
            [Call(7, "stats"), Call(8, "flush", FLUSH)],
            [Call(9, "stats")],
        ]
    )
    found = results(driver)
    assert [found[k] for k in (1, 2, 3, 4, 5, 6)] == [12, 12, 12, None, None, None]
    assert found[7]["cache"]["leases"] == 1
    assert found[9]["cache"]["leases"] == 0
    assert driver.leases == [(1, "expired"), (3, "broken")]


def test_a_lease_in_one_namespace_keeps_nothing_of_another():
    tokens = range(1, 13)
    driver = Driver().run(
        [[submit(0, tokens, 1)], [], [pin(1, tokens, namespace="a"), pin(2, tokens)]]
    )
    assert (results(driver)[1], results(driver)[2]) == (0, 12)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_leases_and_flushes_beside_random_loads_change_no_answer(data):
    """The page equation is checked after every step; every call gets its one reply."""
    draw = data.draw
    prompts = [[1 + k % 3] * draw(st.integers(1, 14)) + [k + 1] for k in range(6)]
    requests = [submit(k, prompt, draw(st.integers(0, 6))) for k, prompt in enumerate(prompts)]
    schedule = nothing(24)
    for request in requests:
        schedule[draw(st.integers(0, 20))].append(request)
    calls = [
        pin(100 + k, draw(st.sampled_from(prompts)), draw(st.sampled_from([1e-9, 1000.0])))
        for k in range(draw(st.integers(0, 4)))
    ]
    calls += [unpin(200 + k, 100 + k) for k in range(draw(st.integers(0, 2)))]
    calls += [
        Call(300 + k, "flush", {"wait": draw(st.sampled_from([0.0, 1e-9, 1000.0]))})
        for k in range(draw(st.integers(0, 2)))
    ]
    for call in calls:
        schedule[draw(st.integers(0, 20))].append(call)
    gone = draw(st.sampled_from([None, 0, 1]))
    if gone is not None:
        schedule[draw(st.integers(0, 20))].append(Abort(gone))
    driver = Driver(num_pages=draw(st.integers(7, 14)), page_size=4, budget=9).run(schedule)
    assert sorted(reply.id for reply in driver.replies) == sorted(call.id for call in calls)
    assert driver.core.scheduler.is_empty
    for request in requests:
        if request.key != gone:
            assert driver.ids(request.key) == alone(request)


# ---- looking ----


def test_a_snapshot_shows_segments_and_figures_and_no_salt():
    schedule = [
        [submit(0, [*range(1, 9), 9], 1), submit(1, [*range(1, 9), 8], 1)],
        [submit(2, [5] * 9, 1, namespace="secret")],
        *nothing(4),
        [Call(7, "snapshot", {"max_segments": 10, "max_tokens": 4})],
    ]
    driver = Driver(num_pages=80).run(schedule)
    shown = results(driver)[7]
    assert shown["page_size"] == 4
    assert shown["cache"]["nodes"] == len(shown["segments"]) == 4
    first = shown["segments"][0]
    assert (first["start"], first["end"], list(first["tokens"])) == (0, 8, [1, 2, 3, 4])
    assert [s["parent"] for s in shown["segments"]].count(None) == 2
    names = {s["namespace"] for s in shown["segments"]}
    assert len(names) == 2
    assert "secret" not in repr(shown)


# ---- the order of the queue ----


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
def test_a_waiting_request_is_matched_again_only_where_the_tree_has_changed(monkeypatch, policy):
    """A long decode runs, others wait behind it, and the tree stays as it is."""
    matched = []
    plain, again = RadixTree.find, RadixTree.refind
    monkeypatch.setattr(
        RadixTree, "find", lambda tree, *args: matched.append("find") or plain(tree, *args)
    )

    def refind(tree, spot, tokens):
        found = again(tree, spot, tokens)
        if found is not spot:
            matched.append("again")
        return found

    monkeypatch.setattr(RadixTree, "refind", refind)
    running = submit(0, range(1, 12), 60)
    waiting = [submit(k, [k + 1] * 60, 1) for k in range(1, 4)]
    driver = Driver(num_pages=20, page_size=4, budget=200, schedule_policy=policy)
    driver.run([[running], [], waiting])
    for request in (running, *waiting):
        assert driver.ids(request.key) == alone(request)
    passes = len(driver.model.steps)
    assert passes > 15
    # Once when each arrives and once when it is admitted; a few times as others come and go.
    assert len(matched) <= 4 * len(waiting) < passes
