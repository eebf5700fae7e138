"""Beams that a grammar holds, or that end with a stop in their text, in a core."""

import codecs
import importlib.util
import re
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.errors import NotFound
from boughs.lang.sampling import SamplingParams
from boughs.runtime.beams import beam_limit
from boughs.runtime.front import stops
from boughs.runtime.messages import Abort, Submit


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages, rote = load("page_model"), load("rote_grammars")
Driver, alone, context_logits, submit = (
    pages.Driver,
    pages.alone,
    pages.context_logits,
    pages.submit,
)
VOCAB, EOS = pages.VOCAB, pages.EOS


class Letters:
    """A tokenizer: a token is one or two of a few letters, or a part of a character."""

    special_ids = frozenset({EOS})
    dummy_space = False

    def token_bytes(self, token):
        if token in (30, 31):
            return "\u00e9".encode()[token - 30 : token - 29]
        return b"abc"[token % 3 :][:1] + (b"d" if token % 5 == 0 else b"")


def text_of(ids):
    raw = b"".join(Letters().token_bytes(token) for token in ids if token != EOS)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(raw)  # what is complete


def beams(key, prompt, width, most=8, **params):
    params = SamplingParams(max_new_tokens=most, beam_width=width, n=width, seed=0, **params)
    return Submit(key=key, prompt_ids=list(prompt), params=params)


def has_stop(params, ids):
    """Whether an output has ended with a stop, from its whole text."""
    text = text_of(ids)
    before = len(text_of(ids[: max(0, params.min_new_tokens - 1)]))
    ends = [at for stop in params.stop for at in range(before + 1, len(text) + 1)
            if text[:at].endswith(stop)]  # fmt: skip
    return bool(ends) or any(re.search(pattern, text) for pattern in params.stop_regex)


def naive(request, most):
    """(ids, score, finish) of what a search finds, from whole outputs alone."""
    params, width = request.params, request.params.beam_width
    source = params.regex
    sets = None if source is None else [{*map(int, s.split(","))} for s in source.split()]
    going, finished = [([], 0.0)], []
    for length in range(1, most + 1):
        made = []
        for ids, score in going:
            logprobs = context_logits(tuple(request.prompt_ids + ids)).log_softmax(-1)
            for token, logprob in enumerate(logprobs.tolist()):
                if sets is not None and token not in sets[length - 1]:
                    continue
                if token == EOS and length <= params.min_new_tokens:
                    continue
                made.append(([*ids, token], score + logprob))
        made.sort(key=lambda pair: -pair[1])
        going = []
        for rank, (ids, score) in enumerate(made[: 2 * width]):
            whole = sets is not None and length == len(sets)
            ends = ids[-1] == EOS or whole or has_stop(params, ids)
            if ends or length == most:
                if rank < width:
                    finished.append((ids, score / length, "stop" if ends else "length"))
            elif len(going) < width:
                going.append((ids, score))
        finished = sorted(finished, key=lambda one: -one[1])[:width]
        if not going:
            break
        if len(finished) == width and going[0][1] / length <= finished[-1][1]:
            break
    return finished


def run(requests, *sources, at=None, **config):
    schedule = [requests] if at is None else at
    grammars = rote.RoteGrammars(*sources)
    driver = Driver(grammars=grammars, tokenizer=Letters, **config).run(schedule)
    driver.core.check()
    assert driver.core.scheduler.is_empty
    return driver


def room(driver, request):
    core, prompt = driver.core, len(request.prompt_ids)
    limit = beam_limit(request.params.beam_width, prompt, core.limits, core._config)
    return min(request.params.max_new_tokens, limit - prompt)


def assert_found(driver, request):
    (output,) = driver.outputs[request.key]
    assert output.error is None, output.error
    expected = naive(request, room(driver, request))
    assert [h.ids for h in output.hypotheses] == [ids for ids, _, _ in expected]
    if request.params.beam_width > 1:  # else it is greedy, on what is allowed
        assert [h.score for h in output.hypotheses] == pytest.approx(
            [score for _, score, _ in expected], abs=1e-4
        )
    assert [h.finish for h in output.hypotheses] == [finish for _, _, finish in expected]


