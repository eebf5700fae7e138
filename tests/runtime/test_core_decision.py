"""Decisions: of plain numbers alone, the same each time, and never of pages that are not there."""

import importlib.util
from array import array
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, event, given, settings, strategies as st

from boughs.lang.sampling import SamplingParams
from boughs.radix import Price, Segment
from boughs.runtime.core import policy as policies
from boughs.runtime.core.decision import Decision, Running, Victim, View, decide
from boughs.runtime.core.policy import Candidate
from boughs.runtime.messages import Abort, Submit

_path = Path(__file__).parents[1] / "fixtures" / "page_model.py"
_spec = importlib.util.spec_from_file_location("page_model", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

Driver, alone, VOCAB = pages.Driver, pages.alone, pages.VOCAB


# ---- on numbers ----


def waiting(key, tokens=8, matched=0, price=None, **fields):
    made = Candidate(
        key=key,
        priority=0,
        arrival=key,
        since=0,
        namespace="",
        scope="",
        tokens=array("i", [key] * tokens).tobytes(),
        matched=matched,
        matchable=tokens - 1,
        leaders=(),
        width=1,
        reserve=1,
        price=price or Price(-(-tokens // 4), False, ()),
    )
    return made._replace(**fields)


def victim(key, refund=2, **fields):
    made = Victim(
        key=key,
        priority=0,
        arrival=key,
        refund=refund,
        freed=frozenset(),
        width=1,
        reserve=1,
        patient=False,
    )
    return made._replace(**fields)


def view(**fields):
    usual = {"decoding": [], "prefilling": [], "budget": 16, "available": 10, "page_size": 4}
    return View(**{**usual, "places": 8, **fields})


def test_decodes_come_before_chunks_and_chunks_before_admissions():
    decision = decide(
        view(
            decoding=[Running(1, 1, 1, 0), Running(3, 1, 1, 1)],
            prefilling=[Running(2, 9, 1, 0)],
            waiting=[waiting(4, 12)],
            reserve=3,
        )
    )
    assert decision == Decision([], [(1, 1), (3, 1), (2, 9)], [(4, 5)])


def test_a_search_decodes_all_its_beams_or_none():
    decoding = [Running(1, 4, 4, 0), Running(2, 1, 1, 0)]
    assert decide(view(decoding=decoding, budget=5)).works == [(1, 4), (2, 1)]
    assert decide(view(decoding=decoding, budget=3)).works == [(2, 1)]


def short(**fields):
    decoding = [Running(key, 1, 1, 1) for key in range(4)]
    return view(decoding=decoding, victims=[victim(key) for key in (3, 2, 1, 0)], **fields)


@pytest.mark.parametrize(
    ("available", "retracted"), [(4, []), (3, [3]), (2, [3]), (1, [3]), (0, [3, 2])]
)
def test_as_many_are_retracted_as_it_takes_and_nobody_is_admitted(available, retracted):
    decision = decide(short(available=available, waiting=[waiting(9)]))
    assert decision.retracted == retracted
    assert [key for key, _ in decision.works] == [k for k in range(4) if k not in retracted]
    assert not decision.admitted


def test_a_search_waits_with_its_pages_while_others_compute():
    decoding = [Running(0, 1, 1, 1), Running(1, 3, 3, 3)]
    ranks = [victim(1, 9, patient=True), victim(0, 1)]
    decision = decide(view(decoding=decoding, available=1, victims=ranks))
    assert decision == Decision([], [(0, 1)], [])
    decision = decide(view(decoding=decoding, available=0, victims=ranks))
    assert decision == Decision([1], [(0, 1)], [])
    decision = decide(view(decoding=decoding[1:], available=1, victims=ranks[:1]))
    assert decision == Decision([1], [], [])


def test_one_that_is_alone_is_retracted_unless_pages_are_about_to_come():
    one = {"decoding": [Running(0, 1, 1, 1)], "available": 0, "victims": [victim(0)]}
    assert decide(view(**one)) == Decision([0], [], [])
    assert not decide(view(**one, unconfirmed=True))


def test_pages_of_a_prefix_that_several_share_are_paid_once():
    path = (Segment(77, 5, held=False),)
    several = [
        waiting(k, 24, 20, Price(6, False, path))._replace(
            tokens=array("i", [1] * 20 + [k] * 4).tobytes()
        )
        for k in range(4)
    ]
    admitted = decide(view(waiting=several, available=9, budget=99)).admitted
    assert admitted == [(0, 4), (1, 4)]  # 6 pages, then 1, and a page's reserve for each
    assert len(decide(view(waiting=several, available=11, budget=99)).admitted) == 3
    apart = [one._replace(price=Price(6, False, ())) for one in several]
    assert len(decide(view(waiting=apart, available=11, budget=99)).admitted) == 1


def test_nobody_is_retracted_for_one_that_finds_no_room_even_so():
    running = {
        "decoding": [Running(0, 1, 1, 0), Running(1, 1, 1, 0)],
        "victims": [victim(1), victim(0)],
        "policy": "priority",
        "available": 1,
        "reserve": 2,
    }
    big = waiting(5, 40, priority=1)
    assert decide(view(**running, waiting=[big])) == Decision([], [(0, 1), (1, 1)], [])
    fits = waiting(5, 8, priority=1)
    decision = decide(view(**running, waiting=[fits]))
    assert decision.retracted == [1, 0]  # 1 + 2 pages do not hold 2 and a reserve of 2
    assert decision.admitted == [(5, 8)]


def test_what_comes_free_is_paid_by_whom_it_is_shared_with():
    """The newcomer's prefix is the victim's: when that goes, its pages are still to be had."""
    path = (Segment(77, 2, held=True),)
    newcomer = waiting(5, 12, 8, Price(1, False, path), priority=1)
    running = {
        "decoding": [Running(1, 1, 1, 0)],
        "policy": "priority",
        "waiting": [newcomer],
        "places": 0,
        "available": 0,
        "reserve": 1,
    }
    for refund, admitted in ((2, []), (3, [(5, 4)])):
        going = [victim(1, refund, freed=frozenset({77}))]
        assert decide(view(**running, victims=going)).admitted == admitted


# ---- on traces ----


@st.composite
def loads(draw):
    """Requests of like prompts: plain ones, choices, searches; of several priorities."""
    prompts = [draw(st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=24))]
    made = []
    for key in range(1, draw(st.integers(2, 10))):
        base = draw(st.sampled_from(prompts))
        cut = draw(st.integers(0, len(base)))
        tail = draw(st.lists(st.integers(1, VOCAB - 1), min_size=0 if cut else 1, max_size=9))
        prompts.append((base[:cut] + tail)[:30])
        width = draw(st.sampled_from([None, None, None, 2, 4]))
        params = SamplingParams(
            temperature=0.0 if width is None else 1.0,
            max_new_tokens=draw(st.integers(0 if width is None else 1, 14)),
            seed=0,
            priority=draw(st.integers(-1, 1)),
            ignore_eos=True,
            beam_width=width,
            n=width or 1,
        )
        family = draw(st.sampled_from([0, 0, 500, 501]))
        made.append(Submit(key=key, prompt_ids=prompts[-1], params=params, family=family))
    schedule = [[] for _ in range(draw(st.sampled_from([1, 12])))]
    for request in made:
        draw(st.sampled_from(schedule)).append(request)
    for key in draw(st.sets(st.sampled_from([request.key for request in made]), max_size=2)):
        draw(st.sampled_from(schedule)).append(Abort(key))
    return made, schedule


def pages_at_least(request, page_size):
    prompt, width = len(request.prompt_ids), request.params.beam_width
    if width is None:
        return -(-(prompt + request.params.max_new_tokens) // page_size)
    return prompt // page_size + 2 * width


def picture(scheduler):
    """All that deciding must leave alone."""
    cache = scheduler.cache
    queues = [scheduler._waiting, scheduler._running, scheduler._compiling, scheduler._ended]
    held = [
        (part.key, part.computed, bytes(part.tokens), part.sequence and list(part.sequence.pages))
        for queue in queues
        for request in (queue.values() if isinstance(queue, dict) else queue)
        for part in request.parts
    ]
    nodes, stack = [], list(cache.tree.roots.values())
    while stack:
        node = stack.pop()
        nodes.append((id(node), node.start, node.end, node.locks, node.version, node.last_use))
        stack += node.children.values()
    return [list(q) for q in queues], held, nodes, cache.stats(), replace(scheduler.counters)


class Watched:
    """Watches every decision of a driver's scheduler, and how it is carried out."""

    def __init__(self, driver):
        self.scheduler = driver.core.scheduler
        self.seen = Counter()
        self._view, self._apply = self.scheduler.view, self.scheduler.apply
        self._retract = self.scheduler._retract
        self._refunds = {}
        self.scheduler.view, self.scheduler.apply = self.view, self.apply
        self.scheduler._retract = self.retract

    def view(self):
        before = picture(self.scheduler)
        seen, again = self._view(), self._view()
        assert seen == again
        first = decide(seen)
        assert first == decide(seen) == decide(again)
        assert seen == again, "deciding has changed the view"
        assert picture(self.scheduler) == before, "looking or deciding has changed something"
        self._refunds = {one.key: one.refund for one in seen.victims}
        self.check(seen, first)
        return seen

    def check(self, view, decision):
        """The fewest are retracted; the budget is kept."""
        counts = [count for _, count in (*decision.works, *decision.admitted)]
        assert sum(counts) <= view.budget
        assert all(count > 0 for count in counts)
        if decision.retracted and not decision.admitted:
            *but_last, _ = decision.retracted
            rest = [one for one in (*view.decoding, *view.prefilling) if one.key not in but_last]
            left, need = view.budget, 0
            for one in rest:
                if min(left, one.tokens) >= one.least:
                    left -= min(left, one.tokens)
                    need += one.pages
            assert need > view.available + sum(self._refunds[key] for key in but_last)
            self.seen["retracted"] += 1
        self.seen["gave way"] += bool(decision.retracted and decision.admitted)
        self.seen["admitted together"] += len(decision.admitted) > 1

    def retract(self, request):
        before = self.scheduler.cache.available()
        self._retract(request)
        came = self.scheduler.cache.available() - before
        assert came == self._refunds[request.key], "another refund than was foretold"

    def apply(self, decision, step):
        self._apply(decision, step)  # an AssertionError where pages are missing
        assert decision.retracted or step.works, "a decision that does nothing"


def watch(load, page_size, extra, **config):
    made, schedule = load
    driver = Driver(
        num_pages=1 + extra + max(pages_at_least(r, page_size) for r in made),
        page_size=page_size,
        **config,
    )
    watched = Watched(driver)
    driver.run([list(messages) for messages in schedule])
    driver.core.check()
    assert driver.core.scheduler.is_empty, "a request hangs"
    return driver, watched.seen


TRACES = (
    loads(),
    st.sampled_from([1, 2, 4, 16]),
    st.integers(0, 12),
    st.sampled_from([5, 7, 16, 64]),
    st.sampled_from(list(policies.POLICIES)),
    st.sampled_from([0.0, 0.5]),
    st.integers(4, 12),
    st.booleans(),
)


@given(*TRACES)
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
def test_deciding_changes_nothing_and_what_is_decided_can_be_done(
    load, page_size, extra, budget, policy, share, most, cold
):
    """Each decision twice, each refund held against what comes, and no page too many is promised.

    Everybody's answer is told, so nobody hangs who fits alone.
    """
    driver, seen = watch(
        load,
        page_size,
        extra,
        budget=budget,
        schedule_policy=policy,
        schedule_conservativeness=share,
        max_running_requests=most,
        disable_radix_cache=cold,
    )
    for name, count in seen.items():
        if count:
            event(name)
    aborted = {message.key for step in load[1] for message in step if isinstance(message, Abort)}
    for request in load[0]:
        if request.key not in aborted:
            last = driver.outputs[request.key][-1]
            assert last.finish, "no end"


def test_the_traces_hold_what_they_are_to_watch():
    """Retractions for want of pages, those that give way, and admissions of several at once."""
    plain = [
        Submit(
            key=key,
            prompt_ids=[1, 2, 3, 4, 5, 6, 7, key],
            params=SamplingParams(
                temperature=0.0, max_new_tokens=14, seed=0, ignore_eos=True, priority=key // 5
            ),
        )
        for key in range(1, 9)
    ]
    schedule = [[plain[0]], [], [], plain[1:4], [], [], plain[4:]]
    _, seen = watch(
        (plain, schedule), 2, 16, budget=64, schedule_policy="priority", max_running_requests=6
    )
    assert min(seen.values()) > 0
    assert len(seen) == 3
