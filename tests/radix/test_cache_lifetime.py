"""Faults that users of such systems report, one test each: lifetime of pages, and their edges."""

from itertools import pairwise

import pytest

from boughs.radix import OutOfPages, PrefixCache


@pytest.fixture
def encode(world):
    return world.encode


def start(cache, tokens, **options):
    """Admit a request and give it pages for all its tokens (int32 bytes)."""
    sequence = cache.admit(tokens, **options)
    cache.grow(sequence, len(tokens) // 4)
    return sequence


def step(cache):
    """A step of the runtime, as far as copies go."""
    cache.copies_done(cache.take_copies())


def store(cache, tokens, **options):
    """A whole request: everything of it is cached afterwards."""
    sequence = start(cache, tokens, **options)
    step(cache)
    cache.commit(sequence, tokens, len(tokens) // 4)
    cache.release(sequence)
    cache.check()
    return sequence.cached


def assert_empty(cache):
    """Everything can be freed: nothing leaked."""
    cache.check()
    cache.flush()
    stats = cache.stats()
    assert (stats.free, stats.cached, stats.private) == (stats.pages, 0, 0)
    assert stats.namespaces == 0


# ---- lifetime of pages ----


@pytest.mark.parametrize("moment", ["copy given", "copy taken", "copy done", "rows", "committed"])
@pytest.mark.parametrize("source_evicted", [False, True])
def test_abort_at_any_moment_neither_leaks_nor_frees_twice(encode, moment, source_evicted):
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


def test_release_and_unlock_twice_are_noticed(encode):
    cache = PrefixCache(12, 4)
    sequence = start(cache, encode(range(6)))
    cache.release(sequence)
    with pytest.raises(AssertionError, match="released before"):
        cache.release(sequence)
    with pytest.raises(AssertionError, match="was released"):
        cache.grow(sequence, 8)
    with pytest.raises(AssertionError, match="was released"):
        cache.commit(sequence, encode(range(6)), 6)
    handle = cache.tree.lock(cache.tree.find(b""))
    cache.tree.unlock(handle)
    with pytest.raises(AssertionError, match="more often"):
        cache.tree.unlock(handle)


@pytest.mark.parametrize("length", range(1, 14))
def test_retract_at_any_length_keeps_every_computed_token_and_no_page(encode, length):
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


def test_pages_freed_at_a_merge_leave_the_page_table(encode):
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


def test_rows_of_rejected_tokens_are_seen_by_nobody_and_written_again(encode):
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


def test_a_page_that_branches_share_is_counted_once(encode):
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


def test_a_page_below_a_locked_branching_point_is_not_promised(encode):
    """The last branch under a locked node that ends inside a page leaves that page behind."""
    cache = PrefixCache(8, 4)
    tokens = encode(range(11))
    store(cache, tokens)
    handle = cache.tree.lock(cache.tree.find(tokens[:20]))
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
def test_the_match_is_not_evicted_for_its_own_copy(encode, pages):
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


def test_two_requests_copy_from_one_page_while_its_writer_goes_on_and_ends(encode):
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


def test_a_page_being_copied_leaves_the_tree_and_comes_back_elsewhere(encode):
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


def test_out_of_pages_changes_nothing_and_leases_break_by_deadline(encode):
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


def test_rows_cannot_be_computed_before_the_copy_that_they_follow(encode):
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


# ---- page edges ----


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 64])
def test_matching_is_exact_to_the_token(encode, page_size):
    tokens = list(range(2 * page_size + 3))
    for length in range(1, len(tokens) + 1):
        cache = PrefixCache(20, page_size)
        store(cache, encode(tokens))
        again = [*tokens[:length], 999]
        assert cache.peek(encode(again)) == length
        sequence = start(cache, encode(again))
        assert sequence.cached == length
        orders = cache.take_copies()
        # Nobody goes on in the last page of a prompt: that one needs no copy.
        cut = length % page_size if length < len(tokens) else 0
        assert [order.rows for order in orders] == [cut][:cut]
        cache.copies_done(orders)
        cache.commit(sequence, encode(again), length + 1)
        cache.release(sequence)
        assert cache.peek(encode(again)) == length + 1
        assert cache.peek(encode(tokens)) == len(tokens)
        assert_empty(cache)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
