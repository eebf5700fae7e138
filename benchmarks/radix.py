"""The radix tree: what an operation costs, beside its limits and beside SGLang's own tree.

    python benchmarks/radix.py [--without-sglang] [--wheel FILE] [--requests 2000] [--rounds 3]

No model and no torch is needed for our side. SGLang's tree (0.5.23, Python) is loaded out of its
wheel, which pip downloads once; where it is not to be had, its column stays empty. All figures of a
row come from the same process in the same seconds: read the ratios, not the microseconds.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from boughs.radix import Eviction, PrefixCache

# `make bench` sets PYTHONSAFEPATH, with which the folder of a script is not searched.
sys.path.insert(0, str(Path(__file__).parent))
import radix_leaves
import radix_orders
from radix_traces import RNG, TRACES, draw, pool_tokens, replay, store

PAGE = 16


def best(run: Callable[[], object], times: int, rounds: int = 7) -> float:
    """Microseconds of one run: the best mean of some rounds."""
    means = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(times):
            run()
        means.append((time.perf_counter() - started) / times)
    return min(means) * 1e6


# ---- single operations: (what, limit, unit, ours, SGLang's or None) ----

Row = tuple[str, str, str, float, float | None]


def match_one_node(sglang) -> Iterator[Row]:
    """A long prefix in one node."""
    tokens = draw(32768)
    again = bytes(bytearray(tokens))
    cache = PrefixCache(2100, PAGE)
    store(cache, tokens)
    theirs = None
    if sglang:
        other = sglang.SglangCache(2100, PAGE)
        sglang.insert(other, tokens)
        key = other.key(again)
        theirs = best(lambda: other.match(key), 50)
    compare = best(lambda: tokens == again, 200)
    ours = best(lambda: cache.peek(again), 200)
    yield "match 32,768 tokens in one node", f"{3 * compare:.1f} (3 x ==)", "us", ours, theirs


def match_miss(sglang) -> Iterator[Row]:
    """A path of 20 nodes, and then another token."""
    tokens = draw(4000)
    cache = PrefixCache(2000, PAGE)
    branches = [tokens[: 4 * 192 * k] + draw(20) for k in range(1, 21)]
    for branch in [*branches, tokens]:
        store(cache, branch)
    missing = tokens[: 4 * 192 * 19] + tokens[4 * 192 * 19 : 4 * (192 * 19 + 96)] + draw(100)
    theirs = None
    if sglang:
        other = sglang.SglangCache(2000, PAGE)
        for branch in [*branches, tokens]:
            sglang.insert(other, branch)
        key = other.key(missing)
        theirs = best(lambda: other.match(key), 50)
    yield "match a miss at depth 20", "30", "us", best(lambda: cache.peek(missing), 200), theirs


def insert_below(sglang) -> Iterator[Row]:
    """New tokens below a long prefix: from the root, and as a request enters what it computed."""
    prefix = draw(10_000)
    prompts = [prefix + draw(1000) for _ in range(300)]
    cache = PrefixCache(60_000, PAGE)
    store(cache, prefix)
    tree = cache.tree

    def put(pair: tuple[bytes, list[int]]) -> None:
        tokens, pages = pair
        handle = tree.lock_prefix(tokens)
        tree.unlock(tree.append(handle, tokens[len(prefix) :], pages))

    from_root = each([(tokens, cache.pool.take(63)) for tokens in prompts], put)
    requests = []
    for _ in range(300):
        tokens = prefix + draw(1000)
        sequence = cache.admit(tokens)
        cache.grow(sequence, 11_000)
        requests.append((sequence, tokens))
    cache.copies_done(cache.take_copies())
    committed = each(requests, lambda request: cache.commit(*request, 11_000))
    theirs = None
    if sglang:
        other = sglang.SglangCache(30_000, PAGE)
        sglang.insert(other, prefix)
        keys, value = [other.key(tokens) for tokens in prompts], sglang.rows(11_000)
        theirs = each(keys, lambda key: other.insert(key, value))
    yield "insert 1,000 tokens below 10,000", "50", "us", from_root, theirs
    yield "the same by a request that holds the 10,000", "50", "us", committed, theirs


def evict_one(sglang) -> Iterator[Row]:
    """One page, whatever the size of the tree; the sizes take turns."""
    sizes = (1000, 10_000, 100_000)
    ours = dict.fromkeys(sizes, float("inf"))
    theirs: dict[int, float | None] = dict.fromkeys(sizes)
    evictions = {}
    for leaves in sizes:
        cache = PrefixCache(leaves + 10, PAGE)
        prompts = [draw(PAGE) for _ in range(leaves)]
        for tokens in prompts:
            store(cache, tokens)
        for i in RNG.permutation(leaves):  # the order of use is not that of memory
            cache.release(cache.admit(prompts[i]))
        evictions[leaves] = Eviction(cache.tree, cache.leases)
        if sglang:
            other = sglang.SglangCache(leaves + 10, PAGE)
            for tokens in prompts:
                sglang.insert(other, tokens)
            gc.collect()
            theirs[leaves] = best(lambda evict=other.evict: evict(PAGE), 3, rounds=3)
            del other
    gc.collect()
    for _ in range(15):
        for leaves, eviction in evictions.items():
            micros = best(lambda evict=eviction.evict: evict(1), 50, rounds=1)
            ours[leaves] = min(ours[leaves], micros)
    for leaves in sizes:
        limit = f"{min(20.0, 2 * ours[1000]):.1f} (2 x 1,000's)" if leaves > 10_000 else "20"
        yield f"evict a page, {leaves:,} leaves", limit, "us", ours[leaves], theirs[leaves]


def each(arguments, run) -> float:
    """Microseconds of one run: the best mean of some parts of `arguments`."""
    means = []
    for part in np.array_split(np.arange(len(arguments)), 10):
        these = [arguments[i] for i in part]
        started = time.perf_counter()
        for argument in these:
            run(argument)
        means.append((time.perf_counter() - started) / len(these))
    return min(means) * 1e6


def order_queue(sglang) -> Iterator[Row]:
    """A queue in the order of the longest cached prefix."""
    prefix = draw(30_000)
    queue = [prefix + draw(2768) for _ in range(200)]
    cache = PrefixCache(3000, PAGE)
    store(cache, prefix)
    tree = cache.tree

    def fresh():
        return sorted(((tree.match(tokens)[1], i) for i, tokens in enumerate(queue)))

    spots = [tree.find(tokens) for tokens in queue]

    def again():
        return sorted(
            (tree.refind(spot, tokens).length, i)
            for i, (spot, tokens) in enumerate(zip(spots, queue, strict=True))
        )

    theirs = None
    if sglang:
        other = sglang.SglangCache(3000, PAGE)
        sglang.insert(other, prefix)
        keys = [other.key(tokens) for tokens in queue]
        theirs = best(lambda: sorted((other.match(key), i) for i, key in enumerate(keys)), 1, 3)
        theirs /= 1000
    yield "order 200 waiting, all new", "8", "ms", best(fresh, 3) / 1000, theirs
    yield "order 200 waiting, no change", "0.5", "ms", best(again, 10) / 1000, theirs


def memory() -> Iterator[Row]:
    """Bytes beside the KV itself: nodes, page ids, pool."""
    random_ = random.Random(0)
    pages = 150_000
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    cache = PrefixCache(pages, PAGE)
    paths = [draw(40) for _ in range(1000)]
    for path in paths:
        store(cache, path)
    while cache.tree.nodes < 50_000 or cache.tree.tokens < 1_000_000:
        path = random_.choice(paths)
        path = path[: 4 * random_.randint(1, len(path) // 4)] + draw(random_.randint(20, 60))
        store(cache, path)
        paths[random_.randrange(len(paths))] = path
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before - sum(map(len, paths))
    tracemalloc.stop()
    tree = cache.tree
    what = f"a token's share, {tree.tokens / 1e6:.2f} M tokens, {tree.nodes:,} nodes"
    yield what, "48", "bytes", used / tree.tokens, None


# ---- the tables ----


def operations(sglang) -> Table:
    """Single operations."""
    table = Table(title=f"one operation, pages of {PAGE}")
    for name in ("what", "limit", "ours", "SGLang", "ours is"):
        table.add_column(name, justify="left" if name == "what" else "right")
    parts = (match_one_node, match_miss, insert_below, evict_one, order_queue)
    for what, limit, unit, ours, theirs in [r for p in parts for r in p(sglang)] + [*memory()]:
        theirs_text = "" if theirs is None else f"{theirs:,.2f} {unit}"
        ratio = "" if theirs is None else f"{theirs / ours:,.0f} x faster"
        table.add_row(what, f"{limit} {unit}", f"{ours:,.2f} {unit}", theirs_text, ratio)
    return table


def leaves(sglang, rounds: int) -> Table:
    """Every trace's operations in a large tree."""
    table = Table(title=f"in a tree of {radix_leaves.LEAVES:,} leaves, {rounds} rounds")
    for name in ("trace", "operation", "ours", "SGLang", "ours is, at least", "median"):
        table.add_column(name, justify="left" if name in ("trace", "operation") else "right")
    for name, what, ours, theirs, least, median in radix_leaves.measure(sglang, rounds):
        times = f"{ours:,.2f} us", f"{theirs:,.2f} us"
        table.add_row(name, what, *times, f"{least:,.1f} x faster", f"{median:,.1f} x")
    return table


