"""The radix tree: what an operation costs, beside its limits and beside SGLang's own tree.

    python benchmarks/radix.py [--without-sglang] [--wheel FILE] [--requests 2000]

No model and no torch is needed for our side. SGLang's tree (0.5.23, Python) is loaded out of its
wheel, which pip downloads once; where it is not to be had, its column stays empty. All figures of a
row come from the same process in the same seconds: read the ratios, not the microseconds.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import random
import sys
import tempfile
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from boughs.radix import Eviction, PrefixCache

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
PAGE = 16
VOCABULARY = 50_000
RNG = np.random.default_rng(0)

Trace = list[tuple[bytes, bytes]]
"""Requests: the prompt, and prompt and output together."""


def draw(count: int) -> bytes:
    """Random tokens."""
    return RNG.integers(0, VOCABULARY, count, dtype=np.int32).tobytes()


def best(run: Callable[[], object], times: int, rounds: int = 7) -> float:
    """Microseconds of one run: the best mean of some rounds."""
    means = []
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(times):
            run()
        means.append((time.perf_counter() - started) / times)
    return min(means) * 1e6


def store(cache: PrefixCache, tokens: bytes, prompt: int | None = None) -> int:
    """A request's whole life: `prompt` tokens to match, the rest to compute."""
    length = len(tokens) // 4
    sequence = cache.admit(tokens[: 4 * (length if prompt is None else prompt)])
    cache.grow(sequence, length)
    cache.copies_done(cache.take_copies())
    cache.commit(sequence, tokens, length)
    cache.release(sequence)
    return sequence.cached


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
        other = sglang(2100, PAGE)
        insert(other, tokens)
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
        other = sglang(2000, PAGE)
        for branch in [*branches, tokens]:
            insert(other, branch)
        key = other.key(missing)
        theirs = best(lambda: other.match(key), 50)
    yield "match a miss at depth 20", "30", "us", best(lambda: cache.peek(missing), 200), theirs