def test_a_prompt_that_is_wholly_cached_leaves_its_last_token_to_compute(encode, length):
    cache = PrefixCache(20, 4)
    tokens = encode(range(length))
    store(cache, tokens)
    sequence = cache.admit(tokens[:-4])
    cache.grow(sequence, length)
    assert sequence.cached == length - 1
    step(cache)
    cache.commit(sequence, tokens, length)
    cache.check()
    cache.release(sequence)
    assert cache.peek(tokens) == length
    assert_empty(cache)


def test_alone_a_request_may_fill_the_pool_whatever_is_cached(encode):
    """No match may cost the page that its own request then lacks."""
    for cached in range(1, 32):
        for shared in range(cached + 1):
            cache = PrefixCache(9, 4)
            store(cache, encode(range(cached)))
            tokens = encode([*range(shared), *range(100, 132 - shared)])
            sequence = cache.admit(tokens[:-4])
            cache.grow(sequence, 32)
            assert sequence.cached >= shared // 4 * 4
            step(cache)
            cache.commit(sequence, tokens, 32)
            cache.release(sequence)
            assert_empty(cache)


def test_a_match_takes_no_copy_where_the_request_would_lack_the_page(encode):
    for length, cached in ((None, 6), (28, 6), (29, 4)):
        cache = PrefixCache(9, 4)
        store(cache, encode(range(7)))
        other = cache.admit(b"")
        sequence = cache.admit(encode([*range(6), 9]), length=length)
        assert sequence.cached == cached
        cache.grow(sequence, 28 if length is None else length)
        cache.release(sequence)
        cache.release(other)
        assert_empty(cache)


