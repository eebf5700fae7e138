"""`check()` finds planted corruption of each kind, and says which it is."""

import pytest
from boughs_fixtures_cache_world import encode

from boughs.radix import CopyOrder, PrefixCache
from boughs.radix.node import DEAD, Node

POLICIES = ["lru", "lfu", "fifo", "priority"]


@pytest.fixture
def cache():
    """A cache with branches inside a page, a running request, a pending copy and two leases."""
    return build("lru")


def build(policy):
    cache = PrefixCache(40, 4, policy=policy)
    prompts = [range(11), [0, 1, 2, 3, 4, 5, 50, 51, 52, 53], range(20, 29), [30, 31], [30, 32]]
    for tokens in prompts:
        sequence = cache.admit(encode(tokens))
        cache.grow(sequence, len(tokens))
        cache.copies_done(cache.take_copies())
        cache.commit(sequence, encode(tokens), len(tokens))
        cache.release(sequence)
    cache.leases.pin(encode(range(20, 27)), "a", deadline=5.0)
    cache.leases.pin(encode(range(20, 24)), "b", deadline=9.0)
    running = cache.admit(encode([0, 1, 2, 3, 4, 60]))
    cache.grow(running, 9)
    cache.check()
    return cache


def nodes(cache):
    """All nodes but the root, by first token and start."""
    found, stack = {}, [cache.tree.roots[""]]
    while stack:
        node = stack.pop()
        stack += node.children.values()
        if node.parent is not None:
            found[int.from_bytes(node.tokens[:4], "little"), node.start] = node
    return found


def leaf(cache):
    """An unlocked leaf."""
    return nodes(cache)[50, 6]


def running(cache):
    (sequence,) = cache.sequences
    return sequence


def wrong_parent(cache):
    leaf(cache).parent = nodes(cache)[20, 0]


def links_in_a_circle(cache):
    parent = leaf(cache).parent
    leaf(cache).children[parent.tokens[:4]] = parent


def wrong_key(cache):
    parent = leaf(cache).parent
    parent.children[b"\1\1\1\1"] = parent.children.pop(leaf(cache).tokens[:4])


def wrong_start(cache):
    leaf(cache).start += 4


def wrong_end(cache):
    leaf(cache).end += 1


def half_token(cache):
    leaf(cache).tokens += b"\0\0"


def empty_node(cache):
    node = leaf(cache)
    node.tokens, node.end = b"", node.start


def dead_node(cache):
    leaf(cache).version = DEAD


def page_missing(cache):
    cache.pool.drop([leaf(cache).pages.pop()])
    cache.tree.cached -= 1


def page_too_many(cache):
    leaf(cache).pages.extend(cache.pool.take(1))
    cache.tree.cached += 1


def page_twice(cache):
    node, other = leaf(cache), nodes(cache)[6, 6]
    cache.pool.drop([node.pages[0]])
    node.pages[0] = other.pages[0]
    cache.pool.share([node.pages[0]])


def padding_page(cache):
    cache.pool.drop([leaf(cache).pages[0]])
    leaf(cache).pages[0] = 0
    cache.pool.share([0])


def page_beyond_the_pool(cache):
    cache.pool.drop([leaf(cache).pages[0]])
    leaf(cache).pages[0] = cache.pool.num_pages


def pages_out_of_order(cache):
    pages = running(cache).pages
    pages[0], pages[1] = pages[1], pages[0]


def lock_lost(cache):
    nodes(cache)[0, 0].locks -= 1


def lock_too_many(cache):
    handle = cache.tree.lock_prefix(leaf(cache).tokens)
    assert handle.locks


def fewer_locks_than_below(cache):
    running(cache).node.parent.locks = 0


def fewer_leases_than_below(cache):
    nodes(cache)[20, 0].leases = 0


def busy_wrong(cache):
    leaf(cache).parent.busy += 1


def lease_lost(cache):
    nodes(cache)[20, 0].leases -= 1


def lease_forgotten(cache):
    cache.leases._held.pop()


