"""How close an order of admission comes to computing every edge of the prompts' tree once.

With one request at a time, no output and depth-first order, the ratio is 1 by a theorem (arXiv
2312.07104, 3.1; `tests/radix/test_cache_theorem.py`). Here requests run in batches and decode, over
a pool that holds a tenth of their tokens. Used by `benchmarks/radix.py`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from radix_traces import TRACES, Trace, pool_tokens

from boughs.radix import OutOfPages, PrefixCache, Sequence, Spot

PAGE = 16
ROUND = 32
"""Output tokens that a running request decodes between two admissions."""


@dataclass(eq=False)
class Waiting:
    """A request, and where its match ended when it was last looked at."""

    arrival: int
    prompt: bytes
    whole: bytes
    spot: Spot | None = None


def shared(a: bytes, b: bytes) -> int:
    """Leading tokens in common."""
    low, high = 0, min(len(a), len(b)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if a[: 4 * middle] == b[: 4 * middle] else (low, middle - 1)
    return low


def order(cache: PrefixCache, waiting: list[Waiting], policy: str) -> list[Waiting]:
    """The requests in the order to try them, their matches brought up to date."""
    for request in waiting:
        tokens = request.prompt[:-4]
        spot = request.spot
        request.spot = cache.tree.find(tokens) if spot is None else cache.tree.refind(spot, tokens)
    if policy == "dfs":
        return sorted(waiting, key=lambda request: request.prompt)
    if policy == "lpm":
        return sorted(waiting, key=lambda r: (-r.spot.length if r.spot else 0, r.arrival))
    return sorted(waiting, key=lambda request: request.arrival)


def run(trace: Trace, policy: str, batch: int) -> float:
    """Tokens prefilled and decoded, over the tokens in the tree of all prompts and outputs."""
    cache = PrefixCache(pool_tokens(trace) // PAGE + 1, PAGE)
    waiting = [Waiting(i, *request) for i, request in enumerate(trace)]
    running: list[tuple[Sequence, bytes, int]] = []
    computed = 0
    while waiting or running:
        admitted: list[Waiting] = []
        for request in order(cache, waiting, policy):
            if len(running) >= batch:
                break
            matched = request.spot.length if request.spot else 0
            if any(shared(r.prompt, request.prompt[:-4]) - matched >= PAGE for r in admitted):
                continue  # what it needs is being computed for another
            sequence = cache.admit(request.prompt[:-4])
            length = len(request.whole) // 4
            try:
                cache.grow(sequence, length)
            except OutOfPages:
                cache.release(sequence)
                break
            admitted.append(request)
            rounds = 1 + (length - len(request.prompt) // 4) // ROUND
            running.append((sequence, request.whole, rounds))
            computed += length - sequence.cached
        cache.copies_done(cache.take_copies())
        for request, (sequence, _, _) in zip(admitted, running[-len(admitted) :], strict=False):
            cache.commit(sequence, request.prompt, len(request.prompt) // 4)
        gone = set(admitted)
        waiting = [request for request in waiting if request not in gone]
        for sequence, whole, rounds in running:
            if rounds == 1:
                cache.commit(sequence, whole, len(whole) // 4 - 1)
                cache.release(sequence)
        running = [(sequence, whole, n - 1) for sequence, whole, n in running if n > 1]
    wholes = sorted(whole for _, whole in trace)
    edges = sum(
        len(whole) // 4 - (shared(wholes[i - 1], whole) if i else 0)
        for i, whole in enumerate(wholes)
    )
    return computed / edges


def measure(requests: int) -> list[tuple[str, str, list[float]]]:
    """(trace, policy, ratios for batches of 1, 8 and 32); the requests come in random order."""
    rows = []
    for name in ("few-shot", "fork tree"):
        trace = TRACES[name](requests)
        random.Random(0).shuffle(trace)
        rows += [
            (name, policy, [run(trace, policy, batch) for batch in (1, 8, 32)])
            for policy in ("fcfs", "lpm", "dfs")
        ]
    return rows