def test_turns_of_a_conversation_go_on_in_their_last_page(encode):
    cache = PrefixCache(40, 16)
    tokens = []
    for turn in range(12):
        tokens += [turn * 10 + k for k in range(5)]
        assert store(cache, encode(tokens)) == len(tokens) - 5
        stats = cache.stats()
        assert (stats.cached, stats.nodes, stats.copies) == (-(-len(tokens) // 16), 1, 0)
    assert_empty(cache)


def test_only_one_goes_on_in_the_last_page(encode):
    cache = PrefixCache(40, 16)
    tokens = encode(range(20))
    store(cache, tokens)
    sequences = [start(cache, encode([*range(20), 50 + k])) for k in range(3)]
    cache.check()
    assert [sequence.cached for sequence in sequences] == [20] * 3
    assert len({sequence.pages[1] for sequence in sequences}) == 3
    orders = cache.take_copies()
    assert [order.source for order in orders] == [sequences[0].pages[1]] * 2
    cache.copies_done(orders)
    cache.release(sequences.pop(0))
    sequences.append(start(cache, encode([*range(20), 60])))  # the page is without a writer again
    assert cache.take_copies() == []
    for k, sequence in enumerate(sequences):
        cache.commit(sequence, encode([*range(20), 70 + k]), 21)
        cache.check()
    for sequence in sequences:
        cache.release(sequence)
    assert_empty(cache)


def test_branches_inside_a_page_bind_no_page_more_than_their_tokens(encode):
    """A prompt that leaves another inside a page, and another that, and so on."""
    cache = PrefixCache(40, 16)
    tokens = []
    for turn in range(12):
        tokens = [*tokens[:-1], *(turn * 10 + k for k in range(4))]
        store(cache, encode(tokens))
    held = cache.admit(encode(tokens))
    pages = -(-len(tokens) // 16)
    assert len(held.pages) == pages
    assert cache.available() == cache.stats().pages - pages
    cache.release(held)
    assert_empty(cache)


# ---- what shares, and what does not ----


def test_namespaces_share_nothing_and_are_dropped_when_empty(encode):
    cache = PrefixCache(20, 4)
    tokens = encode(range(9))
    for namespace in ("", "salt", ("adapter", 7)):
        assert store(cache, tokens, namespace=namespace) == 0
        assert cache.peek(tokens, namespace) == 9
    assert cache.stats().namespaces == 3
    assert cache.peek(tokens, "other") == 0
    assert cache.stats().namespaces == 3
    sequence = cache.admit(tokens, "other")
    assert cache.stats().namespaces == 4
    cache.release(sequence)
    assert cache.stats().namespaces == 3
    assert_empty(cache)


def test_forks_share_whole_pages_and_copy_the_rest(encode):
    cache = PrefixCache(20, 4)
    tokens = encode(range(10))
    parent = start(cache, tokens)
    cache.commit(parent, tokens, 10)
    children = [cache.fork(parent, length) for length in (10, 8, 7, 0)]
    cache.check()
    assert [child.cached for child in children] == [10, 8, 7, 0]
    assert [len(child.pages) for child in children] == [3, 2, 2, 0]
    assert children[0].pages[:2] == children[1].pages == parent.pages[:2]
    assert [(order.source, order.rows) for order in cache.take_copies()] == [
        (parent.pages[2], 2),
        (parent.pages[1], 3),
    ]
    with pytest.raises(AssertionError, match="commit"):
        cache.fork(parent, 11)
    for sequence in (parent, *children):
        cache.release(sequence)
    cache.copies_done([copy.order for copy in cache.copies])
    assert_empty(cache)


def test_without_prefix_reuse_nothing_stays(encode):
    cache = PrefixCache(20, 4, enabled=False)
    tokens = encode(range(10))
    first, second = start(cache, tokens), start(cache, tokens)
    for sequence in (first, second):
        assert sequence.cached == 0
        cache.commit(sequence, tokens, 10)
    child = cache.fork(first, 10)
    assert child.cached == 10
    assert cache.peek(tokens) == 0
    cache.check()
    cache.release(first)
    cache.check()
    orders = cache.take_copies()
    cache.release(second)
    cache.release(child)
    cache.check()
    cache.copies_done(orders)
    stats = cache.stats()
    assert (stats.free, stats.nodes, stats.namespaces) == (stats.pages, 0, 0)


def test_the_least_recently_used_leaf_goes_first(encode):
    cache = PrefixCache(40, 4)
    prompts = [encode(range(first, first + 8)) for first in range(0, 500, 100)]
    for prompt in prompts:
        store(cache, prompt)
    for index in (1, 3, 0):  # used again; 2 and 4 were not
        cache.release(cache.admit(prompts[index]))
    gone = []
    sequence = cache.admit(b"")
    for pages in range(cache.pool.free, cache.stats().pages + 1):
        cache.grow(sequence, pages * 4)
        gone += [i for i, p in enumerate(prompts) if cache.peek(p) == 0 and i not in gone]
    assert gone == [2, 4, 1, 3, 0]


def test_peek_touches_nothing(encode):
    cache = PrefixCache(40, 4)
    for first in (0, 100):
        store(cache, encode(range(first, first + 8)))
    before = cache.tree.nodes, cache.tree.tick
    assert cache.peek(encode([0, 1, 2])) == 3
    assert (cache.tree.nodes, cache.tree.tick) == before
    sequence = cache.admit(b"")
    cache.grow(sequence, (cache.pool.free + 1) * 4)
    assert cache.peek(encode(range(8))) == 4  # still the least recently used


def test_eviction_cuts_no_more_than_it_needs(encode):
    cache = PrefixCache(41, 4)
    store(cache, encode(range(160)))
    sequence = cache.admit(b"")
    lengths = []
    for pages in range(1, 41):
        cache.grow(sequence, pages * 4)
        cache.check()
        lengths.append(cache.peek(encode(range(160))))
    assert lengths[0] == 160 - 2 * 4  # a sixteenth of 40 pages at once
    assert lengths[-1] == 0
    assert all(before - after <= 8 for before, after in pairwise(lengths))


def test_chunks_of_one_prompt_are_one_segment(encode):
    cache = PrefixCache(40, 4)
    tokens = encode(range(50))
    sequence = start(cache, tokens)
    for length in (7, 8, 13, 32, 50):
        cache.commit(sequence, tokens, length)
        cache.check()
        assert (cache.tree.nodes, cache.tree.tokens) == (1, length)
    other = start(cache, encode([*range(50), 60]))
    assert other.cached == 50
    cache.grow(sequence, 53)
    cache.commit(sequence, encode([*range(50), 70, 71, 72]), 53)  # not below another's feet
    cache.check()
    assert cache.tree.nodes == 2
    assert other.node.end == 50


def test_tokens_are_whole(encode):
    with pytest.raises(AssertionError, match="int32"):
        PrefixCache(10, 4).peek(encode(range(3))[:-1])


def test_an_older_commit_changes_nothing(encode):
    cache = PrefixCache(40, 4)
    tokens = encode(range(10))
    sequence = start(cache, tokens)
    cache.commit(sequence, tokens, 9)
    before = cache.stats()
    cache.commit(sequence, tokens, 5)
    assert cache.stats() == before
    with pytest.raises(AssertionError, match="without pages"):
        cache.commit(sequence, encode(range(13)), 13)
    with pytest.raises(AssertionError, match="without tokens"):
        cache.commit(sequence, tokens[:-4], 10)


def test_use_is_noted(encode):
    cache = PrefixCache(40, 4)
    for first in (0, 100):
        store(cache, encode(range(first, first + 6)))
    old, new = (cache.tree.find(encode(range(first, first + 6))).node for first in (0, 100))
    assert 0 < old.last_use < new.last_use <= cache.tree.tick
    assert (old.hits, new.hits) == (0, 0)
    cache.release(cache.admit(encode(range(6))))
    assert old.last_use > new.last_use
    assert (old.hits, new.hits) == (1, 0)
    sequence = cache.admit(encode(range(6)), priority=5)
    cache.grow(sequence, 9)
    step(cache)
    cache.commit(sequence, encode(range(9)), 9)
    assert (old.priority, new.priority, sequence.node.priority) == (5, 0, 5)
    cut = cache.tree.lock(cache.tree.find(encode([0, 1, 2, 99])))
    assert (cut.hits, cut.priority) == (old.hits, old.priority) == (2, 5)
    assert cut.last_use == old.last_use
    stats = cache.stats()
    assert (stats.admissions, stats.hit_tokens, stats.admitted_tokens) == (4, 12, 24)


def test_stats_tell_where_the_pages_are(encode):
    cache = PrefixCache(21, 4)
    tokens = encode(range(10))
    store(cache, tokens)
    running = start(cache, encode([*range(6), 50, 51, 52]))
    stats = cache.stats()
    assert (stats.pages, stats.free, stats.cached, stats.private) == (20, 15, 3, 2)
    assert (stats.unaccounted, stats.tokens, stats.nodes, stats.namespaces) == (0, 10, 3, 1)
    assert (stats.sequences, stats.pending_copies, stats.copies) == (1, 1, 1)
    assert stats.evictable == 1  # pages 0 and 1 of the old prompt are locked, one for the copy
    step(cache)
    assert cache.stats().evictable == 1  # the cut page is left to the branching point
    cache.commit(running, encode([*range(6), 50, 51, 52]), 9)
    assert cache.stats().evictable == 2
    cache.release(running)
    cache.flush()
    assert (cache.stats().evicted_pages, cache.stats().evicted_tokens) == (5, 13)
