"""The core's loop over a model that checks what it reads."""

import importlib.util
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.sampling import SamplingParams
from boughs.runtime.messages import Abort, Finish

_path = Path(__file__).parents[1] / "fixtures" / "page_model.py"
_spec = importlib.util.spec_from_file_location("page_model", _path)
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)

Driver, alone, context_logits, submit = (
    pages.Driver,
    pages.alone,
    pages.context_logits,
    pages.submit,
)
VOCAB, EOS = pages.VOCAB, pages.EOS


def prompts(draw, count):
    """Prompts that share prefixes: each continues a cut of an earlier one."""
    made = [draw(st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=30))]
    for _ in range(count - 1):
        base = draw(st.sampled_from(made))
        cut = draw(st.integers(0, len(base)))
        tail = draw(st.lists(st.integers(1, VOCAB - 1), min_size=0 if cut else 1, max_size=12))
        made.append((base[:cut] + tail)[:36])
    return made


@st.composite
def loads(draw):
    requests = [
        submit(
            key,
            prompt,
            draw(st.integers(0, 12)),
            prompt_logprobs_from=draw(st.none() | st.integers(0, len(prompt) - 1)),
        )
        for key, prompt in enumerate(prompts(draw, draw(st.integers(1, 9))))
    ]
    schedule = [[] for _ in range(20)]
    for request in requests:
        schedule[draw(st.integers(0, 19))].append(request)
    aborted = draw(st.sets(st.integers(0, len(requests) - 1), max_size=3))
    for key in aborted:
        schedule[draw(st.integers(0, 19))].append(Abort(key))
    return requests, schedule, aborted


