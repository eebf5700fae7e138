"""Leases and pictures of the tree, on an engine and on a server with a real core."""

import json
import subprocess
import sys
import time
import urllib.request

import pytest

import boughs
from boughs.lang.errors import InvalidRequest

PREFIX = "The old fox and the young dog met at the river, and neither of them spoke. " * 4
GREEDY = {"max_new_tokens": 2, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine(tiny_model):
    """A pool that a handful of prompts fill."""
    with boughs.Engine(
        model_path=tiny_model, in_process=True, check_invariants=True, kv_memory="300K"
    ) as engine:
        yield engine


def flood(engine):
    """Prompts enough to fill the pool twice over."""
    tokens = engine.get_server_info()["pool_tokens"]
    for start in range(0, 2 * tokens, 200):
        engine.generate(
            input_ids=[3 + (start + i) % 90 for i in range(200)], sampling_params=GREEDY
        )


def cached(engine):
    return engine.generate(PREFIX, GREEDY)["meta_info"]["cached_tokens"]


def test_a_pinned_prompt_outlives_a_flood_and_an_unpinned_one_does_not(engine):
    with engine.pin(PREFIX, seconds=600) as tokens:
        flood(engine)
        assert cached(engine) == tokens - 1
        stats = engine.stats()["cache"]
        assert (stats["leases"], stats["unaccounted"]) == (1, 0)
        assert stats["leased"] > 0
    assert engine.stats()["cache"]["leases"] == 0
    flood(engine)
    assert cached(engine) == 0


def test_a_lease_is_broken_by_a_request_that_needs_the_pages_and_the_answer_is_the_same(engine):
    tokens = engine.get_server_info()["pool_tokens"]
    large = [5 + i % 77 for i in range(tokens - 40)]
    alone = engine.generate(input_ids=large, sampling_params=GREEDY)["output_ids"]
    with engine.pin(PREFIX):
        assert engine.generate(input_ids=large, sampling_params=GREEDY)["output_ids"] == alone
        assert engine.stats()["cache"]["leases"] == 0
    assert engine.stats()["cache"]["leases_broken"] == 1


def test_a_salted_lease_is_found_under_its_salt_only(engine):
    engine.flush_cache()
    with engine.pin(PREFIX, cache_salt="a") as tokens:
        assert cached(engine) == 0
        answer = engine.generate(PREFIX, {**GREEDY, "cache_salt": "a"})
        assert answer["meta_info"]["cached_tokens"] == tokens - 1
        names = {segment["namespace"] for segment in engine.tree()["segments"]}
        assert len(names) == 2
        assert names.isdisjoint({"a"})


def test_the_tree_as_data(engine):
    engine.flush_cache()
    assert engine.tree()["segments"] == []
    engine.generate([PREFIX + "a", PREFIX + "b"], GREEDY)
    shown = engine.tree(max_tokens=256)
    assert shown["segments"][0]["text"].startswith("The old fox")
    assert shown["cache"]["tokens"] == sum(s["end"] - s["start"] for s in shown["segments"])
    with pytest.raises(InvalidRequest, match="max_segments must be a whole number from 0"):
        engine.tree(max_segments=-1)


@pytest.mark.parametrize("policy", ["lru", "lfu", "fifo", "priority"])
def test_every_eviction_policy_can_be_chosen(tiny_model, policy):
    """Two prompts are asked again and again while others come; which stays tells the policy."""
    with boughs.Engine(
        model_path=tiny_model, in_process=True, kv_memory="300K", radix_eviction_policy=policy,
        check_invariants=True,
    ) as engine:  # fmt: skip
        tokens = engine.get_server_info()["pool_tokens"]
        dear = [7] * (tokens // 6)
        ask = {"input_ids": dear, "sampling_params": {**GREEDY, "priority": 5}}
        engine.generate(**ask)
        if policy == "lfu":
            for _ in range(3):
                engine.generate(**ask)
        for i in range(8):
            engine.generate(input_ids=[8 + i] * (tokens // 4), sampling_params=GREEDY)
            if policy == "fifo":  # used all the time, and yet the first that came
                engine.generate(**ask)
        kept = engine.generate(**ask)["meta_info"]["cached_tokens"]
        if policy in ("lfu", "priority"):
            assert kept == len(dear) - 1
        elif policy == "lru":
            assert kept == 0


def test_a_server_shows_its_tree_and_what_a_program_pins(tiny_server):
    url = tiny_server.url

    def leases():
        with urllib.request.urlopen(url + "/server_info", timeout=10) as answer:
            return json.load(answer)["stats"]["cache"]["leases"]

    @boughs.function
    def program(s):
        s += PREFIX
        s.pin(300)
        s += boughs.gen("x", max_tokens=2)
        s.sync()
        assert leases() == 1
        drawn = subprocess.run(
            [sys.executable, "-P", "-m", "boughs", "tree", url],
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip
        assert "1 lease" in drawn
        assert "The old fox" in drawn

    endpoint = boughs.RuntimeEndpoint(url)
    program.run(backend=endpoint)
    end = time.monotonic() + 20
    while leases():
        assert time.monotonic() < end
        time.sleep(0.02)
    assert boughs.flush_cache(endpoint, timeout=20)
    endpoint.close()


def test_a_prompt_as_long_as_the_context_is_pinned_and_found(tiny_model):
    with boughs.Engine(
        model_path=tiny_model,
        in_process=True,
        check_invariants=True,
        kv_memory="300K",
        context_length=64,
    ) as engine:
        whole = [3 + at for at in range(64)]
        with engine.pin(whole) as tokens:
            assert tokens == 64
            answer = engine.generate(input_ids=whole[:63], sampling_params=GREEDY)
            assert answer["meta_info"]["cached_tokens"] == 62
        with pytest.raises(InvalidRequest, match="65 tokens do not fit the context of 64"):
            engine.pin([*whole, 3]).__enter__()
