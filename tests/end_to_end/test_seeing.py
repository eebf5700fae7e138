"""What traces and usage tell of a real (tiny) model: in process and over the wire the same."""

import json
from dataclasses import replace

import pytest

import boughs

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"the_first_of_the_names": {"type": "boolean"}, "second": {"enum": [1, 2]}},
        "required": ["the_first_of_the_names", "second"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module")
def engine(tiny_model):
    with boughs.Engine(
        model_path=tiny_model, in_process=True, kv_memory="32M", check_invariants=True
    ) as engine:
        yield engine


@pytest.fixture(scope="module")
def endpoint(tiny_server):
    endpoint = boughs.RuntimeEndpoint(tiny_server.url)
    yield endpoint
    endpoint.close()


@boughs.function
def program(s):
    s += boughs.system("Be nice.")
    s += boughs.user("Who?")
    s += boughs.assistant(
        "It: " + boughs.gen("json", json_schema=SCHEMA, max_tokens=128, heal=False)
    )
    branches = s.fork(2)
    for i, branch in enumerate(branches):
        branch += boughs.user(f"judge {i}")
        branch += boughs.assistant(boughs.gen("said", max_tokens=7 + i, ignore_eos=True))
    branches.join()
    s += boughs.user("Sure?")
    s += boughs.assistant(boughs.select("sure", choices=["yes", "no"]))


def seen(backend):
    boughs.flush_cache(backend)
    state = program.run(backend=backend, temperature=0)
    state.text()
    return state


def test_the_trace_of_an_engine_is_that_of_an_endpoint(engine, endpoint):
    states = [seen(backend) for backend in (engine, endpoint)]
    traces = [state.trace() for state in states]
    shown = [
        [(span.text, span.writer, span.tokens) for state in trace.walk() for span in state.spans]
        for trace in traces
    ]
    assert shown[0] == shown[1]
    for state, trace in zip(states, traces, strict=True):
        assert trace.usage == state.usage
    one, other = (replace(state.usage, cached_tokens=0) for state in states)
    assert one == other  # a branch may or may not find what another one has just computed


@pytest.mark.parametrize("which", ["engine", "endpoint"])
def test_the_figures_of_a_trace_are_those_of_the_meta_infos(which, request):
    state = seen(request.getfixturevalue(which))
    trace = state.trace()
    assert trace.text == state.text()
    made = {r.name: r for s in trace.walk() for r in s.requests if r.kind != "prefill"}
    info = state.get_meta_info("json")
    usage = made["json"].usage
    assert usage.forced_tokens == info["forced_tokens"] > 0
    # The step of the prompt gives the first token, each further step one and what is forced.
    assert usage.forward_steps == info["forward_steps"]
    assert usage.forward_steps == usage.completion_tokens - usage.forced_tokens
    forced = [s for s in trace.spans if s.writer == "forced"]
    assert sum(len(s.tokens) for s in forced) <= usage.forced_tokens  # EOS has no text
    assert "the_first_of_the_names" in "".join(s.text for s in forced)
    answer = "".join(s.text for s in trace.spans if s.request is made["json"])
    assert answer == state["json"]
    assert all("".join(s.tokens) == s.text for s in trace.spans if s.request is made["json"])
    for i, branch in enumerate(trace.branches):
        (one,) = branch.requests
        assert one.usage.completion_tokens == one.usage.forward_steps == 7 + i
        assert one.usage.computed_tokens < one.usage.prompt_tokens / 2  # what they share is cached
    assert made["sure"].usage.forward_steps >= 1
    assert sum(made["sure"].probs.values()) == pytest.approx(1)
    assert trace.usage == state.usage
    assert trace.usage.completion_tokens == usage.completion_tokens + 7 + 8


def test_a_chunked_prefill_counts_its_steps(tiny_model):
    with boughs.Engine(
        model_path=tiny_model, in_process=True, kv_memory="32M", max_batched_tokens=16
    ) as small:
        params = {"max_new_tokens": 5, "ignore_eos": True}
        prompt = list(range(20, 90))
        cold = small.generate(input_ids=prompt, sampling_params=params)["meta_info"]
        warm = small.generate(input_ids=prompt, sampling_params=params)["meta_info"]
        assert cold["forward_steps"] == -(-70 // 16) + 4
        assert (warm["cached_tokens"], warm["forward_steps"]) == (69, 5)
        assert small.generate(input_ids=prompt, sampling_params={"max_new_tokens": 0})[
            "meta_info"
        ]["forward_steps"] == 1  # fmt: skip


def test_the_steps_of_choices_beams_and_best_of_count_once(engine):
    def asking(**options):
        asked = boughs.gen("x", max_tokens=6, ignore_eos=True, **options)
        return boughs.function(lambda s: s.__iadd__("Once" + asked)).run(backend=engine)

    two = asking(n=2)
    assert two.usage.forward_steps == sum(m["forward_steps"] for m in two.get_meta_info("x")) == 12
    assert asking(n=2, beam_width=4).usage.forward_steps == 6
    assert asking(best_of=3).usage.forward_steps == 18


def test_a_batch_is_the_sum_of_its_states(engine, endpoint):
    for backend in (engine, endpoint):
        states = program.run_batch([{}] * 3, backend=backend, temperature=0)
        usage = states.usage
        assert usage.prompt_tokens == sum(state.usage.prompt_tokens for state in states)
        assert usage.forward_steps == sum(state.usage.forward_steps for state in states)
        assert usage.requests == 3 * states[0].usage.requests
