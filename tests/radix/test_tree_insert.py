"""Insertion from the root, without a handle."""

import pytest
from boughs_fixtures_cache_world import assert_empty, encode, start

from boughs.radix import PrefixCache


def insert(cache, tokens, namespace=""):
    """Enter a prompt; how many pages were not needed."""
    pages = cache.pool.take(-(-len(tokens) // 4))
    unused = cache.tree.insert(encode(tokens), pages, namespace)
    cache.pool.drop(pages[:unused])
    cache.check()
    return unused


def test_insertion_takes_the_pages_that_it_needs():
    cache = PrefixCache(60, 4)
    assert insert(cache, range(10)) == 0
    assert insert(cache, range(10)) == 3  # all cached
    assert insert(cache, range(6)) == 2  # the same, cut
    assert insert(cache, range(15)) == 2  # goes on in the third page, of which it has its own
    assert insert(cache, [*range(7), 20]) == 1
    assert insert(cache, range(10), "salt") == 0
    assert (cache.stats().tokens, cache.tree.cached) == (15 + 1 + 10, 4 + 1 + 3)
    assert cache.peek(encode([*range(7), 20, 21])) == 8
    assert cache.available() == 59
    assert_empty(cache)


def test_inserting_nothing_leaves_nothing():
    cache = PrefixCache(60, 4)
    assert insert(cache, []) == 0
    assert cache.tree.roots == {}


def test_insertion_below_a_prefix_that_a_request_holds():
    cache = PrefixCache(60, 4)
    tokens = encode(range(10))
    sequence = start(cache, tokens)
    cache.commit(sequence, tokens, 10)
    insert(cache, range(14))  # goes on in a page that the request goes on in, too
    insert(cache, [*range(10), 30])
    insert(cache, [*range(5), 40])
    assert cache.available() == 55  # three pages are the request's, one stays of the branches
    cache.grow(sequence, 13)
    cache.commit(sequence, encode([*range(10), 50, 51, 52]), 13)
    cache.check()
    cache.release(sequence)
    assert_empty(cache)


@pytest.mark.parametrize(
    ("policy", "order"), [("lru", "cdab"), ("lfu", "cdab"), ("fifo", "acdb"), ("priority", "cdab")]
)
def test_insertion_is_a_use(policy, order):
    """Of a leaf that is there (a), and of one that it goes on behind (b)."""
    cache = PrefixCache(60, 4, policy=policy)
    prompts = {name: [k, *range(3)] for k, name in enumerate("abcd")}
    for prompt in prompts.values():
        insert(cache, prompt)
    lease = cache.leases.pin(encode(prompts["d"]), "me", 1.0)
    insert(cache, prompts["d"])  # a lease keeps it from all policies
    cache.leases.release(lease)
    insert(cache, prompts["a"])
    insert(cache, [*prompts["b"], 9])
    gone = ""
    while (victim := cache.tree.policy.victim()) is not None:
        if victim.start == 0:
            gone += "abcd"[victim.tokens[0]]
        cache.tree.remove(victim)
        cache.check()
    assert gone == order


@pytest.mark.parametrize("held", ["", "lease", "lock"])
def test_insertion_stamps_the_whole_path(held):
    cache = PrefixCache(60, 4)
    insert(cache, range(8))
    if held == "lease":
        cache.leases.pin(encode(range(8)), "me", 1.0)
    elif held == "lock":
        cache.tree.lock_prefix(encode(range(8)))
    for length in (12, 12, 14):
        before = cache.tree.tick
        pages = cache.pool.take(-(-length // 4))
        unused = cache.tree.insert(encode(range(length)), pages)
        cache.pool.drop(pages[:unused])
        cache.tree.check()
        assert cache.tree.tick == before + 1
        up, _ = cache.tree.match(encode(range(length)))
        while up is not None:
            assert up.last_use == before + 1
            up = up.parent
