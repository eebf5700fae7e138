"""The core on a pool that a request fills to the last page, or that is too small for it."""

import importlib.util
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from boughs.runtime.messages import Finish

_path = Path(__file__).parents[1] / "fixtures" / "page_model.py"
_spec = importlib.util.spec_from_file_location("page_model", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

Driver, alone, submit = pages.Driver, pages.alone, pages.submit

PROMPT = list(range(1, 13))
LATER = [[] for _ in range(20)]


def answers(driver, request):
    return driver.ids(request.key) == alone(request)


@pytest.mark.parametrize("shared", range(1, 12))
@pytest.mark.parametrize("logprobs_from", [None, 0, 5, 11])
def test_a_cached_prefix_does_not_keep_a_prompt_out_of_a_pool_that_it_fills(shared, logprobs_from):
    """Where the cached prefix ends in a page, a copy of it would be a page too many."""
    first = submit(0, [*PROMPT[:shared], 31], 1)
    second = submit(1, PROMPT, 1, prompt_logprobs_from=logprobs_from)
    driver = Driver(num_pages=4, page_size=4).run([[first], *LATER, [second]])
    assert answers(driver, second)


@pytest.mark.parametrize("length", range(1, 13))
def test_a_request_grows_to_the_whole_pool_whatever_is_cached(length):
    """A copy that there was room for at admission is given up when its page is wanted."""
    starts = (submit(1, [start, *PROMPT[1:length]], 13 - length) for start in range(13, 32))
    second = next(request for request in starts if len(alone(request)) == 13 - length)
    first = submit(0, [*second.prompt_ids, *PROMPT][:12], 1)
    driver = Driver(num_pages=4, page_size=4).run([[first], *LATER, [second]])
    assert answers(driver, second)


def test_the_pool_is_full_with_one_token_more_than_it_has_rows():
    request = submit(0, [3, 1, 2], 100)
    expected = alone(request)
    assert len(expected) > 6
    driver = Driver(num_pages=3, page_size=4).run([[request]])
    # 8 rows hold 3 prompt and 5 output tokens; the sixth needs no row.
    assert driver.ids(0) == expected[:6]
    assert driver.finish(0) == "length"
    assert driver.core.scheduler.is_empty


def test_a_replay_that_fills_a_smaller_pool_ends_with_length():
    """The core before it had more memory."""
    made = alone(submit(0, [3, 1, 2], 100))
    assert len(made) > 6
    replays = [
        submit(key, [3, 1, 2], 100, output_ids=made[:count], confirm=key % 2 == 1)
        for key, count in enumerate([4, 5, 6, 7])
    ]
    confirm = dict.fromkeys(range(4), 100)
    driver = Driver(num_pages=3, page_size=4).run([replays], confirm=confirm)
    assert [driver.ids(key) for key in range(4)] == [made[4:6], made[5:6], [], []]
    assert {driver.finish(key) for key in range(4)} == {"length"}
    assert driver.core.scheduler.is_empty


def test_a_prompt_longer_than_the_pool_is_refused_and_holds_nobody_up():
    """The front refuses it, unless it knew a core with more memory."""
    small = submit(1, [1, 2, 3], 2)
    driver = Driver(num_pages=3, page_size=4).run([[submit(0, range(1, 10), 2), small]])
    assert driver.outputs[0][0].error[0] == "Unservable"
    assert answers(driver, small)
    assert driver.core.scheduler.is_empty


def test_one_that_is_alone_waits_for_pages_that_the_front_will_give_back():
    """The ended one keeps its pages until it is confirmed; the other goes on then."""
    ended = msgspec.structs.replace(submit(0, [1, 2, 3, 4], 1), confirm=True)
    other = next(
        request
        for request in (submit(1, [start, 6, 7, 8], 9) for start in range(9, 32))
        if len(alone(request)) == 9
    )
    driver = Driver(num_pages=4, page_size=4).run([[ended, other], *LATER, [Finish(0, 1)]])
    assert answers(driver, other)
    assert driver.core.scheduler.is_empty


@pytest.mark.parametrize("num_pages", range(36, 60, 3))
def test_what_several_share_is_not_evicted_for_the_first_of_them(num_pages):
    """All are admitted in one step: the longest match first, whose new pages evict the oldest."""
    old = [*range(1, 25)]
    young = [*range(31, 63)]
    before = [submit(0, old, 1), submit(1, young, 1)]
    fill = submit(2, [5] * (4 * (num_pages - 18)), 1)
    first = submit(3, [*young, *range(1, 22)], 2)
    others = [submit(4 + at, [*old, 30, at, 30], 2) for at in range(9)]
    turns = [before[:1], *LATER, before[1:], *LATER, [fill], *LATER, [first, *others]]
    driver = Driver(num_pages=num_pages, page_size=4, budget=256).run(turns)
    assert all(answers(driver, request) for request in (first, *others))


@st.composite
def bursts(draw):
    """Turns of requests over few tokens, so that many share much, and a pool for the longest."""
    page_size = draw(st.sampled_from([1, 2, 4]))
    lengths = draw(st.lists(st.integers(4, 40), min_size=2, max_size=4))
    stems = [[at] * length for at, length in enumerate(lengths, 1)]
    end = st.lists(st.integers(1, 9), min_size=1, max_size=3)
    long_end = st.lists(st.integers(1, 9), min_size=10, max_size=30)
    ends = st.one_of(end, end, end, long_end)
    prompt = st.tuples(st.sampled_from(stems), ends).map(lambda parts: [*parts[0], *parts[1]])
    burst = st.lists(st.tuples(prompt, st.integers(1, 3)), min_size=1, max_size=10)
    turns = draw(st.lists(burst, min_size=2, max_size=5))
    longest = max(len(prompt) + most for turn in turns for prompt, most in turn)
    pages = -(-longest // page_size) + 2 + draw(st.integers(0, 24))
    return turns, {"num_pages": pages, "page_size": page_size, "budget": draw(st.integers(16, 256))}


@settings(max_examples=120, deadline=None)
@given(bursts())
def test_no_admission_is_promised_pages_that_there_are_not(drawn):
    """Of whatever comes together: what is evicted for one may be what another was counted on."""
    turns, config = drawn
    schedule, asked = [], []
    for turn in turns:
        new = [submit(len(asked) + at, prompt, most) for at, (prompt, most) in enumerate(turn)]
        asked += new
        schedule += [new, *LATER]
    driver = Driver(**config).run(schedule)
    assert all(answers(driver, request) for request in asked)
    assert driver.core.scheduler.is_empty
