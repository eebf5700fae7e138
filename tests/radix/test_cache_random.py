"""Random lives of many requests, every step held against a naive picture of the cache."""

import pytest

STEPS = 400


@pytest.mark.parametrize("page_size", [1, 4, 8, 16])
@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "priority"])
def test_every_step_holds(world, page_size, policy):
    for seed in range(3):
        pages = {1: 64, 4: 24, 8: 16, 16: 12}[page_size]
        world.World(seed, num_pages=pages, page_size=page_size, policy=policy).run(STEPS)


@pytest.mark.parametrize("page_size", [1, 4])
def test_every_step_holds_without_prefix_reuse(world, page_size):
    for seed in range(3):
        one = world.World(seed, num_pages=60, page_size=page_size, enabled=False)
        one.run(STEPS)
        if one.step:
            one.end()
        while one.requests:
            one.leave()
            one.verify()
        stats = one.cache.stats()
        assert (stats.cached, stats.free) == (0, stats.pages)
