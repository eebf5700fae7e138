"""What an admission or a release is said to change, beside what it does change."""

from boughs_fixtures_cache_world import World, encode
from hypothesis import HealthCheck, given, settings, strategies as st

from boughs.radix import PrefixCache

WORLDS = st.tuples(
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(0, 12),
    st.sampled_from([True, True, True, False]),
    st.integers(0, 120),
)


def lived(seed, page_size, spare, enabled, steps):
    """A world after some operations, between two steps and with no copy pending."""
    pages = 36 // page_size + 4 + spare
    world = World(seed, num_pages=pages, page_size=page_size, enabled=enabled)
    world.run(steps, verify=False)
    world.end()
    world.begin()
    world.end()
    assert not len(world.cache.copies)
    return world


def quickly(test):
    return settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))(test)


def figures(cache):
    return cache.stats(), cache.available(), cache.tree.tick, [n.locks for n in nodes(cache)]


def nodes(cache):
    stack = list(cache.tree.roots.values())
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()


def rows(request):
    return request.sequence, encode(request.tokens[: request.computed])


def may_go_on(spot, size, freed=()):
    """Whether a match, or what others hold of it, ends inside a page, which it may go on in."""
    node, end = spot.node, spot.length
    inside = end % size > 0
    while node is not None and node.parent and (not node.locks or id(node) in freed):
        node, end = node.parent, node.start
    return inside or end % size > 0


@given(WORLDS, st.data())
@quickly
def test_a_refund_is_what_comes(world, data):
    """Of any requests, in any order, to the page; and asking changes nothing."""
    world = lived(*world)
    cache = world.cache
    leaving = data.draw(st.permutations(world.requests))
    groups = []
    while leaving:
        count = data.draw(st.integers(1, 3))
        groups.append(leaving[:count])
        leaving = leaving[count:]
    before = figures(cache)
    told = list(cache.refunds([rows(request) for request in group] for group in groups))
    assert figures(cache) == before
    for group, refund in zip(groups, told, strict=True):
        had = cache.available()
        for request in group:
            cache.commit(*rows(request), request.computed)
            cache.release(request.sequence)
        assert cache.available() - had == refund.pages
    cache.check()


@given(WORLDS, st.data())
@quickly
def test_a_price_is_what_goes(world, data):
    """Of several admissions, one after the other, whatever was evicted since they were priced."""
    world = lived(*world)
    cache, size = world.cache, world.page_size
    asked = [
        world._draw(data.draw(st.integers(2, 40))) for _ in range(data.draw(st.integers(1, 4)))
    ]
    before = figures(cache)
    spots = [cache.tree.find(encode(tokens[:-1])) for tokens in asked]
    told = [cache.price(spot, len(t)) for spot, t in zip(spots, asked, strict=True)]
    less = may_go_on(spots[0], size)
    assert figures(cache) == before
    had = room = cache.available()
    admitted, taken = [], {}
    for tokens, price in zip(asked, told, strict=True):
        least = price.pages - sum(min(s.pages, taken.get(s.node, 0)) for s in price.path)
        if room >= least:
            admitted.append(encode(tokens[:-1]))
            room -= least + price.copies
            for segment in price.path:
                taken[segment.node] = max(segment.pages, taken.get(segment.node, 0))
    kept = [cache.keep(tokens) for tokens in admitted] if len(admitted) > 1 else []
    for tokens in admitted:
        world.eviction.evict(data.draw(st.integers(0, 3)))
        cache.grow(cache.admit(tokens), len(tokens) // 4 + 1)  # never out of pages
    for node in kept:
        cache.let_go(node)
    goes = had - cache.available()
    assert goes <= had - room
    if len(asked) == len(admitted) == 1:
        assert goes >= told[0].pages - less
    cache.check()


@given(WORLDS, st.data())
@quickly
def test_a_price_after_refunds(world, data):
    """What a match shares with requests that go before it is to be paid, and only that."""
    world = lived(*world)
    cache = world.cache
    going = world.requests[: data.draw(st.integers(0, len(world.requests)))]
    tokens = world._draw(data.draw(st.integers(2, 40)))
    told = list(cache.refunds([rows(request)] for request in going))
    freed = frozenset().union(*(refund.nodes for refund in told))
    spot = cache.tree.find(encode(tokens[:-1]))
    price = cache.price(spot, len(tokens), freed)
    least = price.pages + sum(s.pages for s in price.path if s.held)
    less = may_go_on(spot, world.page_size, freed)
    for request in going:
        cache.commit(*rows(request), request.computed)
        cache.release(request.sequence)
    had = cache.available()
    if had >= least:
        sequence = cache.admit(encode(tokens[:-1]))
        cache.grow(sequence, len(tokens))
        more = price.copies or bool(going)  # what they commit, the match may go on in
        assert least - less <= had - cache.available() <= least + more


def test_a_long_path_that_is_held_costs_no_walk():
    """Only the part that nobody holds is listed."""
    cache = PrefixCache(200, 4)
    held, depth = [], 30
    for end in range(1, depth + 1):
        tokens = encode(list(range(end * 4)))
        sequence = cache.admit(tokens)
        cache.grow(sequence, end * 4)
        cache.copies_done(cache.take_copies())
        cache.commit(sequence, tokens, end * 4)
        held.append(sequence)
    tokens = encode(list(range(depth * 4)))
    price = cache.price(cache.tree.find(tokens), depth * 4 + 1)
    assert (price.pages, price.copies, price.path) == (1, False, ())
    for sequence in held:
        cache.release(sequence)
    price = cache.price(cache.tree.find(tokens), depth * 4 + 1)
    assert price.pages == depth + 1
    assert sum(segment.pages for segment in price.path) == depth