@given(
    loads(),
    st.sampled_from([1, 3, 4, 16]),
    st.integers(0, 12),
    st.sampled_from([1, 2, 7, 16, 64]),
    st.sampled_from(["lpm", "fcfs"]),
    st.booleans(),
)
@settings(max_examples=120, deadline=None)
def test_random_loads_on_a_small_pool_finish_right(load, page_size, extra, budget, policy, cold):
    """Every answer equals the one alone; every page and queue is checked after each step."""
    requests, schedule, aborted = load
    longest = max(len(r.prompt_ids) + r.params.max_new_tokens for r in requests)
    driver = Driver(
        num_pages=1 + extra + -(-longest // page_size),
        page_size=page_size,
        budget=budget,
        schedule_policy=policy,
        disable_radix_cache=cold,
    ).run(schedule)
    for request in requests:
        expected = alone(request)
        if request.key in aborted and (
            request.key not in driver.outputs or not driver.finish(request.key)
        ):
            made = driver.ids(request.key) if request.key in driver.outputs else []
            assert made == expected[: len(made)]
            continue
        assert driver.ids(request.key) == expected
        assert driver.finish(request.key) == ("stop" if expected[-1:] == [EOS] else "length")
    driver.core.check()
    assert driver.core.scheduler.is_empty


def test_a_small_pool_retracts_and_nothing_is_repeated():
    requests = [submit(k, range(1, 9 + k), 12) for k in range(4)]
    driver = Driver(num_pages=11, page_size=4).run([requests])
    assert driver.core.scheduler.counters.retractions > 0
    for request in requests:
        assert driver.ids(request.key) == alone(request)


def test_a_request_alone_that_fills_the_pool_ends_with_length():
    request = submit(0, [1, 2, 3], 100)
    expected = alone(request)
    driver = Driver(num_pages=3, page_size=4).run([[request]])
    if len(expected) > 6:
        # 8 rows hold 3 prompt and 5 output tokens; the sixth needs no row.
        assert driver.ids(0) == expected[:6]
        assert driver.finish(0) == "length"
    else:
        assert driver.ids(0) == expected


def test_a_shared_prefix_in_flight_is_prefilled_once():
    shared = [*range(1, 31), *range(1, 31)]
    requests = [submit(k, [*shared, k + 1], 2) for k in range(5)]
    driver = Driver(num_pages=80, budget=16).run([requests])
    computed = sum(count for step in driver.model.steps for _, _, count in step)
    outputs = sum(len(driver.ids(k)) for k in range(5))
    # All wait for the leader but for the page that the prefix ends in.
    assert computed <= len(shared) + 5 * (4 + 1) + outputs
    assert [driver.outputs[k][0].cached_tokens for k in range(5)].count(0) == 1


def test_followers_go_on_when_their_leader_is_aborted():
    shared = list(range(1, 31))
    requests = [submit(k, [*shared, k + 1], 2) for k in range(3)]
    driver = Driver(num_pages=80, budget=4).run([requests, [], [Abort(0)]])
    for k in (1, 2):
        assert driver.ids(k) == alone(requests[k])


def test_namespaces_share_nothing():
    prompt = list(range(1, 20))
    requests = [submit(0, prompt, 2, namespace="a"), submit(1, prompt, 2, namespace="b")]
    driver = Driver(num_pages=80).run([requests, *[[] for _ in range(9)]])
    assert driver.outputs[0][0].cached_tokens == driver.outputs[1][0].cached_tokens == 0


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_submissions_of_a_request_share_its_prompt_where_no_prefix_is_kept(page_size):
    prompt = list(range(1, 31))
    choices = [submit(k, prompt, 4, choice=k, family=1) for k in (1, 2, 3)]
    other = submit(9, prompt, 2)
    driver = Driver(num_pages=160, page_size=page_size, disable_radix_cache=True)
    driver.run([choices, *[[] for _ in range(9)], [other]])
    cached = [driver.outputs[key][0].cached_tokens for key in (1, 2, 3, 9)]
    assert (cached[0], cached[3]) == (0, 0)
    assert min(cached[1:3]) >= 29 // page_size * page_size  # who follows waits for whole pages
    for request in (*choices, other):
        assert driver.ids(request.key) == alone(request)
    assert driver.core.cache.stats().cached == 0


def test_requests_that_can_share_nothing_do_not_wait_for_one_another():
    prompt = list(range(1, 31))
    requests = [submit(k, prompt, 2) for k in (1, 2, 3)]
    driver = Driver(num_pages=80, budget=200, disable_radix_cache=True).run([requests])
    assert [count for _, _, count in driver.model.steps[0]] == [30, 30, 30]


def test_choices_that_share_run_in_a_pool_that_holds_the_prompt_once():
    prompt = list(range(1, 31))
    choices = [submit(k, prompt, 2, choice=k, family=1) for k in (1, 2, 3)]
    driver = Driver(num_pages=1 + 8 + 4, page_size=4, disable_radix_cache=True).run([choices])
    assert max(len(step) for step in driver.model.steps) > 1
    assert driver.core.scheduler.counters.prefill_tokens <= 30 + 2 * 4
    for request in choices:
        assert driver.ids(request.key) == alone(request)


def test_cached_tokens_are_exact_to_the_token():
    first, second = list(range(1, 20)), [*range(1, 12), 30, 31]
    driver = Driver(num_pages=80)
    driver.run([[submit(0, first, 1)], *[[] for _ in range(4)], [submit(1, second, 1)]])
    assert driver.outputs[1][0].cached_tokens == 11


def test_a_wholly_cached_prompt_computes_one_token():
    prompt = list(range(1, 17))
    driver = Driver(num_pages=80)
    driver.run([[submit(0, prompt, 3)], *[[] for _ in range(6)], [submit(1, prompt, 3)]])
    assert driver.outputs[1][0].cached_tokens == 15
    assert driver.ids(0) == driver.ids(1) == alone(submit(0, prompt, 3))


def test_the_next_turn_finds_all_but_the_last_generated_token():
    first = submit(0, range(1, 12), 6)
    output = alone(first)
    follow = [*first.prompt_ids, *output, 5, 6, 7]
    driver = Driver(num_pages=80)
    driver.run([[first], *[[] for _ in range(10)], [submit(1, follow, 1)]])
    assert driver.outputs[1][0].cached_tokens == 11 + len(output) - 1


@pytest.mark.parametrize("length", [0, 1, 4])
def test_a_text_stop_cuts_before_tokens_enter_the_tree(length):
    """The front ends the output at `length`; what the core ran beyond is not cached."""
    first = submit(0, range(1, 12), 6, confirm=True)
    output = alone(first)
    assert len(output) == 6
    follow = submit(1, [*first.prompt_ids, *output], 1)
    driver = Driver(num_pages=80)
    driver.run([[first], *[[] for _ in range(12)], [follow]], confirm={0: length})
    assert driver.outputs[1][0].cached_tokens == min(11 + length, 11 + 6 - 1)
    assert driver.core.scheduler.is_empty


def test_a_stop_while_decoding_ends_the_request_at_once():
    first = submit(0, range(1, 12), 50, confirm=True)
    driver = Driver(num_pages=80).run([[first], [], [], [Finish(0, 1)]])
    assert len(driver.ids(0)) < 10
    assert driver.core.scheduler.is_empty


def test_replayed_output_counts_as_output():
    whole = submit(0, range(1, 12), 6)
    output = alone(whole)
    again = submit(1, whole.prompt_ids, 6, output_ids=output[:3])
    driver = Driver().run([[again]])
    assert driver.ids(1) == output[3:]
    assert driver.finish(1) == "length"


def test_prompt_logprobs_equal_the_definition_warm_and_cold():
    prompt = [*range(1, 31), *range(5, 20)]
    expected = [None] + [
        float(context_logits(tuple(prompt[:p])).log_softmax(-1)[prompt[p]])
        for p in range(1, len(prompt))
    ]
    starts = [0, 1, 3, 4, 5, 16, 30, len(prompt) - 1]
    schedule = [[submit(100, prompt, 1)], *[[] for _ in range(8)]]
    schedule += [
        [submit(k, prompt, 1, prompt_logprobs_from=s, logprobs=True)] for k, s in enumerate(starts)
    ]
    driver = Driver(num_pages=200, budget=7).run(schedule)
    for key, start in enumerate(starts):
        (got,) = [o.prompt_logprobs for o in driver.outputs[key] if o.prompt_logprobs is not None]
        assert got == pytest.approx(expected[start:])


def test_small_requests_do_not_starve_a_large_one():
    """A stream of small cached requests; the large one, which sorts last, still gets its turn."""
    schedule = [[submit(0, range(1, 9), 4)], [submit(1, range(10, 30), 4)]]
    schedule += [[submit(2 + k, [*range(1, 9), 1 + k % 30], 4)] for k in range(150)]
    driver = Driver(num_pages=9, page_size=4, budget=8).run(schedule)
    order = [key for step in driver.model.steps for key, _, _ in step]
    assert order.index(1) < len(order) * 0.8
    assert driver.ids(1) == alone(submit(1, range(10, 30), 4))


@pytest.mark.parametrize("policy", ["lpm", "fcfs"])
def test_higher_priority_is_admitted_first(policy):
    def request(key, priority):
        made = submit(key, [key + 1] * 9, 3)
        params = SamplingParams(temperature=0.0, max_new_tokens=3, seed=0, priority=priority)
        return msgspec.structs.replace(made, params=params)

    requests = [request(key, priority) for key, priority in enumerate([0, -1, 5, 5, 1])]
    driver = Driver(budget=9, schedule_policy=policy, max_running_requests=1).run([requests])
    order = list(dict.fromkeys(key for step in driver.model.steps for key, _, _ in step))
    assert order == [2, 3, 4, 0, 1]
