"""Faults that users of such systems report, one test each: the lifetime of pages."""

import pytest
from boughs_fixtures_cache_world import assert_empty, encode, start, step, store

from boughs.radix import OutOfPages, PrefixCache


@pytest.mark.parametrize("moment", ["copy given", "copy taken", "copy done", "rows", "committed"])
@pytest.mark.parametrize("source_evicted", [False, True])
def test_abort_at_any_moment_neither_leaks_nor_frees_twice(moment, source_evicted):
    cache = PrefixCache(12, 4)
    store(cache, encode(range(10)))
    tokens = encode([*range(9), 50, 51, 52, 53])
    sequence = start(cache, tokens)
    assert sequence.cached == 9
    orders = []
    if moment != "copy given":
        orders = cache.take_copies()
        assert len(orders) == 1
    if moment in ("copy done", "rows", "committed"):
        cache.copies_done(orders)
        orders = []
    if moment in ("rows", "committed"):
        cache.commit(sequence, tokens, 11)
    if moment == "committed":
        cache.commit(sequence, tokens, 13)
    cache.release(sequence)
    cache.check()
    if source_evicted:
        cache.flush()
        cache.check()
    if orders:  # the step that carries the copy out still runs: its pages are not free
        assert cache.stats().private + cache.stats().cached >= 2
        other = cache.admit(b"")
        cache.grow(other, cache.available() * 4)
        assert not {orders[0].source, orders[0].destination} & set(other.pages)
        cache.release(other)
        cache.copies_done(orders)
    assert_empty(cache)


def test_release_and_unlock_twice_are_noticed():
    cache = PrefixCache(12, 4)
    sequence = start(cache, encode(range(6)))
    cache.release(sequence)
    with pytest.raises(AssertionError, match="released before"):
        cache.release(sequence)
    with pytest.raises(AssertionError, match="was released"):
        cache.grow(sequence, 8)
    with pytest.raises(AssertionError, match="was released"):
        cache.commit(sequence, encode(range(6)), 6)
    handle = cache.tree.lock_prefix(b"")
    cache.tree.unlock(handle)
    with pytest.raises(AssertionError, match="more often"):
        cache.tree.unlock(handle)


