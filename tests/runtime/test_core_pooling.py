"""Pooled hidden states from the core, over a model whose hidden states tell what they have read."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.runtime.messages import Abort

_path = Path(__file__).parents[1] / "fixtures" / "page_model.py"
_spec = importlib.util.spec_from_file_location("page_model", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

VOCAB, alone = pages.VOCAB, pages.alone


class Reading(pages.PageModel):
    """Its hidden states are the number of a context, for the logits, and features of it."""

    def forward(self, step):
        numbers = super().forward(step)
        contexts = [self.contexts[int(number)] for number in numbers[:, 0]]
        return torch.cat([numbers.double(), torch.tensor(list(map(features, contexts)))], 1)


def features(context):
    logits = pages.context_logits(context).double()
    return [float(logits[0]), float(logits[1]), float(len(context))]


def expected(prompt, pooling):
    rows = np.array([features(tuple(prompt[: at + 1])) for at in range(len(prompt))])
    return rows[-1] if pooling == "last" else rows.mean(0)


def driver(**config):
    made = pages.Driver(**config)
    model = made.model
    made.core.runner = made.model = Reading(model.num_pages, model.page_size, model.placement)
    return made


def encode(key, prompt, pooling):
    return pages.submit(key, prompt, 0, pooling=pooling)


def vector(driver, key):
    (output,) = driver.outputs[key]
    assert output.finish == "length"
    return np.frombuffer(output.embedding, np.float32)[1:]


PROMPT = [*range(1, 31), *range(5, 20)]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("budget", [1, 7, 16, 64])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_cold_and_warm_give_the_same(page_size, budget, pooling):
    requests = [encode(key, PROMPT, pooling) for key in range(2)]
    made = driver(num_pages=200, page_size=page_size, budget=budget)
    for request in requests:
        made.run([[request]])
        assert vector(made, request.key) == pytest.approx(expected(PROMPT, pooling), rel=1e-6)
    warm = len(PROMPT) - 1 if pooling == "last" else 0
    assert [made.outputs[key][0].cached_tokens for key in (0, 1)] == [0, warm]
    assert made.core.cache.stats().cached == -(-len(PROMPT) // page_size)


def test_a_last_token_alone_is_its_own_mean():
    made = driver().run([[encode(0, [5], "last"), encode(1, [5], "mean")]])
    assert vector(made, 0) == pytest.approx(vector(made, 1))


def test_a_prompt_as_long_as_the_context_is_encoded():
    prompt = [1 + at % (VOCAB - 1) for at in range(pages.CONTEXT)]
    made = driver(num_pages=1 + pages.CONTEXT // 4).run([[encode(0, prompt, "mean")]])
    assert vector(made, 0) == pytest.approx(expected(prompt, "mean"), rel=1e-6)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_a_retraction_amid_the_chunks_changes_nothing(pooling):
    """A decode that needs a page takes those of the request that came last."""
    decode = pages.submit(0, range(1, 9), 12)
    prompt = PROMPT[::-1]
    long = encode(1, prompt, pooling)
    made = driver(num_pages=17, page_size=4, budget=4).run([[decode], [], [long]])
    assert made.core.scheduler.counters.retractions > 0
    ran = [at for at, step in enumerate(made.model.steps) for key, *_ in step if key == 1]
    assert ran != [*range(ran[0], ran[-1] + 1)], "it was not running when it was retracted"
    assert made.ids(0) == alone(decode)
    assert vector(made, 1) == pytest.approx(expected(prompt, pooling), rel=1e-6)


@st.composite
def loads(draw):
    """Prompts that share prefixes, to be generated from, pooled, or aborted."""
    made = [draw(st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=30))]
    for _ in range(draw(st.integers(0, 6))):
        base = draw(st.sampled_from(made))
        tail = draw(st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=9))
        made.append(base[: draw(st.integers(0, len(base)))] + tail)
    requests = [
        pages.submit(
            key,
            prompt,
            0 if pooling else draw(st.integers(1, 12)),
            pooling=pooling,
        )
        for key, prompt in enumerate(made)
        for pooling in [draw(st.sampled_from(["last", "mean", None]))]
    ]
    schedule = [[] for _ in range(12)]
    for request in requests:
        schedule[draw(st.integers(0, 11))].append(request)
    aborted = draw(st.sets(st.integers(0, len(requests) - 1), max_size=2))
    for key in aborted:
        schedule[draw(st.integers(0, 11))].append(Abort(key))
    return requests, schedule, aborted


@given(
    loads(),
    st.sampled_from([1, 3, 4, 16]),
    st.integers(0, 12),
    st.sampled_from([1, 2, 7, 64]),
    st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_random_loads_on_a_small_pool_pool_right(load, page_size, extra, budget, cold):
    requests, schedule, aborted = load
    longest = max(len(r.prompt_ids) + r.params.max_new_tokens for r in requests)
    made = driver(
        num_pages=1 + extra + -(-longest // page_size),
        page_size=page_size,
        budget=budget,
        disable_radix_cache=cold,
    ).run(schedule)
    for request in requests:
        if request.key in aborted:
            continue
        if request.pooling is None:
            assert made.ids(request.key) == alone(request)
            assert all(output.embedding is None for output in made.outputs[request.key])
        else:
            want = expected(request.prompt_ids, request.pooling)
            assert vector(made, request.key) == pytest.approx(want, rel=1e-6, abs=1e-6)
    made.core.check()
    assert made.core.scheduler.is_empty