def insert_below(sglang) -> Iterator[Row]:
    """New tokens below a long prefix."""
    prefix = draw(10_000)
    prompts = [prefix + draw(1000) for _ in range(300)]
    cache = PrefixCache(30_000, PAGE)
    store(cache, prefix)
    tree = cache.tree
    times = []
    for tokens in prompts:
        pages = cache.pool.take(64)
        started = time.perf_counter()
        handle = tree.lock(tree.find(tokens))
        handle = tree.append(handle, tokens[len(prefix) :], pages[: -(-1000 // PAGE)])
        tree.unlock(handle)
        times.append(time.perf_counter() - started)
        cache.pool.drop(pages)
    theirs = None
    if sglang:
        other = sglang(30_000, PAGE)
        insert(other, prefix)
        arguments = [(other.key(tokens), rows(len(tokens) // 4)) for tokens in prompts]
        seconds = []
        for key, value in arguments:
            started = time.perf_counter()
            other.insert(key, value)
            seconds.append(time.perf_counter() - started)
        theirs = float(np.median(seconds)) * 1e6
    what = "insert 1,000 tokens below 10,000"
    yield what, "50", "us", float(np.median(times)) * 1e6, theirs


def evict_one(sglang) -> Iterator[Row]:
    """One page, whatever the size of the tree."""
    base = None
    for leaves in (1000, 10_000, 100_000):
        cache = PrefixCache(leaves + 10, PAGE)
        eviction = Eviction(cache.tree, cache.leases)
        prompts = [draw(PAGE) for _ in range(leaves)]
        for tokens in prompts:
            store(cache, tokens)
        gc.collect()
        ours = best(lambda evict=eviction.evict: evict(1), 100, rounds=5)
        theirs = None
        if sglang:
            other = sglang(leaves + 10, PAGE)
            for tokens in prompts:
                insert(other, tokens)
            gc.collect()
            theirs = best(lambda evict=other.evict: evict(PAGE), 3, rounds=3)
        base = base or ours
        limit = "20" if leaves < 100_000 else f"{min(20.0, 2 * base):.1f} (2 x 1,000's)"
        yield f"evict a page, {leaves:,} leaves", limit, "us", ours, theirs


def wide_tree(sglang) -> Iterator[Row]:
    """Match and insert short segments in a tree of many leaves."""
    leaves = 100_000
    heads = [draw(40) for _ in range(200)]
    prompts = [heads[i % 200] + draw(40) for i in range(leaves)]
    fresh = [heads[i % 200] + draw(160) for i in range(2000)]
    cache = PrefixCache(5 * leaves, PAGE)
    for tokens in prompts:
        store(cache, tokens)
    tree = cache.tree
    other, keys, value = None, [], None
    if sglang:
        other = sglang(7 * leaves, PAGE)
        for tokens in prompts:
            insert(other, tokens)
        keys, value = [other.key(tokens) for tokens in prompts[:2000]], rows(200)
    gc.collect()
    theirs = each(keys, other.match) if other else None
    yield "match 80 tokens, 100,000 leaves", "", "us", each(prompts[:2000], cache.peek), theirs

    def put(tokens: bytes) -> None:
        spot = tree.find(tokens)
        handle = tree.lock(spot)
        first = spot.length // PAGE
        tree.unlock(tree.append(handle, tokens[4 * spot.length :], cache.pool.take(13 - first)))

    theirs = None
    if other:
        keys = [other.key(tokens) for tokens in fresh]
        theirs = each(keys, lambda key: other.insert(key, value))
    yield "insert 160 tokens, 100,000 leaves", "", "us", each(fresh, put), theirs


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
        return sorted(((tree.find(tokens).length, i) for i, tokens in enumerate(queue)))

    spots = [tree.find(tokens) for tokens in queue]

    def again():
        return sorted(
            (tree.refind(spot, tokens).length, i)
            for i, (spot, tokens) in enumerate(zip(spots, queue, strict=True))
        )

    theirs = None
    if sglang:
        other = sglang(3000, PAGE)
        insert(other, prefix)
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


def insert(cache, tokens: bytes) -> None:
    """Enter tokens into SGLang's tree."""
    cache.insert(cache.key(tokens), rows(len(tokens) // 4))


def rows(count: int):
    """A tensor of row numbers, which SGLang's tree keeps."""
    import torch

    return torch.arange(count, dtype=torch.int64)


# ---- traces ----


def words(text: str) -> bytes:
    """A token a word: as good as a tokenizer's for what is shared."""
    return np.array([zlib.crc32(w.encode()) % VOCABULARY for w in text.split()], "<i4").tobytes()


def lines(name: str) -> list[dict]:
    """Records of a data file, or none where it is missing."""
    file = DATA / name
    return [json.loads(line) for line in file.open(encoding="utf-8")] if file.is_file() else []


def few_shot(requests: int) -> Trace:
    """GSM8K questions behind one of four sets of eight worked examples."""
    items = [
        (words(item["question"]), words(item["answer"])) for item in lines("gsm8k_test.jsonl")
    ] or [(draw(60), draw(80)) for _ in range(1000)]
    heads = [b"".join(q + a for q, a in items[8 * k : 8 * k + 8]) for k in range(4)]
    trace = []
    for i in range(requests):
        question, answer = items[32 + i % (len(items) - 32)]
        prompt = heads[i % 4] + question
        trace.append((prompt, prompt + answer))
    return trace


def chats(requests: int) -> Trace:
    """MT-bench conversations of six turns, 32 at a time, behind one system prompt."""
    turns = [words(t) for item in lines("mt_bench_questions.jsonl") for t in item["turns"]]
    turns = turns or [draw(50) for _ in range(160)]
    system = draw(200)
    trace: Trace = []
    while len(trace) < requests:
        states = [system + draw(3) for _ in range(32)]
        for _ in range(6):
            for i, state in enumerate(states):
                prompt = state + turns[int(RNG.integers(len(turns)))]
                states[i] = prompt + draw(int(RNG.integers(50, 300)))
                trace.append((prompt, states[i]))
    return trace[:requests]


def agents(requests: int) -> Trace:
    """Agents with tools: long instructions, many short steps, each behind all before it."""
    trace: Trace = []
    tools = [draw(1500) for _ in range(3)]
    while len(trace) < requests:
        state = tools[len(trace) % 3] + draw(80)
        for _ in range(20):
            done = state + draw(30)
            trace.append((state, done))
            state = done + draw(int(RNG.integers(20, 200)))
    return trace[:requests]


def forks(requests: int) -> Trace:
    """A tree of thought: four ways on from every thought, three levels deep."""
    trace: Trace = []
    while len(trace) < requests:
        level = [draw(400)]
        for _ in range(4):
            level = [node + draw(40) for node in level for _ in range(4)]
            trace += [(node[:-160], node) for node in level]
    return trace[:requests]


def strangers(requests: int) -> Trace:
    """Prompts that share nothing."""
    prompts = [draw(300) for _ in range(requests)]
    return [(prompt, prompt + draw(50)) for prompt in prompts]


TRACES = {
    "few-shot": few_shot, "chats": chats, "agents": agents, "fork tree": forks,
    "no sharing": strangers,
}  # fmt: skip


def pool_tokens(trace: Trace) -> int:
    """A tenth of the distinct tokens, and room for four of the longest requests."""
    step = 64
    prefixes = {w[: 4 * k] for _, w in trace for k in range(step, len(w) // 4, step)}
    longest = max(len(whole) // 4 for _, whole in trace)
    return max(len(prefixes) * step // 10, 4 * longest)


def replay(trace: Trace, pages: int, size: int) -> tuple[float, float]:
    """Microseconds a request and the share of prompt tokens that were cached."""
    cache = PrefixCache(pages + 1, size)
    cached = 0
    started = time.perf_counter()
    for prompt, whole in trace:
        cached += store(cache, whole, len(prompt) // 4 - 1)
    seconds = time.perf_counter() - started
    cache.check()
    return seconds / len(trace) * 1e6, cached * 4 / sum(len(prompt) for prompt, _ in trace)


def replay_sglang(cache, trace: Trace) -> tuple[float, float]:
    """The same of SGLang's tree; its keys are made beforehand."""
    requests = [
        (cache.key(whole), cache.key(prompt[:-4]), rows(len(whole) // 4)) for prompt, whole in trace
    ]
    cached = 0
    started = time.perf_counter()
    for request in requests:
        cached += cache.request(*request)
    seconds = time.perf_counter() - started
    return seconds / len(trace) * 1e6, cached * 4 / sum(len(prompt) for prompt, _ in trace)


# ---- the tables ----


def operations(sglang) -> Table:
    """Single operations."""
    table = Table(title=f"one operation, pages of {PAGE}")
    for name in ("what", "limit", "ours", "SGLang", "ours is"):
        table.add_column(name, justify="left" if name == "what" else "right")
    parts = (match_one_node, match_miss, insert_below, wide_tree, evict_one, order_queue)
    for what, limit, unit, ours, theirs in [r for p in parts for r in p(sglang)] + [*memory()]:
        theirs_text = "" if theirs is None else f"{theirs:,.2f} {unit}"
        ratio = "" if theirs is None else f"{theirs / ours:,.0f} x faster"
        table.add_row(what, f"{limit} {unit}", f"{ours:,.2f} {unit}", theirs_text, ratio)
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
        for micros, cached in (
            replay(trace, tokens // PAGE, PAGE),
            *(replay_sglang(sglang(tokens // n, n), trace) for n in (1, PAGE) if sglang),
        ):
            row += [f"{micros:,.0f} us", f"{cached:.1%}"]
        table.add_row(*row)
    return table


def load_sglang(wheel: Path | None, folder: Path):
    """A function (pages, page size) -> SGLang's cache, or None."""
    path = Path(__file__).with_name("sglang_radix.py")
    spec = importlib.util.spec_from_file_location("sglang_radix", path)
    assert spec is not None
    assert spec.loader is not None
    helper = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = helper
    spec.loader.exec_module(helper)
    wheel = wheel or helper.get_wheel()
    if wheel is None:
        return None
    module = helper.load(wheel, folder)
    return lambda pages, size: helper.SglangCache(module, pages, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--without-sglang", action="store_true", help="measure our tree alone")
    parser.add_argument("--wheel", type=Path, help="SGLang's wheel, instead of downloading it")
    parser.add_argument("--requests", type=int, default=2000, help="requests of a trace")
    arguments = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder:
        sglang = None
        if not arguments.without_sglang:
            sglang = load_sglang(arguments.wheel, Path(folder))
        console.print(operations(sglang))
        console.print(traces(sglang, arguments.requests))


if __name__ == "__main__":
    main()
