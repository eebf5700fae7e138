"""Requests of every kind in one core: each gets what it gets alone.

The model's logits are a function of the context as it is read back through the page table, so
every comparison is exact.
"""

import importlib.util
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.sampling import SamplingParams
from boughs.runtime.messages import Abort, Submit

_path = Path(__file__).parents[1] / "fixtures" / "page_model.py"
_spec = importlib.util.spec_from_file_location("page_model", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

Driver, context_logits = pages.Driver, pages.context_logits
VOCAB, EOS = pages.VOCAB, pages.EOS
STEPS = 24

tokens = st.integers(0, VOCAB - 1)
some_tokens = st.lists(tokens, min_size=1, max_size=4)


def sometimes(strategy, default):
    return st.one_of(st.just(default), st.just(default), strategy)


@st.composite
def sampling(draw):
    most = draw(st.integers(0, 12))
    return SamplingParams(
        max_new_tokens=most,
        min_new_tokens=draw(sometimes(st.integers(0, most), 0)),
        temperature=draw(st.sampled_from([0.0, 0.7, 1.0, 2.0])),
        top_p=draw(sometimes(st.floats(0.1, 1), 1.0)),
        top_k=draw(sometimes(st.integers(1, VOCAB), -1)),
        min_p=draw(sometimes(st.floats(0, 0.5), 0.0)),
        frequency_penalty=draw(sometimes(st.floats(-2, 2), 0.0)),
        presence_penalty=draw(sometimes(st.floats(-2, 2), 0.0)),
        repetition_penalty=draw(sometimes(st.floats(0.5, 2), 1.0)),
        logit_bias=draw(sometimes(st.dictionaries(tokens, st.floats(-9, 9), max_size=4), None)),
        allowed_token_ids=draw(sometimes(some_tokens.map(tuple), None)),
        stop_token_ids=tuple(draw(sometimes(some_tokens, []))),
        ignore_eos=draw(st.booleans()),
        seed=draw(st.integers(0, 2**63 - 1)),
        priority=draw(sometimes(st.integers(-2, 2), 0)),
    )


@st.composite
def requests(draw, count):
    """Requests whose prompts share prefixes: each continues a cut of an earlier one."""
    prompts = [draw(st.lists(tokens, min_size=1, max_size=30))]
    made = []
    for key in range(1, count + 1):
        base = draw(st.sampled_from(prompts))
        cut = draw(st.integers(0, len(base)))
        tail = draw(st.lists(tokens, min_size=0 if cut else 1, max_size=12))
        prompts.append((base[:cut] + tail)[:36])
        logprobs = draw(st.booleans())
        made.append(
            Submit(
                key=key,
                prompt_ids=prompts[-1],
                params=draw(sampling()),
                choice=draw(st.integers(0, 2)),
                namespace=draw(sometimes(st.just("salt"), "")),
                logprobs=logprobs,
                top_logprobs=draw(st.integers(0, 3)) if logprobs else 0,
                token_ids_logprob=draw(sometimes(some_tokens, [])) if logprobs else [],
                prompt_logprobs_from=draw(
                    sometimes(st.integers(0, len(prompts[-1]) - 1), None) if logprobs else st.none()
                ),
                bad_ids=draw(sometimes(st.lists(some_tokens, max_size=3), [])),
                family=draw(sometimes(st.integers(1, key), 0)),
            )
        )
    return made


@st.composite
def loads(draw):
    made = draw(requests(draw(st.integers(1, 8))))
    schedule = [[] for _ in range(STEPS)]
    for request in made:
        schedule[draw(st.integers(0, STEPS - 1))].append(request)
    aborted = draw(st.sets(st.sampled_from([r.key for r in made]), max_size=2))
    for key in aborted:
        schedule[draw(st.integers(0, STEPS - 1))].append(Abort(key))
    return made, schedule, aborted


def whole(outputs):
    """All that a submission's outputs say, but what depends on the cache."""
    made = {"ids": [], "logprobs": [], "top": [], "given": []}
    for output in outputs:
        for name, value in made.items():
            value += getattr(output, name) or []
        for name in ("prompt_logprobs", "prompt_top", "prompt_given"):
            value = getattr(output, name)
            if value is not None:
                assert name not in made, f"{name} came twice"
                made[name] = value
    last = outputs[-1]
    return made | {"finish": last.finish, "matched": last.matched, "error": last.error}


def alone(request):
    driver = Driver(num_pages=100, budget=10_000).run([[request]])
    return whole(driver.outputs[request.key])


def begins(part, full):
    """Whether what an aborted request got is the begin of its answer."""
    return all(
        full[name][: len(value)] == value for name, value in part.items() if isinstance(value, list)
    )


@given(
    loads(),
    st.sampled_from([1, 3, 4, 16]),
    st.integers(0, 16),
    st.sampled_from([1, 2, 5, 7, 16, 64]),
    st.sampled_from(["lpm", "fcfs"]),
    st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_each_request_gets_what_it_gets_alone(load, page_size, extra, budget, policy, cold):
    """Tokens, logprobs of all kinds, ends and errors, on pools and chunks of every size."""
    made, schedule, aborted = load
    longest = max(len(r.prompt_ids) + r.params.max_new_tokens for r in made)
    driver = Driver(
        num_pages=1 + extra + -(-longest // page_size),
        page_size=page_size,
        budget=budget,
        schedule_policy=policy,
        disable_radix_cache=cold,
    ).run(schedule)
    for request in made:
        expected = alone(request)
        got = driver.outputs.get(request.key, [])
        if request.key in aborted and not (got and (got[-1].finish or got[-1].error)):
            assert not got or begins(whole(got), expected)
        else:
            assert whole(got) == expected
    driver.core.check()
    assert driver.core.scheduler.is_empty


@given(requests(1), st.sampled_from([1, 4]), st.data())
@settings(max_examples=80, deadline=None)
def test_a_replay_goes_on_as_the_whole_went_on(load, page_size, data):
    """Tokens that another core produced count as output, for whatever counts it."""
    (request,) = load
    request.prompt_logprobs_from = None
    expected = alone(request)
    if not expected["ids"]:
        return
    done = data.draw(st.integers(0, len(expected["ids"]) - 1))
    again = msgspec.structs.replace(request, output_ids=expected["ids"][:done])
    driver = Driver(num_pages=100, page_size=page_size, budget=7).run([[again]])
    rest = {k: v[done:] if isinstance(v, list) else v for k, v in expected.items()}
    assert whole(driver.outputs[request.key]) == rest


def drawn(key, prompt, seed, most=12, **params):
    params = {"temperature": 1.5, "ignore_eos": True, "max_new_tokens": most, **params}
    return Submit(key=key, prompt_ids=list(prompt), params=SamplingParams(seed=seed, **params))


def test_a_seed_gives_its_tokens_alone_in_any_batch_and_after_retraction():
    one = drawn(1, range(1, 9), seed=77)
    expected = alone(one)["ids"]
    assert len(expected) == 12
    assert alone(drawn(1, range(1, 9), seed=78))["ids"] != expected
    beside = [drawn(key, range(1, 9 + key % 3), seed=key) for key in range(2, 7)]
    for num_pages, budget in ((100, 64), (100, 3), (12, 16), (9, 5)):
        for batch in ([one, *beside], [*beside, one], [one]):
            driver = Driver(num_pages=num_pages, page_size=4, budget=budget).run([batch])
            assert driver.ids(1) == expected
        retracted = Driver(num_pages=num_pages, page_size=4, budget=budget).run([[*beside, one]])
        assert bool(retracted.core.scheduler.counters.retractions) == (num_pages < 100)


def test_equal_requests_of_one_batch_get_equal_answers_and_other_choices_others():
    same = [drawn(key, range(1, 9), seed=5) for key in (1, 2, 3)]
    other = drawn(4, range(1, 9), seed=5)
    other.choice = 1
    driver = Driver(num_pages=100).run([[*same, other]])
    assert driver.ids(1) == driver.ids(2) == driver.ids(3) != driver.ids(4)


# ---- logprobs of the prompt ----


def defined(prompt, start, top, ids):
    """Logprobs, the `top` likeliest and those of `ids`, from position `start` on."""
    plain, likeliest, given_ids = [], [], []
    for at in range(start, len(prompt)):
        if at == 0:
            plain.append(None)
            likeliest.append([])
            given_ids.append([])
            continue
        logprobs = context_logits(tuple(prompt[:at])).log_softmax(-1)
        plain.append(float(logprobs[prompt[at]]))
        best = logprobs.topk(top)
        likeliest.append(list(zip(best.indices.tolist(), best.values.tolist(), strict=True)))
        given_ids.append(logprobs[ids].tolist())
    return plain, likeliest, given_ids


def near(got, expected):
    """Equal but for float32's rounding, whatever the nesting."""
    if isinstance(expected, float):
        return got == pytest.approx(expected, abs=1e-5)
    if isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(map(near, got, expected))
    return got == expected


@given(
    st.lists(tokens, min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.lists(tokens, max_size=6)), max_size=4),
    st.sampled_from([1, 2, 4, 16]),
    st.sampled_from([1, 3, 4, 5, 16, 64]),
    st.data(),
)
@settings(max_examples=80, deadline=None)
def test_logprobs_of_a_prompt_are_the_same_cold_and_warm(prompt, others, page_size, budget, data):
    """At page borders, in chunks, with any part of the prompt cached by others before."""
    start = data.draw(st.integers(0, len(prompt) - 1), "start")
    top, ids = data.draw(st.integers(1, 4)), data.draw(some_tokens)
    params = SamplingParams(temperature=0.0, seed=0, max_new_tokens=1, ignore_eos=True)
    warm = [
        [Submit(key=key, prompt_ids=[*prompt[:cut], *tail] or [1], params=params)]
        for key, (cut, tail) in enumerate(others, 10)
    ]
    asked = [
        Submit(
            key=key,
            prompt_ids=prompt,
            params=params,
            logprobs=True,
            top_logprobs=top,
            token_ids_logprob=ids,
            prompt_logprobs_from=start,
        )
        for key in (1, 2)
    ]
    idle = [[] for _ in range(60)]
    driver = Driver(num_pages=400, page_size=page_size, budget=budget)
    driver.run([*[x for w in warm for x in (w, *idle)], [asked[0]], *idle, [asked[1]]])
    expected = defined(prompt, start, top, ids)
    for key in (1, 2):
        made = whole(driver.outputs[key])
        got = (made["prompt_logprobs"], made["prompt_top"], made["prompt_given"])
        assert near(got, expected)
        after = context_logits(tuple(prompt)).log_softmax(-1)
        assert near(made["given"], [after[ids].tolist()])
        assert near(made["logprobs"], [float(after.max())])
    assert driver.outputs[2][0].cached_tokens == min(len(prompt) - 1, max(0, start - 1))