@pytest.mark.parametrize("length", range(1, 14))
def test_retract_at_any_length_keeps_every_computed_token_and_no_page(length):
    cache = PrefixCache(12, 4)
    tokens = encode(range(14))
    sequence = start(cache, tokens)
    cache.commit(sequence, tokens, length)
    cache.release(sequence)
    cache.check()
    stats = cache.stats()
    assert (stats.private, stats.cached) == (0, -(-length // 4))
    resumed = start(cache, tokens)
    assert resumed.cached == length
    step(cache)
    cache.commit(resumed, tokens, 14)
    cache.release(resumed)
    assert cache.peek(tokens) == 14
    assert_empty(cache)


def test_pages_freed_at_a_merge_leave_the_page_table():
    cache = PrefixCache(20, 4)
    tokens = encode(range(11))
    first, second = start(cache, tokens), start(cache, tokens)
    own = list(second.pages)
    assert not set(first.pages) & set(own)
    cache.commit(first, tokens, 11)
    free = cache.pool.free
    cache.commit(second, tokens, 11)
    cache.check()
    assert second.pages[:2] == first.pages[:2]  # whole pages are swapped, and freed
    assert cache.pool.free == free + 2
    assert second.pages[2] == own[2]  # the partial one is kept: both go on in their own
    cache.grow(second, 12)
    cache.commit(second, encode([*range(11), 99]), 12)
    cache.commit(first, encode([*range(11), 98]), 12)
    cache.check()
    assert first.pages[2] != second.pages[2]
    cache.release(first)
    cache.release(second)
    assert_empty(cache)


def test_rows_of_rejected_tokens_are_seen_by_nobody_and_written_again():
    cache = PrefixCache(20, 4)
    tokens = encode(range(9))
    sequence = start(cache, tokens)
    cache.commit(sequence, tokens, 6)
    cache.grow(sequence, 12)  # rows 6 to 11 are speculated, and rejected
    other = start(cache, encode([0, 1, 2, 3, 4, 5, 6, 7]))
    assert other.cached == 6
    assert other.pages[1] != sequence.pages[1]
    assert [order.rows for order in cache.take_copies()] == [2]
    cache.commit(sequence, encode([*range(6), 77]), 7)
    cache.check()
    assert cache.peek(encode([*range(6), 77])) == 7
    assert cache.peek(encode(range(9))) == 6


def test_a_page_that_branches_share_is_counted_once():
    cache = PrefixCache(30, 8)
    store(cache, encode(range(6)))
    for branch in range(5):
        store(cache, encode([*range(3 + branch % 2), 100 + branch, 101, 102]))
    store(cache, encode([*range(6), 7, 8, 9]))
    available = cache.available()
    sequence = cache.admit(b"")
    with pytest.raises(OutOfPages):
        cache.grow(sequence, available * 8 + 1)
    cache.check()
    cache.grow(sequence, available * 8)
    assert available == cache.stats().pages
    cache.release(sequence)
    assert_empty(cache)


def test_a_page_below_a_locked_branching_point_is_not_promised():
    """The last branch under a locked node that ends inside a page leaves that page behind."""
    cache = PrefixCache(8, 4)
    tokens = encode(range(11))
    store(cache, tokens)
    handle = cache.tree.lock_prefix(tokens[:20])
    available = cache.available()
    assert available == 5
    sequence = cache.admit(b"")
    with pytest.raises(OutOfPages):
        cache.grow(sequence, (available + 1) * 4)
    cache.grow(sequence, available * 4)
    assert cache.peek(tokens) == 8  # the rest of the page stays as long as nobody gains by it
    cache.tree.check()
    cache.flush()
    assert cache.peek(tokens) == 5
    assert (cache.pool.free, cache.available()) == (0, 0)
    cache.tree.check()
    cache.tree.unlock(handle)
    cache.release(sequence)
    assert_empty(cache)


@pytest.mark.parametrize("pages", range(4, 9))
def test_the_match_is_not_evicted_for_its_own_copy(pages):
    cache = PrefixCache(pages + 1, 4)
    store(cache, encode(range(pages * 4 - 1)))
    sequence = cache.admit(encode([*range(7), 99]))
    cache.check()
    assert sequence.cached == 7
    (order,) = cache.take_copies()
    assert order.rows == 3
    assert cache.peek(encode(range(7))) == 7
    cache.copies_done([order])
    cache.release(sequence)
    assert_empty(cache)


def test_two_requests_copy_from_one_page_while_its_writer_goes_on_and_ends():
    cache = PrefixCache(30, 8)
    base = encode(range(5))
    writer = start(cache, base)
    cache.commit(writer, base, 5)
    left = start(cache, encode([*range(5), 20]))
    right = start(cache, encode([*range(4), 30]))
    orders = cache.take_copies()
    assert [(order.source, order.rows) for order in orders] == [
        (writer.pages[0], 5),
        (writer.pages[0], 4),
    ]
    cache.commit(writer, encode(range(7)), 7)  # in the same page, behind the rows being copied
    cache.check()
    cache.release(writer)
    cache.check()
    cache.flush()
    cache.check()
    assert cache.pool.refs(orders[0].source) > 0
    cache.copies_done(orders)
    for sequence in (left, right):
        cache.release(sequence)
    assert_empty(cache)


def test_a_page_being_copied_leaves_the_tree_and_comes_back_elsewhere():
    """Found by random operations: the page was promised as evictable while it was being read."""
    cache = PrefixCache(30, 8)
    writer = start(cache, encode(range(8)))
    cache.commit(writer, encode(range(5)), 5)
    other = start(cache, encode([*range(6), 60]))
    step(cache)
    reader = start(cache, encode([*range(5), 70]))
    orders = cache.take_copies()
    assert orders[0].source == writer.pages[0]
    cache.commit(other, encode([*range(6), 60]), 7)  # the writer's page is cut, and not listed
    cache.release(other)
    cache.check()
    cache.commit(writer, encode([*range(6), 61]), 7)  # now it is, below the other's segment
    cache.release(writer)
    cache.check()
    rest = cache.admit(b"")
    cache.grow(rest, cache.available() * 8)
    assert orders[0].source not in rest.pages
    cache.release(rest)
    cache.copies_done(orders)
    cache.release(reader)
    assert_empty(cache)


def test_out_of_pages_changes_nothing_and_leases_break_by_deadline():
    cache = PrefixCache(11, 4)
    for first in (0, 100, 200):
        store(cache, encode(range(first, first + 12)))
    late = cache.leases.pin(encode(range(12)), "a", deadline=30.0)
    soon = cache.leases.pin(encode(range(100, 112)), "b", deadline=10.0)
    running = start(cache, encode([7]))
    with pytest.raises(OutOfPages):
        cache.grow(running, 4 * 11)
    assert (late.state, soon.state) == ("held", "held")
    cache.grow(running, 4 * 4)
    assert (late.state, soon.state) == ("held", "held")
    assert cache.peek(encode(range(200, 212))) == 0
    cache.grow(running, 4 * 5)
    assert (late.state, soon.state) == ("held", "broken")
    cache.grow(running, 4 * 10)
    assert late.state == "broken"
    cache.release(running)
    assert_empty(cache)


def test_rows_cannot_be_computed_before_the_copy_that_they_follow():
    cache = PrefixCache(20, 4)
    store(cache, encode(range(7)))
    tokens = encode([*range(6), 50])
    sequence = start(cache, tokens)
    cache.commit(sequence, tokens, 6)
    with pytest.raises(AssertionError, match="not done"):
        cache.commit(sequence, tokens, 7)
    step(cache)
    cache.commit(sequence, tokens, 7)
    cache.check()
