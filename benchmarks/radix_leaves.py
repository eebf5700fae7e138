"""Match, insert and evict in a tree of 100,000 leaves, trace by trace, beside SGLang's tree.

Insertion is measured twice: from the root, by nobody who holds the prefix (`insert` of both trees),
and as a request enters what it has computed, whose prefix it has held since its admission: our
`commit`, SGLang's `checkpoint`. The operations of both sides take turns, in trees that live
throughout. Used by `benchmarks/radix.py`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import numpy as np
from radix_traces import TRACES, VOCABULARY, Trace, draw, pool_tokens, store

from boughs.radix import Eviction, PrefixCache

PAGE = 16
LEAVES = 100_000
REQUESTS = 1000
OPERATIONS = ("match", "insert, from the root", "insert, by its request", "evict a page")

Times = dict[str, float]
"""Microseconds of an operation, by what it does."""


class Timer:
    """Mean times of operations, without the slowest 2 %: those that the machine interrupted."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    def __call__(self, what: str, run: Callable[..., object], *arguments: object) -> object:
        """Run something, and note how long it takes."""
        started = time.perf_counter()
        result = run(*arguments)
        self._times.setdefault(what, []).append(time.perf_counter() - started)
        return result

    def means(self) -> Times:
        """Microseconds."""
        kept = {what: sorted(times)[: -(-98 * len(times) // 100)] for what, times in
                self._times.items()}  # fmt: skip
        return {what: sum(times) / len(times) * 1e6 for what, times in kept.items()}


def fillers() -> list[bytes]:
    """200 prompts that each go on in 500 ways."""
    heads = [draw(40) for _ in range(200)]
    return [heads[i % 200] + draw(40) for i in range(LEAVES)]


def shift(trace: Trace, by: int) -> Trace:
    """The same trace in tokens that no other has."""

    def other(tokens: bytes) -> bytes:
        return (np.frombuffer(tokens, "<i4") + by * VOCABULARY).tobytes()

    return [(other(prompt), other(whole)) for prompt, whole in trace]


class Ours:
    """Our tree, filled."""

    def __init__(self, prompts: list[bytes], room: int) -> None:
        self.cache = PrefixCache(4 * len(prompts) + room // PAGE, PAGE)
        for tokens in prompts:
            store(self.cache, tokens)
        self.eviction = Eviction(self.cache.tree, self.cache.leases)

    def run(self, from_root: Trace, by_request: Trace) -> Times:
        """One trace in two ways, then evictions."""
        timer, cache = Timer(), self.cache
        for prompt, whole in from_root:
            timer("match", cache.tree.match, prompt[:-4])
            pages = cache.pool.take(-(-len(whole) // (4 * PAGE)))
            unused = timer("insert, from the root", cache.tree.insert, whole, pages)
            cache.pool.drop(pages[:unused])
        for prompt, whole in by_request:
            sequence = cache.admit(prompt[:-4])
            cache.grow(sequence, len(whole) // 4)
            cache.copies_done(cache.take_copies())
            timer("insert, by its request", cache.commit, sequence, whole, len(whole) // 4)
            cache.release(sequence)
        for _ in range(200):
            timer("evict a page", self.eviction.evict, 1)
        return timer.means()


class Theirs:
    """SGLang's tree, filled."""

    def __init__(self, sglang, prompts: list[bytes], room: int, page_size: int) -> None:
        self.sglang = sglang
        self.cache = sglang.SglangCache((80 * len(prompts) + room) // page_size, page_size)
        for tokens in prompts:
            sglang.insert(self.cache, tokens)

    def run(self, from_root: Trace, by_request: Trace) -> Times:
        """One trace in two ways, then evictions."""
        timer, cache, rows = Timer(), self.cache, self.sglang.rows
        for prompt, whole in from_root:
            key, value = cache.key(whole), rows(len(whole) // 4)
            timer("match", cache.match, cache.key(prompt[:-4]))
            timer("insert, from the root", cache.insert, key, value)
        for prompt, whole in by_request:
            request = cache.admit(prompt[:-4], whole)
            timer("insert, by its request", cache.checkpoint, request)
            cache.tree.unlock(request.lock)
        for _ in range(2):
            timer("evict a page", cache.evict, PAGE)
        return timer.means()


def measure(sglang, rounds: int) -> Iterator[tuple[str, str, float, float, float, float]]:
    """A row for each trace and operation.

    Returns:
        Trace; operation; median microseconds of ours and of SGLang's, with the page size that
        makes it faster; SGLang's times ours, the least of all rounds and the median.
    """
    prompts = fillers()
    makers = {name: make(REQUESTS) for name, make in TRACES.items()}
    room = 4 * rounds * sum(10 * pool_tokens(trace) for trace in makers.values())
    sides = [Ours(prompts, room), *(Theirs(sglang, prompts, room, size) for size in (PAGE, 1))]
    found: dict[str, list[list[Times]]] = {name: [] for name in makers}
    fresh = 1
    for _ in range(rounds):
        for name, trace in makers.items():
            traces = shift(trace, fresh), shift(trace, fresh + 1)
            fresh += 2
            found[name].append([quietly(side.run, *traces) for side in sides])
    for name, results in found.items():
        for what in OPERATIONS:
            times = np.array([[side[what] for side in result] for result in results])
            ours, theirs = times[:, 0], times[:, 1 + int(np.median(times[:, 1:], axis=0).argmin())]
            ratios = theirs / ours
            yield (
                name, what, float(np.median(ours)), float(np.median(theirs)),
                float(ratios.min()), float(np.median(ratios)),
            )  # fmt: skip


def quietly(run: Callable[..., Times], *arguments: Trace) -> Times:
    """Run without the garbage collector, whose passes hit whoever happens to allocate."""
    gc.collect()
    gc.disable()
    try:
        return run(*arguments)
    finally:
        gc.enable()
