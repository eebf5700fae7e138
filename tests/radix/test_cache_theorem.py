"""Theorem 3.1 of the SGLang paper (arXiv 2312.07104), to the token.

Prompts in depth-first order, one at a time, over a pool that holds the longest of them and one page
more: every edge of the prompts' tree is computed once, and beyond that only the one token that a
prompt needs to have logits when all of it was cached as it came.
"""

import random

import pytest
from boughs_fixtures_cache_world import encode

from boughs.radix import PrefixCache


def draw_prompts(rng, page_size):
    """Prompts of a random tree, in depth-first order; some are prefixes of others, some equal."""
    prompts = []
    fresh = iter(range(1, 1_000_000))

    def walk(prefix, depth):
        edge = rng.choice([1, 2, page_size - 1, page_size, page_size + 1, 3 * page_size, 7])
        prefix = prefix + [next(fresh) for _ in range(max(1, edge))]
        inner = rng.random() < 0.3
        if inner:
            prompts.extend([prefix] * rng.choice([1, 1, 2]))
        if depth < 5 and rng.random() < 0.75:
            for _ in range(rng.randint(1, 4)):
                walk(prefix, depth + 1)
            if rng.random() < 0.2:
                prompts.append(prefix)  # on the way back up
        elif not inner:
            prompts.append(prefix)

    for _ in range(4):
        walk([], 0)
    return prompts


def run(cache, encode, prompt):
    """One request with no output; the tokens that it computed."""
    tokens = encode(prompt)
    sequence = cache.admit(tokens[:-4])
    cache.grow(sequence, len(prompt))
    cache.copies_done(cache.take_copies())
    cache.commit(sequence, tokens, len(prompt))
    cache.release(sequence)
    return len(prompt) - sequence.cached


def edges_of(prompts):
    """Tokens in the tree of the prompts."""
    return len({tuple(p[: k + 1]) for p in prompts for k in range(len(p))})


def run_all(cache, encode, prompts):
    """Tokens computed, and prompts that were wholly cached as they came."""
    computed = whole = 0
    for prompt in prompts:
        whole += cache.peek(encode(prompt)) == len(prompt)
        computed += run(cache, encode, prompt)
    return computed, whole


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_depth_first_order_computes_every_edge_once(page_size):
    others = 0
    for seed in range(25):
        rng = random.Random(seed)
        prompts = draw_prompts(rng, page_size)
        pages = -(-max(len(p) for p in prompts) // page_size) + 1
        cache = PrefixCache(pages + 1, page_size)  # and page 0
        computed, whole = run_all(cache, encode, prompts)
        assert computed == edges_of(prompts) + whole
        rng.shuffle(prompts)
        computed, whole = run_all(PrefixCache(pages + 1, page_size), encode, prompts)
        others += computed > edges_of(prompts) + whole
    assert others > 0, "any order does as well here: the test shows nothing"


def test_any_order_does_as_well_where_nothing_is_evicted():
    for seed in range(10):
        rng = random.Random(seed)
        prompts = draw_prompts(rng, 4)
        rng.shuffle(prompts)
        cache = PrefixCache(sum(map(len, prompts)) // 2, 4)
        computed, whole = run_all(cache, encode, prompts)
        assert computed == edges_of(prompts) + whole
        repeated = sum(any(q[: len(p)] == p for q in prompts[:i]) for i, p in enumerate(prompts))
        assert whole == repeated