STOPS = [
    {"stop": ("b",)},
    {"stop": ("ad", "cc")},
    {"stop": ("abc", "b"), "min_new_tokens": 3},
    {"stop_regex": ("c.b",)},
    {"stop_regex": ("(ab|d)$",), "stop": ("ca",)},
    {"stop": ("\u00e9",)},
]


@pytest.mark.parametrize("params", STOPS, ids=str)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_a_beam_ends_with_a_stop_as_in_its_whole_text(params, width):
    ended = 0
    for first in range(1, 9):
        request = beams(0, [first, 7, 9], width, 10, **params)
        driver = run([request], num_pages=120)
        assert_found(driver, request)
        ended += sum(has_stop(request.params, h.ids) for h in driver.outputs[0][0].hypotheses)
    assert ended or params.get("stop") == ("\u00e9",)  # which is rare


SOURCES = ["5,6,7 8,9", "1,2,3,4,5 6,7 8,9,10,11 12", "3 4 5", "1,2 1,2 1,2 1,2 1,2 1,2"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("width", [2, 5])
def test_a_grammar_holds_every_beam(source, width):
    for first in range(1, 5):
        request = beams(0, [first, 7, 9], width, 5, regex=source)
        assert_found(run([request], source, num_pages=120), request)


def test_fewer_outputs_than_beams_where_the_grammar_has_no_more():
    request = beams(0, [1, 2], 5, regex="3,4 5")
    (output,) = run([request], "3,4 5", num_pages=120).outputs[0]
    assert sorted(h.ids for h in output.hypotheses) == [[3, 5], [4, 5]]
    assert {h.finish for h in output.hypotheses} == {"stop"}


def test_one_that_is_cut_inside_its_grammar_says_so():
    request = beams(0, [1, 2], 3, 2, regex=SOURCES[-1])
    (output,) = run([request], SOURCES[-1], num_pages=120).outputs[0]
    assert [(h.finish, h.incomplete) for h in output.hypotheses] == [("length", True)] * 3


def test_a_mask_beyond_its_budget_fails_the_search_alone():
    requests = [beams(0, [1, 2], 3, regex="5,6 99 5"), submit(1, [1, 2, 3], 6)]
    driver = run(requests, "5,6 99 5", num_pages=60)
    assert driver.outputs[0][-1].error == ("GrammarError", "regex: too complex", "regex")
    assert driver.ids(1) == alone(requests[1])


def test_it_waits_for_the_tokenizer_and_holds_nobody_up():
    loading, loaded = threading.Event(), threading.Event()

    def tokenizer():
        loading.set()
        assert loaded.wait(20)
        return Letters()

    requests = [beams(0, [1, 2, 3], 3, stop=("b",)), submit(1, [1, 2, 3], 6)]
    driver = Driver(num_pages=60, tokenizer=tokenizer)
    finish = driver.core.scheduler.finish

    def noted(request, length=None):
        loaded.set()  # the other one has ended first
        finish(request, length)

    driver.core.scheduler.finish = noted
    driver.run([requests])
    assert loading.is_set()
    assert driver.ids(1) == alone(requests[1])
    assert_found(driver, requests[0])


def test_a_tokenizer_that_is_gone_fails_the_search_alone():
    def tokenizer():
        raise NotFound("the tokenizer has gone")

    requests = [beams(0, [1, 2, 3], 3, stop=("b",)), submit(1, [1, 2, 3], 6)]
    driver = Driver(num_pages=60, tokenizer=tokenizer).run([requests])
    assert driver.outputs[0][0].error == ("NotFound", "the tokenizer has gone", None)
    assert driver.ids(1) == alone(requests[1])


def test_a_slow_pattern_fails_the_search_alone(monkeypatch):
    """All beams have one budget."""
    monkeypatch.setattr(stops, "BUDGET_SECONDS", 0.0)
    monkeypatch.setattr(stops, "BUDGET_PER_PIECE", 0.0)
    requests = [
        beams(0, [1, 2, 3], 4, 9, stop_regex=("a.*x",)),
        submit(1, [1, 2, 3], 6),
    ]
    driver = run(requests, num_pages=300)
    kind, message, field = driver.outputs[0][0].error
    assert (kind, field) == ("InvalidRequest", "stop_regex")
    assert "takes too long" in message
    assert driver.ids(1) == alone(requests[1])


@st.composite
def loads(draw):
    """Searches that end in every way, and plain requests; when each comes, and who is aborted."""
    requests, schedule = [], [[] for _ in range(12)]
    for key in range(draw(st.integers(1, 5))):
        prompt = draw(st.lists(st.integers(1, 3), min_size=1, max_size=14))
        kind = draw(st.sampled_from(["plain", "stop", "grammar", "both"]))
        most = draw(st.integers(1, 9))
        if kind == "plain":
            requests.append(submit(key, prompt, most))
        else:
            params = {} if kind == "grammar" else draw(st.sampled_from(STOPS))
            params = {**params, "min_new_tokens": min(most, params.get("min_new_tokens", 0))}
            if kind != "stop":
                params["regex"] = draw(st.sampled_from(SOURCES))
                most = min(most, len(params["regex"].split()))
                params["min_new_tokens"] = 0
            requests.append(beams(key, prompt, draw(st.integers(1, 4)), most, **params))
        schedule[draw(st.integers(0, 11))].append(requests[-1])
    aborted = draw(st.sets(st.integers(0, len(requests) - 1), max_size=2))
    for key in aborted:
        schedule[draw(st.integers(0, 11))].append(Abort(key))
    return requests, schedule, aborted


@given(
    loads(),
    st.integers(0, 12),
    st.sampled_from([5, 7, 64]),
    st.sets(st.integers(2, 30), max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_random_loads_are_retracted_and_aborted_and_find_the_same(load, extra, budget, disturbed):
    requests, schedule, aborted = load
    need = [
        -(-(len(r.prompt_ids) + r.params.max_new_tokens) // 4)
        if r.params.beam_width is None
        else len(r.prompt_ids) // 4 + 2 * r.params.beam_width
        for r in requests
    ]
    grammars = rote.RoteGrammars(*SOURCES)
    driver = Driver(1 + extra + max(need), 4, budget, grammars, Letters)
    scheduler = driver.core.scheduler
    plan = scheduler.schedule

    def retracting():
        if scheduler.counters.steps in disturbed and scheduler._running:
            disturbed.discard(scheduler.counters.steps)
            scheduler._retract(scheduler._running[-1])
        return plan()

    scheduler.schedule = retracting
    driver.run(schedule)
    for request in requests:
        outputs = driver.outputs.get(request.key, [])
        if request.key in aborted and not (outputs and outputs[-1].finish):
            continue
        if request.params.beam_width is None:
            assert driver.ids(request.key) == alone(request)
        else:
            assert_found(driver, request)
    driver.core.check()
    assert scheduler.is_empty


@pytest.mark.parametrize("kind", ["stop", "grammar"])
@pytest.mark.parametrize("pool", [18, 60])
def test_an_abort_at_any_step_loses_no_page(kind, pool):
    source = SOURCES[-1]
    params = {"regex": source} if kind == "grammar" else {"stop": ("ad",)}
    beside = submit(1, [*range(1, 12), 30], 12)
    for at in range(1, 16):
        request = beams(0, range(1, 18), 4, 6, **params)
        schedule = [[request, beside], *[[] for _ in range(at - 1)], [Abort(0)]]
        driver = run(None, source, at=schedule, num_pages=1 + pool, page_size=4, budget=6)
        assert driver.ids(1) == alone(beside)


def test_given_logprobs_are_the_models_own():
    request = msgspec.structs.replace(
        beams(0, [1, 2, 3], 3, 6, logit_bias={4: 2.0}, stop=("ad",)),
        logprobs=True,
        token_ids_logprob=[4, 9, 1],
    )
    for one in run([request], num_pages=60).outputs[0][0].hypotheses:
        for at, values in enumerate(one.given):
            context = (1, 2, 3, *one.ids[:at])
            expected = context_logits(context).log_softmax(-1)[[4, 9, 1]]
            assert values == pytest.approx(expected.tolist())