def traces(sglang, requests: int) -> Table:
    """Whole requests: match, page table, lock, pages, insert, unlock, with eviction.

    Ours hands out and counts pages, SGLang's rows are only counted: its allocator is not measured.
    """
    table = Table(title=f"{requests:,} requests over a pool that holds a tenth of their tokens")
    for name in ("trace", f"ours, pages of {PAGE}", "cached", "SGLang, pages of 1", "cached"):
        table.add_column(name, justify="left" if name == "trace" else "right")
    for name in (f"SGLang, pages of {PAGE}", "cached"):
        table.add_column(name, justify="right")
    for name, make in TRACES.items():
        trace = make(requests)
        tokens = pool_tokens(trace)
        row = [name]
        results = [replay(trace, tokens // PAGE, PAGE)]
        if sglang:
            results += [
                sglang.replay(sglang.SglangCache(tokens // size, size), trace) for size in (1, PAGE)
            ]
        for micros, cached in results:
            row += [f"{micros:,.0f} us", f"{cached:.1%}"]
        table.add_row(*row)
    return table


def orders(requests: int) -> Table:
    """How much is computed twice, by the order of admission."""
    table = Table(title=f"tokens computed over the tree's edges, {requests:,} requests at once")
    for name in ("trace", "order", "one at a time", "batches of 8", "batches of 32"):
        table.add_column(name, justify="left" if name in ("trace", "order") else "right")
    for name, policy, ratios in radix_orders.measure(requests):
        table.add_row(name, policy, *(f"{ratio:.3f}" for ratio in ratios))
    return table


def load_sglang(wheel: Path | None, folder: Path):
    """SGLang's tree, a module whose `make` builds one, or None where it is not to be had."""
    import sglang_radix

    wheel = wheel or sglang_radix.get_wheel()
    if wheel is None:
        return None
    sglang_radix.load(wheel, folder)
    return sglang_radix


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--without-sglang", action="store_true", help="measure our tree alone")
    parser.add_argument("--wheel", type=Path, help="SGLang's wheel, instead of downloading it")
    parser.add_argument("--requests", type=int, default=2000, help="requests of a trace")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of the large tree")
    arguments = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        sglang = None
        if not arguments.without_sglang:
            sglang = load_sglang(arguments.wheel, Path(folder))
        console.print(operations(sglang))
        if sglang:
            console.print(leaves(sglang, arguments.rounds))
        console.print(traces(sglang, arguments.requests))
    console.print(orders(arguments.requests // 4))


if __name__ == "__main__":
    main()
