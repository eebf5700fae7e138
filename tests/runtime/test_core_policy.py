"""Who goes first, who gives way, who waits for whom: the choices, and what a core makes of them."""

import importlib.util
from array import array
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.sampling import SamplingParams
from boughs.radix import Price
from boughs.runtime.core import policy as policies
from boughs.runtime.core.policy import (
    AGED_AFTER,
    Candidate,
    follows,
    gives_way,
    goes_along,
    order,
    reserve,
    victims,
)

_path = Path(__file__).parents[1] / "fixtures" / "page_model.py"
_spec = importlib.util.spec_from_file_location("page_model", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

Driver, alone = pages.Driver, pages.alone
NAMES = list(policies.POLICIES)


def submit(key, prompt, most=3, priority=0, **kwargs):
    made = pages.submit(key, prompt, most, **kwargs)
    params = SamplingParams(temperature=0.0, max_new_tokens=most, seed=0, priority=priority)
    return msgspec.structs.replace(made, params=params)


def waiting(key, prompt=(1, 2, 3), matched=0, since=0, priority=0, scope=""):
    return Candidate(
        key=key,
        priority=priority,
        arrival=key,
        since=since,
        namespace="",
        scope=scope,
        tokens=array("i", prompt).tobytes(),
        matched=matched,
        matchable=len(prompt) - 1,
        leaders=(),
        width=1,
        reserve=1,
        price=Price(1, False, ()),
    )


def keys(candidates):
    return [candidate.key for candidate in candidates]


# ---- the order ----


@pytest.mark.parametrize(
    ("name", "expected"),
    [("lpm", [2, 1, 0, 3]), ("fcfs", [0, 1, 2, 3]), ("dfs", [2, 3, 0, 1])],
)
def test_the_order_of_each_policy(name, expected):
    prompts = ([5, 1, 9], [5, 2, 9], [3, 3, 9], [5, 1, 8, 9])
    matched = (0, 1, 2, 0)
    candidates = [
        waiting(key, prompt, found)
        for key, (prompt, found) in enumerate(zip(prompts, matched, strict=True))
    ]
    assert keys(order(name, candidates, 0)) == expected


def test_dfs_goes_on_where_it_was_and_begins_anew_at_the_end():
    candidates = [waiting(key, [key, 9]) for key in range(5)]
    assert keys(order("dfs", candidates, 0, candidates[3].place)) == [3, 4, 0, 1, 2]


@given(st.permutations(range(6)), st.sampled_from(NAMES))
def test_priority_comes_before_age_and_age_before_the_policy(arrivals, name):
    candidates = [
        waiting(k, since=-AGED_AFTER * (k % 2), priority=k % 3, matched=k) for k in arrivals
    ]
    ordered = order(name, candidates, 0)
    for first, second in pairwise(ordered):
        assert first.priority >= second.priority
        if first.priority == second.priority:
            assert first.since <= second.since
            if first.since == second.since < 0:
                assert first.arrival < second.arrival


def test_the_last_arrived_of_the_lowest_priority_goes_first():
    running = [waiting(0, priority=1), waiting(1, priority=2), waiting(2, priority=1)]
    assert keys(victims(running)) == [2, 0, 1]


def test_only_under_priority_does_what_runs_give_way_and_only_to_more():
    one = waiting(1, priority=1)
    assert gives_way("priority", one, waiting(3, priority=2))
    assert not gives_way("priority", one, waiting(3, priority=1))
    for name in ("lpm", "fcfs", "dfs"):
        assert not gives_way(name, one, waiting(3, priority=9))


# ---- the reserve ----


@given(st.integers(0, 9000), st.integers(1, 8), st.sampled_from([1, 4, 16]), st.floats(0, 1))
def test_the_reserve(left, width, page_size, share):
    spare = reserve(left, width, page_size, share)
    tokens = int(min(left, policies.FORESEEN) * share)
    assert spare == width * max(1, -(-tokens // page_size))
    assert spare >= reserve(left, width, page_size, 0.0) == width


def test_with_all_reserved_nothing_is_retracted():
    """And with nothing reserved something is, on the same load."""
    every = [submit(k, [1 + k // 30, 1 + k % 30] * 3, 24) for k in range(200)]
    requests = [request for request in every if len(alone(request)) > 20][:6]
    assert len(requests) == 6
    retractions = {}
    for share in (0.0, 1.0):
        driver = Driver(num_pages=25, schedule_conservativeness=share).run([requests])
        retractions[share] = driver.core.scheduler.counters.retractions
        for request in requests:
            assert driver.ids(request.key) == alone(request)
    assert retractions[1.0] == 0 < retractions[0.0]


# ---- who waits for whom ----


def test_a_request_follows_one_that_prefills_what_it_needs():
    leader, follower = waiting(0, range(1, 13)), waiting(1, [*range(1, 11), 3, 3, 3])
    assert goes_along(follower, leader, 4)
    assert follows(10, 12, 0, 0, 4)
    assert not follows(10, 12, 8, 0, 4), "what is left is less than a page"
    assert not goes_along(follower._replace(matched=8), leader._replace(matched=8), 4)
    assert follows(10, 10, 8, 0, 4), "what is left is all that it needs"
    assert not follows(10, 12, 0, 10, 4), "all that both need is computed"
    assert not goes_along(waiting(2, range(1, 13), scope="b"), leader, 4)
    assert not goes_along(waiting(2, [5, *range(2, 13)]), leader, 4)


@given(st.data())
def test_going_along_is_following_what_has_just_begun(data):
    """The next token tells most apart; the answer is as if all had been compared."""
    tokens = st.lists(st.integers(1, 2), min_size=1, max_size=9)
    leader, follower = (waiting(k, data.draw(tokens)) for k in range(2))
    one, other = array("i", leader.tokens), array("i", follower.tokens)
    alike = [a == b for a, b in zip(one, other, strict=False)]
    shared = alike.index(False) if False in alike else len(alike)
    cached = data.draw(st.integers(0, len(other)))
    follower = follower._replace(matched=min(cached, follower.matchable))
    leader = leader._replace(matched=min(cached, shared, leader.matchable))
    size = data.draw(st.sampled_from([1, 2, 4]))
    expected = follows(shared, follower.matchable, follower.matched, leader.matched, size)
    assert goes_along(follower, leader, size) == expected


# ---- a core ----


@st.composite
def tries(draw):
    """Prompts that share prefixes with one another."""
    made = [draw(st.lists(st.integers(1, 5), min_size=1, max_size=20))]
    for _ in range(draw(st.integers(1, 9))):
        base = draw(st.sampled_from(made))
        cut = draw(st.integers(0, len(base)))
        made.append(base[:cut] + draw(st.lists(st.integers(1, 5), min_size=1, max_size=9)))
    return draw(st.permutations(made))


def edges(prompts):
    """Tokens of the trie of all prompts."""
    return len({tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)})


@given(tries(), st.sampled_from([1, 3, 16]))
@settings(max_examples=150, deadline=None)
def test_depth_first_computes_every_edge_once_in_the_least_memory(prompts, page_size):
    """arXiv 2312.07104, section 3.1, on the core itself.

    One request at a time, no output, pages for the longest prompt and one more: computed are the
    edges of the tree, and one token of each prompt that is wholly cached when it runs.
    """
    prompts = [*prompts, prompts[0]]
    order_ = sorted(prompts)
    whole = sum(a[: len(b)] == b for a, b in pairwise(order_))
    longest = max(map(len, prompts))
    driver = Driver(
        num_pages=1 + -(-longest // page_size) + 1,
        page_size=page_size,
        budget=1000,
        schedule_policy="dfs",
        max_running_requests=1,
    )
    driver.run([[submit(k, prompt, 0) for k, prompt in enumerate(prompts)]])
    assert driver.core.scheduler.counters.prefill_tokens == edges(prompts) + whole


@pytest.mark.parametrize("name", NAMES)
def test_nobody_starves(name):
    """A stream of requests that the policy favours; the one that it does not has its turn.

    It is aged after so many passes; then what runs may end first, and no more is begun before it.
    """
    favoured = list(range(1, 9))
    outsider = submit(999, [31] * 9, 3)
    most = 6
    schedule = [[submit(0, favoured, 1)], [], [submit(1, favoured, most), outsider]]
    schedule += [[submit(2 + k, [*favoured, 1 + k % 9], most)] for k in range(400)]
    driver = Driver(
        num_pages=8, page_size=4, budget=8, schedule_policy=name, max_running_requests=2
    ).run(schedule)
    order_ = [[key for key, _, _ in step] for step in driver.model.steps]
    began = next(at for at, step in enumerate(order_) if 999 in step)
    assert began <= 3 + AGED_AFTER + most + 2
    assert driver.ids(999) == alone(outsider)


def test_a_request_of_higher_priority_takes_the_place_of_one_that_runs():
    low = [submit(k, [k + 1] * 9, 20, priority=-1) for k in range(2)]
    high = submit(7, [9] * 9, 4, priority=5)
    for name in ("priority", "fcfs"):
        driver = Driver(schedule_policy=name, max_running_requests=2).run([low, [], [], [high]])
        steps = [[key for key, _, _ in step] for step in driver.model.steps]
        began = next(at for at, step in enumerate(steps) if 7 in step)
        if name == "priority":
            assert began == 3
            assert steps[3].count(1) == 0, "the last arrived of the lowest priority gave way"
        else:
            assert began > 10
        for request in (*low, high):
            assert driver.ids(request.key) == alone(request)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_policy_gives_the_same_answers(data):
    draw = data.draw
    prompts = draw(tries())
    requests = [
        submit(k, prompt, draw(st.integers(0, 8)), priority=draw(st.integers(-1, 1)))
        for k, prompt in enumerate(prompts)
    ]
    schedule = [[] for _ in range(12)]
    for request in requests:
        schedule[draw(st.integers(0, 11))].append(request)
    driver = Driver(
        num_pages=draw(st.integers(12, 20)),
        page_size=4,
        budget=draw(st.integers(2, 30)),
        schedule_policy=draw(st.sampled_from(NAMES)),
        schedule_conservativeness=draw(st.sampled_from([0.0, 0.5, 1.0])),
        max_running_requests=draw(st.integers(1, 5)),
    ).run(schedule)
    for request in requests:
        assert driver.ids(request.key) == alone(request)
    assert driver.core.scheduler.is_empty
