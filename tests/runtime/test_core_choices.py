"""The choices of one request: their prompt is computed once, whenever they arrive."""

import importlib.util
from pathlib import Path

import msgspec
import pytest

from boughs.lang.sampling import SamplingParams
from boughs.runtime.messages import Abort

_path = Path(__file__).parents[1] / "fixtures" / "page_model.py"
_spec = importlib.util.spec_from_file_location("page_model", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

Driver, submit = pages.Driver, pages.submit


def choices(prompt, count, max_new_tokens=1, **fields):
    """So many choices of one prompt, drawn by their numbers."""
    params = SamplingParams(max_new_tokens=max_new_tokens, seed=7, ignore_eos=True)
    return [
        msgspec.structs.replace(submit(k, prompt, choice=k, **fields), params=params)
        for k in range(count)
    ]


@pytest.mark.parametrize("budget", [3, 5, 16, 64])
@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("prompt", [1, 3, 4, 15, 16, 17, 33])
@pytest.mark.parametrize(("apart", "cold"), [(0, False), (1, False), (2, False), (0, True)])
def test_a_prompt_is_computed_once(prompt, page_size, budget, apart, cold):
    """And no more than its last token, whose logits each choice needs, for each other choice.

    Where the tree keeps nothing of what has ended, it does so while other choices wait.
    """
    schedule = []
    for request in choices(range(1, prompt + 1), 4):
        if apart or not schedule:
            schedule += [[] for _ in range(apart)]
            schedule.append([])
        schedule[-1].append(msgspec.structs.replace(request, family=100))
    config = {"disable_radix_cache": cold}
    driver = Driver(num_pages=100, page_size=page_size, budget=budget, **config).run(schedule)
    assert driver.core.scheduler.counters.prefill_tokens <= prompt + 3
    cached = sorted(driver.outputs[k][0].cached_tokens for k in range(4))
    assert cached == [0, *[prompt - 1] * 3]


def test_choices_of_a_prompt_that_another_cached_in_part():
    before, prompt = submit(9, range(1, 24), 1), range(1, 32)
    driver = Driver(num_pages=100, page_size=16, budget=5)
    driver.run([[before], *[[] for _ in range(8)], choices(prompt, 4)])
    assert driver.core.scheduler.counters.prefill_tokens <= 23 + (31 - 23) + 3


def test_choices_go_on_when_the_one_that_computes_is_aborted():
    requests = choices(range(1, 24), 4, 3)
    driver = Driver(num_pages=100, page_size=16, budget=5).run([requests, [], [Abort(0)]])
    assert all(len(driver.ids(k)) == 3 for k in (1, 2, 3))
    # The two chunks of the first stay; the rest is computed once.
    assert driver.core.scheduler.counters.prefill_tokens <= 23 + 2


@pytest.mark.parametrize("at", range(1, 14))
@pytest.mark.parametrize("pool", [9, 40])
def test_an_abort_of_all_at_any_step_loses_no_page(at, pool):
    requests = choices(range(1, 20), 4, 8)
    schedule = [requests, *[[] for _ in range(at - 1)], [Abort(k) for k in range(4)]]
    driver = Driver(num_pages=1 + pool, page_size=4, budget=6).run(schedule)
    driver.core.check()
    assert driver.core.scheduler.is_empty
    assert driver.core.cache.stats().private == 0
