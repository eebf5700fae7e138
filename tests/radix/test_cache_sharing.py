"""What shares and what does not, what goes first, and what the figures say."""

from itertools import pairwise

import pytest
from boughs_fixtures_cache_world import assert_empty, encode, start, step, store

from boughs.radix import PrefixCache


def test_namespaces_share_nothing_and_are_dropped_when_empty():
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


def test_forks_share_whole_pages_and_copy_the_rest():
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


def test_without_prefix_reuse_nothing_stays():
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


def test_the_least_recently_used_leaf_goes_first():
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


def test_peek_touches_nothing():
    cache = PrefixCache(40, 4)
    for first in (0, 100):
        store(cache, encode(range(first, first + 8)))
    before = cache.tree.nodes, cache.tree.tick
    assert cache.peek(encode([0, 1, 2])) == 3
    assert (cache.tree.nodes, cache.tree.tick) == before
    sequence = cache.admit(b"")
    cache.grow(sequence, (cache.pool.free + 1) * 4)
    assert cache.peek(encode(range(8))) == 4  # still the least recently used


def test_eviction_cuts_no_more_than_it_needs():
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
    assert (cache.stats().evicted_pages, cache.stats().evicted_tokens) == (40, 160)


def test_chunks_of_one_prompt_are_one_segment():
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


def test_tokens_are_whole():
    with pytest.raises(AssertionError, match="int32"):
        PrefixCache(10, 4).peek(encode(range(3))[:-1])


def test_an_older_commit_changes_nothing():
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


def test_use_is_noted():
    cache = PrefixCache(40, 4)
    for first in (0, 100):
        store(cache, encode(range(first, first + 6)))
    old, new = (cache.tree.match(encode(range(first, first + 6)))[0] for first in (0, 100))
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
    cut = cache.tree.lock_prefix(encode([0, 1, 2, 99]))
    assert (cut.hits, cut.priority) == (old.hits, old.priority) == (2, 5)
    assert cut.last_use == old.last_use
    stats = cache.stats()
    assert (stats.admissions, stats.hit_tokens, stats.admitted_tokens) == (4, 12, 24)
    cache.release(cache.admit(encode([0, 1, 2])))
    assert old.last_use < cut.last_use == cache.tree.tick  # although it is held by others


def test_stats_tell_where_the_pages_are():
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


def test_without_prefix_reuse_a_family_keeps_its_prefixes_while_it_is_there():
    cache = PrefixCache(8, 4, enabled=False)
    tokens = encode(range(10))
    scope = cache.scope("salt", 1)
    for _ in range(3):
        cache.join(scope)
    store(cache, tokens, namespace="salt", family=1)
    cache.leave(scope)
    again = start(cache, tokens, namespace="salt", family=1)
    assert again.cached == 10
    assert start(cache, tokens[:4], namespace="salt", family=2).cached == 0
    step(cache)
    cache.release(again)
    cache.check()
    cache.leave(scope)
    assert cache.stats().cached == 3
    # Room is made of them as of others.
    taker = start(cache, encode(range(100, 118)))
    assert cache.pool.free == 0
    cache.check()
    cache.release(taker)
    store(cache, tokens, namespace="salt", family=1)
    cache.leave(scope)
    cache.check()
    assert cache.stats().cached == 0
    assert cache.stats().namespaces == 1, "the other family's"


def test_a_family_that_leaves_amid_a_copy_leaves_nothing():
    cache = PrefixCache(20, 4, enabled=False)
    tokens = encode(range(10))
    scope = cache.scope("", 1)
    cache.join(scope)
    store(cache, tokens, family=1)
    first, second = (start(cache, tokens, family=1) for _ in range(2))
    orders = cache.take_copies()
    assert orders
    for sequence in (first, second):
        cache.release(sequence)
    cache.leave(scope)
    cache.check()
    cache.copies_done(orders)
    assert_empty(cache)