def lease_ended_and_listed(cache):
    next(iter(cache.leases)).state = "expired"


def leases_out_of_order(cache):
    cache.leases._held.reverse()


def handle_outside_the_tree(cache):
    sequence = running(cache)
    sequence.node = Node(b"", 0, leaf(cache).pages[:0], None, 0)


def nodes_miscounted(cache):
    cache.tree.nodes += 1


def tokens_miscounted(cache):
    cache.tree.tokens -= 1


def cached_miscounted(cache):
    cache.tree.cached += 1


def kept_miscounted(cache):
    cache.tree.kept -= 1


def page_lost(cache):
    cache.pool._free.pop()


def page_free_twice(cache):
    cache.pool._free.append(cache.pool._free[0])


def page_free_and_held(cache):
    cache.pool._free.append(running(cache).pages[-1])


def padding_page_free(cache):
    cache.pool._free.append(0)


def reference_too_many(cache):
    cache.pool.share([leaf(cache).pages[0]])


def reference_too_few(cache):
    cache.pool._refs[running(cache).pages[-1]] = 0


def table_shares_a_page_to_be_written(cache):
    share(cache, running(cache).pages[2])


def copy_into_a_page_of_two(cache):
    share(cache, running(cache).copy.order.destination)


def share(cache, page):
    other = cache.admit(encode([70, 71]))
    other.pages.append(page)
    cache.pool.share(other.pages)


def table_lists_a_page_twice(cache):
    sequence = running(cache)
    sequence.pages.append(sequence.pages[1])
    cache.pool.share(sequence.pages[-1:])


def tree_reads_rows_to_be_written(cache):
    page = nodes(cache)[27, 7].pages[-1]  # one row of it is cached
    cache.pool.drop([running(cache).pages[2]])
    running(cache).pages[2] = page
    cache.pool.share([page])


def more_rows_than_pages(cache):
    running(cache).computed = 99


def fewer_rows_than_matched(cache):
    running(cache).computed = 1


def copy_of_a_whole_page(cache):
    replace_order(cache, rows=4)


def copy_of_nothing(cache):
    replace_order(cache, rows=0)


def copy_into_the_tree(cache):
    replace_order(cache, destination=leaf(cache).pages[0])


def copy_from_an_evictable_page(cache):
    replace_order(cache, source=leaf(cache).pages[-1])


def copy_from_a_destination(cache):
    replace_order(cache, source=running(cache).copy.order.destination)


def copy_before_its_rows(cache):
    other = cache.admit(encode([80, 81]))
    cache.grow(other, 6)
    replace_order(cache, source=other.pages[1])


def copy_held_elsewhere(cache):
    running(cache).copy.node = nodes(cache)[20, 0]


def replace_order(cache, **changes):
    copy = running(cache).copy if len(cache.sequences) == 1 else next(iter(cache.copies))
    order = copy.order
    fields = {"source": order.source, "destination": order.destination, "rows": order.rows}
    cache.pool.drop([order.source, order.destination])
    copy.order = CopyOrder(**(fields | changes))
    cache.pool.share([copy.order.source, copy.order.destination])


def empty_namespace(cache):
    handle = cache.tree.lock_prefix(b"", "salt")
    handle.locks = 0


def namespace_under_another_name(cache):
    cache.tree.roots["salt"] = cache.tree.roots.pop("")


def root_with_tokens(cache):
    cache.tree.roots[""].pages.append(leaf(cache).pages[0])


def lru_link_broken(cache):
    leaf(cache).older = leaf(cache)


def lru_list_open(cache):
    cache.tree.policy._ends.older.newer = None


def lru_node_missing(cache):
    cache.tree.policy.remove(leaf(cache))


def lru_node_too_many(cache):
    cache.tree.policy.add(nodes(cache)[0, 0])


def lru_parent_before_child(cache):
    node = nodes(cache)[30, 0]
    cache.tree.policy.remove(node)
    cache.tree.policy.split(node, cache.tree.policy._ends)  # the oldest now


