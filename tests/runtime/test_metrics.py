"""Figures: histograms, how requests end, how long things take."""

import asyncio
import importlib.util
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from boughs.lang.errors import BoughsError, RequestTimeout
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.runtime.front.registry import ENDS
from boughs.runtime.messages import Call
from boughs.runtime.metrics import SECONDS, Histogram


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake, fronts, pages = load("fake_core"), load("fronts"), load("page_model")
running_front, run = fronts.running_front, fronts.run


@given(st.lists(st.tuples(st.floats(0, 200), st.integers(1, 5))))
def test_a_histogram_counts_under_each_bound(values):
    histogram = Histogram()
    for value, times in values:
        histogram.add(value, times)
    shown = histogram.as_json()
    expected = {f"{bound:g}": sum(n for value, n in values if value <= bound) for bound in SECONDS}
    total = sum(n for _, n in values)
    assert shown["buckets"] == {**expected, "+Inf": total}
    assert shown["count"] == total
    assert shown["sum"] == pytest.approx(sum(value * n for value, n in values))


def ask(**fields):
    return GenerateRequest(prompt="Hello", params=SamplingParams(**fields), rid=None)


def test_every_way_to_end_is_counted():
    async def finished(front):
        await collect(front.generate(ask(max_new_tokens=3)))

    async def aborted(front):
        request = ask(max_new_tokens=400)
        request.rid = "a"
        async with aclosing(front.generate(request)) as chunks:
            await anext(chunks)
            front.abort("a")
            async for _ in chunks:
                pass

    async def disconnected(front):
        async with aclosing(front.generate(ask(max_new_tokens=400))) as chunks:
            await anext(chunks)

    async def cancelled(front):
        task = asyncio.create_task(collect(front.generate(ask(max_new_tokens=400))))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def timed_out(front):
        with pytest.raises(RequestTimeout):
            await collect(front.generate(ask(max_new_tokens=400, timeout=0.05)))

    async def failed(front):
        with pytest.raises(BoughsError):
            await collect(front.generate(GenerateRequest(prompt="")))

    with running_front(fake.FakeCore) as front:
        for way in (finished, finished, aborted, disconnected, cancelled, timed_out, failed):
            run(way(front))
        stats = run(front.stats())
    assert stats["ended"] == {
        **dict.fromkeys(ENDS, 0),
        "finished": 2,
        "aborted": 1,
        "disconnected": 2,
        "timed_out": 1,
        "failed": 1,
    }
    assert stats["seconds"]["request"]["count"] == 7


def test_a_shutdown_is_counted():
    async def ended(front):
        task = asyncio.create_task(collect(front.generate(ask(max_new_tokens=400))))
        await asyncio.sleep(0.05)
        await front.close()
        await asyncio.gather(task, return_exceptions=True)
        return front._requests.stats()["ended"]

    with running_front(fake.FakeCore) as front:
        assert run(ended(front))["shut_down"] == 1


def test_latencies_count_tokens():
    with running_front(lambda: fake.FakeCore(burst=2)) as front:
        run(collect(front.generate(ask(max_new_tokens=9, n=2, ignore_eos=True))))
        run(collect(front.generate(ask(max_new_tokens=0))))
        seconds = run(front.stats())["seconds"]
    assert seconds["time_to_first_token"]["count"] == 1
    # Nine tokens a choice in bursts of two: the first burst has nothing before it.
    assert seconds["inter_token"]["count"] == 2 * 7
    assert seconds["request"]["count"] == 2
    assert 0 < seconds["inter_token"]["sum"] < seconds["request"]["sum"] * 2


def test_step_times_by_stage():
    requests = [pages.submit(k, range(1, 9 + k), 4) for k in range(3)]
    driver = pages.Driver().run([requests, *[[] for _ in range(12)], [Call(7, "stats")]])
    (reply,) = driver.replies
    times = reply.result["steps_in_seconds"]
    steps = reply.result["steps"]
    assert steps == len(driver.model.steps)
    assert [times[name]["count"] for name in ("step", "schedule", "model", "sample", "send")] == (
        [steps] * 5
    )
    assert times["queue"]["count"] == 3
    parts = sum(times[name]["sum"] for name in ("schedule", "model", "sample", "send"))
    assert times["step"]["sum"] == pytest.approx(parts)
