"""Random lives of many requests, every step held against a naive picture of the cache."""

import pytest
from boughs_fixtures_cache_world import World

STEPS = 400


@pytest.mark.parametrize("page_size", [1, 4, 8, 16])
@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "priority"])
def test_every_step_holds(page_size, policy):
    for seed in range(3):
        pages = {1: 64, 4: 24, 8: 16, 16: 12}[page_size]
        World(seed, num_pages=pages, page_size=page_size, policy=policy).run(STEPS)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_step_holds_for_long():
    steps = 0
    for seed in range(200):
        page_size = [1, 2, 4, 8, 16][seed % 5]
        one = World(
            1000 + seed,
            num_pages=[64, 40, 24, 16, 12][seed % 5] + seed % 7,
            page_size=page_size,
            policy=["lru", "lru", "lfu", "fifo", "priority"][seed // 5 % 5],
            vocabulary=2 + seed % 3,
        )
        one.run(500)
        steps += 500
    assert steps == 100_000


@pytest.mark.parametrize("page_size", [1, 4])
def test_every_step_holds_without_prefix_reuse(page_size):
    for seed in range(3):
        one = World(seed, num_pages=60, page_size=page_size, enabled=False)
        one.run(STEPS)
        if one.step:
            one.end()
        while one.requests:
            one.finish()
            one.verify()
        stats = one.cache.stats()
        assert (stats.cached, stats.free) == (0, stats.pages)
