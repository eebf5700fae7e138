"""The parts of the cache by themselves: pool, comparing, spots, policies, events, leases, views."""

import doctest
import importlib
import pkgutil
import random
import subprocess
import sys

import numpy as np
import pytest
from boughs_fixtures_cache_world import encode, store
from hypothesis import given, strategies as st

import boughs.radix
from boughs.radix import (
    Eviction,
    Leases,
    OutOfPages,
    PagePool,
    PrefixCache,
    RadixTree,
    take_snapshot,
)
from boughs.radix.node import common

# ---- documents and imports ----


MODULES = ["", *(f".{module.name}" for module in pkgutil.iter_modules(boughs.radix.__path__))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_the_documentation_run(name):
    result = doctest.testmod(importlib.import_module(f"boughs.radix{name}"))
    assert result.failed == 0
    if name in ("", ".pool", ".tree", ".cache", ".events", ".leases", ".snapshot"):
        assert result.attempted > 0


ALONE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in ("boughs", "numpy", *sys.stdlib_module_names):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import doctest
import boughs.radix
from boughs.radix import *
PrefixCache(4, 4).check()
assert not {"boughs.lang", "boughs.runtime", "boughs.kernels"} & set(sys.modules)
try:
    import torch
except ModuleNotFoundError:
    print(*doctest.testmod(boughs.radix))
"""


def test_the_package_works_in_a_python_with_numpy_alone():
    command = [sys.executable, "-P", "-c", ALONE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    failed, attempted = map(int, done.stdout.split())
    assert failed == 0 < attempted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 4, "lru"), "at least 2 pages"),
        ((4, 0, "lru"), "page_size"),
        ((4, 4, "mru"), "lru, lfu, fifo, priority"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PrefixCache(*arguments[:2], policy=arguments[2])


def test_the_smallest_cache_holds_one_token():
    cache = PrefixCache(2, 1)
    assert store(cache, encode([7])) == 0
    assert store(cache, encode([7])) == 1
    assert store(cache, encode([8])) == 0
    assert cache.stats().evicted_tokens == 1


# ---- the pool ----


@pytest.mark.parametrize("most", [3, 100])
def test_pool_against_a_counter(most):
    rng = random.Random(0)
    pool = PagePool(300)
    held: list[list[int]] = []
    for _ in range(2000):
        kind = rng.randrange(3)
        if kind == 0:
            count = rng.randint(0, most)
            if count <= pool.free:
                held.append(pool.take(count))
            else:
                before = pool.free
                with pytest.raises(OutOfPages):
                    pool.take(count)
                assert pool.free == before
        elif kind == 1 and held:
            pages = rng.choice(held)
            pool.share(pages)
            held.append(list(pages))
        elif held:
            pages = held.pop(rng.randrange(len(held)))
            alone = [p for p in pages if not any(p in other for other in held)]
            assert pool.drop(pages) == len(alone)
        counts: dict[int, int] = {}
        for pages in held:
            for page in pages:
                counts[page] = counts.get(page, 0) + 1
        assert pool.faults(counts) == []
        assert pool.free == 299 - len(counts)


# ---- comparing ----


@given(st.lists(st.integers(0, 300), max_size=400), st.integers(0, 420), st.integers(0, 5))
def test_common_counts_whole_tokens(tokens, differ, at):
    other = list(tokens)
    if differ < len(other):
        other[differ] ^= 1 << (differ % 24)  # in any byte of the token
    else:
        other = other[: max(0, len(other) - differ % 7)]
    segment = np.array(tokens, "<i4").tobytes()
    rest = np.array([9] * at + other, "<i4").tobytes()
    expected = 0
    while expected < min(len(tokens), len(other)) and tokens[expected] == other[expected]:
        expected += 1
    assert common(segment, rest, 4 * at) == 4 * expected


def test_tokens_that_share_bytes_but_not_places_are_not_equal():
    cache = PrefixCache(20, 4)
    store(cache, encode([1, 0, 0]))
    assert cache.peek(encode([0x01000000, 0, 0])) == 0
    assert cache.peek(encode([0, 1, 0])) == 0
    assert cache.peek(encode([1, 0x01000000, 0])) == 1


# ---- spots ----


def test_a_spot_stays_good_until_the_tree_changes_under_it():
    cache = PrefixCache(60, 4)
    tree = cache.tree
    store(cache, encode(range(20)))
    tokens = encode([*range(12), 50, 51, 52])
    spot = tree.find(tokens)
    store(cache, encode([100, 101, 102]))  # elsewhere
    assert tree.refind(spot, tokens) is spot
    store(cache, encode([*range(12), 70]))  # splits the segment at the spot
    again = tree.refind(spot, tokens)
    assert (again.length, again is spot) == (12, False)
    store(cache, encode([*range(12), 50, 51]))  # goes on from there
    assert tree.refind(again, tokens).length == 14
    cache.flush()
    assert tree.refind(again, tokens).length == 0
    store(cache, tokens)
    assert tree.refind(again, tokens).length == 15


def test_what_the_tree_has_changed_under_cannot_be_locked():
    cache = PrefixCache(60, 4)
    tree = cache.tree
    store(cache, encode(range(20)))
    node, length = tree.match(encode(range(12)))
    with pytest.raises(AssertionError, match="goes on behind"):
        tree.lock(node, 21)
    for cut in (14, 12):
        tree.unlock(tree.lock_prefix(encode(range(cut))))
        for before in (length, node.start):
            with pytest.raises(AssertionError, match="does not hold"):
                tree.lock(node, before)
    cache.check()
    cache.flush()
    with pytest.raises(AssertionError, match="has left"):
        tree.lock(node, length)


# ---- policies ----


def fill(policy):
    """Prompts a, b, c, d of one page each, in a pool that is full."""
    cache = PrefixCache(5, 4, policy=policy)
    prompts = {
        name: encode(range(first, first + 4))
        for name, first in zip("abcd", (0, 9, 20, 30), strict=True)
    }
    for name, priority in zip("abcd", (3, 1, 2, 1), strict=True):
        store(cache, prompts[name], priority=priority)
    for name in "aaabbd":
        cache.release(cache.admit(prompts[name]))
    return cache, prompts


@pytest.mark.parametrize(
    ("policy", "order"), [("lru", "cabd"), ("lfu", "cdba"), ("fifo", "abcd"), ("priority", "bdca")]
)
def test_policies_evict_in_their_order(policy, order):
    cache, prompts = fill(policy)
    sequence = cache.admit(b"")
    gone = ""
    for pages in range(1, 5):
        cache.grow(sequence, 4 * pages)
        cache.check()
        gone += "".join(n for n in "abcd" if n not in gone and not cache.peek(prompts[n]))
    assert gone == order


@pytest.mark.parametrize("policy", ["lfu", "fifo", "priority"])
def test_a_heap_does_not_grow_with_use(policy):
    cache, prompts = fill(policy)
    for _ in range(1000):
        cache.release(cache.admit(prompts["a"]))
    assert len(cache.tree.policy._heap) < 100
    cache.check()


def test_an_evicted_node_keeps_no_neighbours():
    """Who still has it, as a spot or a lease that ended does, keeps no other nodes alive by it."""
    cache, prompts = fill("lru")
    node = cache.tree.match(prompts["a"])[0]
    cache.flush()
    assert (node.older, node.newer) == (None, None)


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "priority"])
def test_policies_keep_their_order_whatever_is_used_again(policy):
    """So many uses that a heap is rebuilt again and again."""
    rng = random.Random(0)
    cache = PrefixCache(400, 4, policy=policy)
    prompts = [encode([k, *range(4)]) for k in range(150)]
    for prompt in prompts:
        store(cache, prompt)
    for _ in range(10):
        for prompt in rng.sample(prompts, 140):
            cache.release(cache.admit(prompt, priority=rng.randrange(9)))
        cache.check()
    nodes = [cache.tree.match(prompt)[0] for prompt in prompts]
    key = {
        "lru": lambda node: node.last_use,
        "lfu": lambda node: (node.hits, node.last_use),
        "fifo": lambda node: node.segment,
        "priority": lambda node: (node.priority, node.last_use),
    }[policy]
    gone = []
    while (victim := cache.tree.policy.victim()) is not None:
        gone.append(victim)
        cache.tree.remove(victim)
    assert gone == sorted(nodes, key=key)
    cache.check()


# ---- leases ----


def test_leases_end_by_release_owner_and_deadline():
    cache = PrefixCache(20, 4)
    tokens = encode(range(10))
    store(cache, tokens)
    leases = [
        cache.leases.pin(tokens[: 4 * n], owner, deadline)
        for n, owner, deadline in ((10, "a", 9.0), (7, "a", 3.0), (5, "b", 5.0), (10, "c", 7.0))
    ]
    cache.check()
    stats = cache.stats()
    assert (stats.leases, stats.leased, stats.evictable) == (4, 3, 3)
    assert [lease.tokens for lease in leases] == [10, 7, 5, 10]
    cache.leases.release(leases[3])
    cache.leases.release(leases[3])
    assert cache.leases.expire(4.0) == 1
    assert cache.leases.release_owner("a") == 1
    cache.check()
    assert [lease.state for lease in leases] == ["released", "expired", "held", "released"]
    assert cache.stats().leased == 1  # the page in which the last lease ends is listed below it
    assert cache.leases.expire(5.0) == 1
    assert cache.stats().leased == 0
    cache.check()


def test_leases_that_say_the_same_are_two():
    cache = PrefixCache(20, 4)
    store(cache, encode(range(8)))
    first, second = (cache.leases.pin(encode(range(8)), "a", 9.0) for _ in range(2))
    cache.leases.release(second)
    cache.check()
    assert (list(cache.leases), first.state) == ([first], "held")


def test_leased_pages_are_available_and_go_last():
    cache = PrefixCache(11, 4)
    for first in (0, 100):
        store(cache, encode(range(first, first + 20)))
    lease = cache.leases.pin(encode(range(20)), "a", 1.0)
    sequence = cache.admit(b"")
    assert cache.available() == 10
    cache.grow(sequence, 5 * 4)
    assert (lease.state, cache.peek(encode(range(20)))) == ("held", 20)
    cache.grow(sequence, 6 * 4)
    assert lease.state == "broken"
    assert cache.peek(encode(range(20))) == 16
    assert cache.stats().leases_broken == 1
    cache.check()


def test_a_lease_on_what_a_request_holds_is_not_broken_in_vain():
    cache = PrefixCache(6, 4)
    tokens = encode(range(8))
    store(cache, tokens)
    held = cache.admit(tokens)
    lease = cache.leases.pin(tokens, "a", 1.0)
    other = cache.admit(b"")
    with pytest.raises(OutOfPages):
        cache.grow(other, 4 * 4)
    cache.grow(other, 4 * 3)
    assert lease.state == "held"
    cache.release(held)
    cache.grow(other, 4 * 4)
    assert lease.state == "broken"
    cache.check()


def test_a_lease_keeps_its_prefix_where_there_is_other_room():
    cache = PrefixCache(11, 4)
    tokens = encode(range(8))
    store(cache, tokens)
    cache.leases.pin(tokens, "a", 1.0)
    for first in range(100, 2000, 100):
        store(cache, encode(range(first, first + 12)))
    assert cache.peek(tokens) == 8
    cache.check()


def test_a_flush_breaks_leases():
    cache = PrefixCache(20, 4)
    store(cache, encode(range(8)))
    leases = [cache.leases.pin(encode(range(n)), "a", 1.0) for n in (8, 3)]
    held = cache.admit(encode(range(3)))
    assert cache.flush() == 1
    assert [lease.state for lease in leases] == ["broken", "broken"]
    assert (cache.stats().leases, cache.stats().leases_broken) == (0, 2)
    cache.check()
    cache.release(held)


# ---- events ----


def test_events_tell_what_came_and_went():
    cache = PrefixCache(20, 4)
    store(cache, encode([1, 2, 3, 4, 5]))
    log = cache.tree.events.listen(cache.tree.roots.values())
    store(cache, encode([1, 2, 9]))
    kinds = [(e.kind, e.segment, e.parent, e.start, e.end) for e in log]
    assert kinds == [("stored", 1, 0, 0, 5), ("stored", 2, 1, 2, 3)]
    assert len(log) == 0
    cache.flush()
    assert [event.kind for event in log] == ["flushed"]
    cache.tree.events.unlisten(log)
    store(cache, encode([1]))
    assert len(log) == 0


def test_a_flush_tells_what_stays():
    cache = PrefixCache(20, 4)
    for tokens in (range(6), [0, 1, 7, 8], range(50, 60)):
        store(cache, encode(tokens))
    held = cache.admit(encode([0, 1, 7, 8]))
    log = cache.tree.events.listen()
    cache.flush()
    events = list(log)
    assert events[0].kind == "flushed"
    stays = [(e.kind, e.start, np.frombuffer(e.tokens, "<i4").tolist()) for e in events[1:]]
    assert stays == [("stored", 0, [0, 1]), ("stored", 2, [7, 8])]
    cache.release(held)


def test_a_listener_that_does_not_read_costs_a_bounded_amount():
    cache = PrefixCache(200, 4)
    log = cache.tree.events.listen(limit=10)
    for first in range(0, 3000, 100):
        store(cache, encode(range(first, first + 5)))
    assert (len(log), log.lost) == (10, 20)
    cache.flush()
    assert [event.kind for event in log] == ["flushed"]
    with pytest.raises(ValueError, match="limit"):
        cache.tree.events.listen(limit=0)


# ---- snapshots ----


def test_a_snapshot_is_plain_data_of_bounded_size():
    cache = PrefixCache(400, 4)
    for branch in range(50):
        store(cache, encode([*range(6), 100 + branch, *range(10)]))
    held = cache.admit(encode([*range(6), 100]))
    cache.leases.pin(encode(range(6)), "a", 1.0)
    whole = take_snapshot(cache.tree)
    assert (len(whole.segments), whole.omitted) == (cache.tree.nodes, 0)
    top = whole.segments[0]
    assert (top.parent, top.start, top.end, top.tokens) == (None, 0, 6, tuple(range(6)))
    assert (top.children, top.leases, top.num_pages) == (50, 1, 1)
    assert top.locks == 2  # the request and its copy
    assert top.hits >= 50
    assert sum(segment.num_pages for segment in whole.segments) == cache.stats().cached
    for segment in whole.segments[1:]:
        assert whole.segments[segment.parent].end == segment.start
    part = take_snapshot(cache.tree, max_segments=7, max_tokens=3)
    assert (len(part.segments), part.omitted) == (7, cache.tree.nodes - 7)
    assert part.segments[0].tokens == (0, 1, 2)
    assert take_snapshot(cache.tree, max_segments=0).segments == []
    cache.release(held)


# ---- the tree without the cache ----


def test_the_tree_alone():
    pool = PagePool(20)
    tree = RadixTree(pool, page_size=4)
    eviction = Eviction(tree, Leases(tree))
    handle = tree.lock_prefix(encode(range(6)))
    pages = eviction.take(2)
    handle = tree.append(handle, encode(range(6)), pages)
    tree.check()
    assert eviction.available() == 17
    eviction.unlock(handle)  # which keeps the prefix, where not told otherwise
    tree.check()
    assert eviction.available() == 19
    with pytest.raises(AssertionError, match="more often"):
        tree.unlock(handle)
    assert eviction.evict(1) == 1
    assert tree.match(encode(range(6)))[1] == 4
    assert eviction.clear() == 1
    tree.check()
    assert tree.roots == {}
