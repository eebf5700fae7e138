"""An abort before every step in turn, of every kind of request: no page is lost, no token is late.

Beside the request another one runs, in a pool that has room for both or makes one give way; with a
prefix cache, and without.
"""

import importlib.util
import threading
from pathlib import Path

import pytest

from boughs.lang.sampling import SamplingParams
from boughs.runtime.messages import Abort, Finish, Submit


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages, rote = load("page_model"), load("rote_grammars")
Driver, alone, submit = pages.Driver, pages.alone, pages.submit

PROMPT = list(range(1, 20))
SOURCE = "5,6 7 8 9 10,11 12 13"
STEPS = 24
ABORTED = (0, 10, 11)


class Letters:
    """A tokenizer of letters."""

    special_ids = frozenset({pages.EOS})
    dummy_space = False

    def token_bytes(self, token):
        return bytes([97 + token % 4])


def make(key=0, most=6, **fields):
    params = {name: fields.pop(name) for name in list(fields) if hasattr(SamplingParams, name)}
    params = SamplingParams(
        **{"temperature": 0.0, "seed": 0, "max_new_tokens": most, "ignore_eos": True, **params}
    )
    return Submit(key=key, prompt_ids=PROMPT, params=params, **fields)


KINDS = {
    "chunked": lambda: [make()],
    "ends": lambda: [make(ignore_eos=False, stop_token_ids=(2, 3, 4, 5, 6))],
    "choices": lambda: [make(key, family=100, choice=key, temperature=1.0) for key in ABORTED],
    "one token each": lambda: [make(key, 1, family=100) for key in ABORTED],
    "logprobs": lambda: [
        make(logprobs=True, top_logprobs=2, token_ids_logprob=[4], prompt_logprobs_from=3)
    ],
    "beam": lambda: [make(beam_width=3, n=3)],
    "beam, stop": lambda: [make(beam_width=3, n=3, stop=("abc",))],
    "beam, grammar": lambda: [make(beam_width=3, n=3, regex=SOURCE)],
    "grammar": lambda: [make(regex=SOURCE)],
    "choices, grammar": lambda: [make(key, family=100, regex=SOURCE) for key in ABORTED],
    "scored": lambda: [make(0, 0, targets=[[4], [], [5, 6], [7]])],
    "mean": lambda: [make(0, 0, pooling="mean")],
    "prefilled": lambda: [make(0, 0)],
    "unconfirmed": lambda: [make(confirm=True)],
    "replayed": lambda: [make(output_ids=[5, 6, 7])],
    "replayed, grammar": lambda: [make(regex=SOURCE, output_ids=[5, 7])],
}


class Schedule:
    """Requests, an abort before step `at`, and a grammar that is there before step `ready`."""

    def __init__(self, grammars, requests, at, ready):
        self.grammars, self.requests, self.at, self.ready = grammars, requests, at, ready
        self.step = -1

    def __bool__(self):
        return self.step < max(self.at, self.ready)

    def pop(self, _):
        self.step += 1
        if self.step == self.ready:
            self.grammars.finish(SOURCE)
        messages = list(self.requests) if self.step == 0 else []
        return messages + ([Abort(key) for key in ABORTED] if self.step == self.at else [])


def outputs_before_abort(driver):
    """How many outputs each request had when it was aborted; filled while the driver runs."""
    counts, take = {}, driver.core._take

    def noted(message, outputs):
        if isinstance(message, Abort):
            counts[message.key] = len(driver.outputs.get(message.key, []))
        take(message, outputs)

    driver.core._take = noted
    return counts


def run(kind, at, *, ready=0, pool=60, cold=False, jumps=False, **more):
    beside = submit(1, [*range(1, 12), 30], 12)
    grammars = rote.RoteGrammars(jumps=jumps)
    schedule = Schedule(grammars, [*KINDS[kind](), beside], at, ready)
    driver = Driver(
        num_pages=1 + pool,
        page_size=4,
        budget=6,
        grammars=grammars,
        **{"tokenizer": Letters, "disable_radix_cache": cold, **more},
    )
    before = outputs_before_abort(driver)
    driver.run(schedule)
    assert driver.ids(1) == alone(beside)
    for key in ABORTED:
        made = driver.outputs.get(key, [])
        assert len(made) == before[key], "an output after the abort"
        assert [o.finish for o in made[:-1]] == [None] * (len(made) - 1)
    driver.core.check()
    assert driver.core.scheduler.is_empty
    stats = driver.core.cache.stats()
    assert stats.private == 0
    assert not cold or stats.free == pool
    return driver


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("pool", [14, 60])
@pytest.mark.parametrize("kind", KINDS)
def test_at_every_step(kind, pool, cold):
    ended = []
    for at in range(1, STEPS):
        driver = run(kind, at, pool=pool, cold=cold)
        ended.append(bool(driver.outputs.get(0)) and driver.outputs[0][-1].finish is not None)
    assert not ended[0], "it was over before the first abort"
    assert ended[-1], "it was never let end"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "grammar" in kind])
@pytest.mark.parametrize("ready", [1, 2, 5, 9, 30])
@pytest.mark.parametrize("jumps", [False, True])
def test_before_and_after_its_grammar_is_there(kind, ready, jumps):
    for at in range(1, 16):
        run(kind, at, ready=ready, jumps=jumps)


def test_while_the_tokenizer_for_its_beams_is_loaded():
    loaded = threading.Event()

    def tokenizer():
        assert loaded.wait(20)
        return Letters()

    try:
        driver = run("beam, stop", 5, tokenizer=tokenizer)
        assert 0 not in driver.outputs
    finally:
        loaded.set()


@pytest.mark.parametrize("kind", KINDS)
def test_a_finish_that_crosses_an_abort_changes_nothing(kind):
    """Of the front both may come, in any order, also of a request that was never there."""
    for at in range(1, STEPS, 3):
        grammars = rote.RoteGrammars(SOURCE)
        cross = [Abort(0), Finish(0, 1), Abort(0), Finish(77, 3), Abort(78)]
        schedule = [KINDS[kind](), *[[] for _ in range(at - 1)], cross]
        schedule[-1] += [Abort(key) for key in ABORTED[1:]]
        driver = Driver(60, 4, 6, grammars, Letters).run(schedule)
        driver.core.check()
        assert driver.core.scheduler.is_empty


def test_one_choice_of_many_ends_alone():
    for at in range(1, STEPS):
        requests = KINDS["choices"]()
        whole = Driver(60, 4, 6).run([requests])
        driver = Driver(60, 4, 6).run([requests, *[[] for _ in range(at - 1)], [Abort(10)]])
        for key in (0, 11):
            assert driver.ids(key) == whole.ids(key)
        made = driver.ids(10) if 10 in driver.outputs else []
        assert made == whole.ids(10)[: len(made)]
        driver.core.check()
        assert driver.core.scheduler.is_empty