KINDS = {
    wrong_parent: "link back",
    links_in_a_circle: "does not link back",
    wrong_key: "filed under another token",
    wrong_start: "does not start where",
    wrong_end: "bytes of tokens",
    half_token: "bytes of tokens",
    empty_node: "is empty",
    dead_node: "is dead",
    page_missing: "lists 1 pages and should 2",
    page_too_many: "lists 3 pages and should 2",
    page_twice: "is listed by",
    padding_page: "is for padding",
    page_beyond_the_pool: "does not exist",
    pages_out_of_order: "does not begin with",
    lock_lost: "other locks than",
    lock_too_many: "other locks than",
    fewer_locks_than_below: "fewer locks than its children",
    fewer_leases_than_below: "fewer leases than its children",
    busy_wrong: "locked children",
    lease_lost: "leases",
    lease_forgotten: "leases, other than are held",
    lease_ended_and_listed: "is expired and in the list",
    leases_out_of_order: "order of their deadlines",
    handle_outside_the_tree: "not in the tree",
    nodes_miscounted: r"tree\.nodes is",
    tokens_miscounted: r"tree\.tokens is",
    cached_miscounted: r"tree\.cached is",
    kept_miscounted: r"tree\.kept is",
    page_lost: "is lost.*free, cached and private pages are not all pages",
    page_free_twice: "free twice",
    page_free_and_held: "is free and held",
    padding_page_free: "page 0 is free",
    reference_too_many: "references",
    reference_too_few: "counts 0 references, 1 hold it",
    table_shares_a_page_to_be_written: "to be written and is shared by two requests",
    copy_into_a_page_of_two: "is being copied and shared by two requests",
    table_lists_a_page_twice: "lists a page twice",
    tree_reads_rows_to_be_written: "can read",
    more_rows_than_pages: "99 rows",
    fewer_rows_than_matched: "1 rows",
    copy_of_a_whole_page: "copies no part",
    copy_of_nothing: "copies no part",
    copy_into_the_tree: "in the tree and not copied yet",
    copy_from_an_evictable_page: "can be evicted",
    copy_from_a_destination: "source of a copy and not copied yet",
    copy_before_its_rows: "before its rows are there",
    copy_held_elsewhere: "2 pages are private, the figures say 3",
    empty_namespace: "was not dropped",
    namespace_under_another_name: "filed under",
    root_with_tokens: "the root",
    lru_link_broken: "does not link back",
    lru_list_open: "not closed",
    lru_node_missing: "1 missing",
    lru_node_too_many: "1 nodes too many",
    lru_parent_before_child: "older than its child",
}


@pytest.mark.parametrize("plant", KINDS, ids=lambda plant: plant.__name__)
def test_check_names_what_is_wrong(cache, plant):
    plant(cache)
    with pytest.raises(AssertionError, match=KINDS[plant]):
        cache.check()


@pytest.mark.parametrize("policy", POLICIES[1:])
def test_check_names_what_is_wrong_in_a_heap(policy):
    for plant, message in (
        (lambda heap, node: setattr(node, "rank", 0), "live entries"),
        (lambda heap, node: setattr(heap, "_live", heap._live + 1), "live entries"),
        (lambda heap, node: heap._heap.clear(), "live entries"),
        (lambda heap, node: heap._heap.reverse(), "less than the one above"),
        (
            lambda heap, node: [setattr(node, k, 7) for k in ("hits", "segment", "priority")],
            "stale",
        ),
    ):
        cache = build(policy)
        plant(cache.tree.policy, leaf(cache))
        with pytest.raises(AssertionError, match=message):
            cache.check()


def test_check_says_everything_that_is_wrong(cache):
    cache.tree.nodes += 1
    cache.tree.tokens += 1
    with pytest.raises(AssertionError, match=r"nodes is.*tokens is"):
        cache.check()


def test_the_tree_can_be_checked_by_itself(cache):
    cache.tree.check()
    nodes_miscounted(cache)
    with pytest.raises(AssertionError, match=r"tree\.nodes is"):
        cache.tree.check()
