"""Requests of real shapes for the benchmark of the radix tree, and their replay through it.

What a trace shares is what such programs share; its tokens are words or random numbers, because no
model reads them. Used by `benchmarks/radix.py`.
"""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path

import numpy as np

from boughs.radix import PrefixCache

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
VOCABULARY = 50_000
RNG = np.random.default_rng(0)

Trace = list[tuple[bytes, bytes]]
"""Requests: the prompt, and prompt and output together."""


def draw(count: int) -> bytes:
    """Random tokens."""
    return RNG.integers(0, VOCABULARY, count, dtype=np.int32).tobytes()


def store(cache: PrefixCache, tokens: bytes, prompt: int | None = None) -> int:
    """A request's whole life: `prompt` tokens to match, the rest to compute."""
    length = len(tokens) // 4
    sequence = cache.admit(tokens[: 4 * (length if prompt is None else prompt)])
    cache.grow(sequence, length)
    cache.copies_done(cache.take_copies())
    cache.commit(sequence, tokens, length)
    cache.release(sequence)
    return sequence.cached


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
