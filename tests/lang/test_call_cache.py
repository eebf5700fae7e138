"""The cache of calls on disk: what is kept, what tells answers apart, and what may go wrong."""

import asyncio
import itertools
import multiprocessing
import os
import time

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

import boughs
from boughs.lang import cached as cached_module
from boughs.lang.cached import Cached, CachedChoosing, CachedPinning
from boughs.lang.call_cache import CHECK_BYTES, CallCache
from boughs.lang.errors import BackendError, InvalidRequest, Unsupported
from boughs.lang.requests import GenerateRequest, ScoreRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Content, Ids, Role, Text
from boughs.testing import Cut, MockBackend

pytestmark = pytest.mark.timeout(60)


class Steady(MockBackend):
    """A mock that says which model it is, and answers each request anew."""

    def __init__(self, answers=None, model="m", **options):
        numbers = itertools.count()
        super().__init__(answers or (lambda c: f"answer {next(numbers)}"), **options)
        self.model = model

    async def identity(self):
        return self.model


@pytest.fixture
def cache(tmp_path):
    return CallCache(tmp_path / "calls")


@boughs.function
def ask(s, question="q", **options):
    s += question + boughs.gen("x", **options)


@boughs.function
def chat(s, question="Hi"):
    s += boughs.user(question)
    s += boughs.assistant(boughs.gen("a", temperature=0))
    s += boughs.user("Again")
    branches = s.fork(2)
    branches += boughs.assistant(boughs.gen("b", temperature=1, seed=3))
    branches.join()
    s += boughs.assistant(boughs.select("c", choices=["yes", "no"]))


def test_a_second_run_asks_nothing(cache):
    backend = Steady(lambda c: c.text[-5:] if c.choices is None else "no")
    first = chat.run(backend=backend, cache=cache)
    first.text()  # what is not known of the template yet is asked for
    asked = len(backend.calls)
    second = chat.run(backend=backend, cache=cache)
    for read in (lambda s: s.text(), lambda s: s.messages(), lambda s: (s["a"], s["b"], s["c"])):
        assert read(first) == read(second)
    assert len(backend.calls) == asked
    assert first.choice_probs("c") == second.choice_probs("c")
    assert first.usage.call_hits == 0
    assert first.usage.requests == second.usage.call_hits == asked
    assert (second.usage.requests, second.usage.prompt_tokens) == (0, 0)
    for name in ("a", "c"):
        assert "call_cache" not in first.get_meta_info(name)
        assert second.get_meta_info(name)["call_cache"] == "hit"
    assert [m["call_cache"] for m in second.get_meta_info("b")] == ["hit", "hit"]
    same = first.get_meta_info("a")
    assert {**second.get_meta_info("a"), "id": 0, "e2e_latency": 0} == {
        **same,
        "id": 0,
        "e2e_latency": 0,
        "call_cache": "hit",
    }


def test_a_hit_is_streamed_too(cache):
    for _ in range(2):
        state = ask.run(temperature=0, backend=Steady("abcdef"), cache=cache, stream=True)
        assert "".join(state.text_iter("x")) == "abcdef"
        assert "".join(state.text_iter()) == "qabcdef"


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, False),
        ({"temperature": 0.7}, False),
        ({"temperature": 0.7, "n": 3}, False),
        ({"temperature": 0}, True),
        ({"temperature": 0.7, "seed": 1}, True),
        ({"temperature": 0.7, "seed": 1, "n": 3}, True),
        ({"beam_width": 3}, True),
        ({"temperature": 0, "return_logprob": True, "top_logprobs_num": 2}, True),
    ],
)
def test_only_what_would_come_out_the_same_is_kept(cache, options, kept):
    texts = (f"{i}" for i in range(10))
    backend = Steady(lambda c: [next(texts)] * c.request.params.n)
    first, second = (ask.run(**options, backend=backend, cache=cache) for _ in range(2))
    assert (first["x"] == second["x"]) is kept
    assert second.usage.call_hits == kept
    assert second.usage.requests == (not kept)
    metas = [state.get_meta_info("x") for state in (first, second)]
    metas = [meta[0] if isinstance(meta, list) else meta for meta in metas]
    if kept and "return_logprob" in options:
        assert metas[0]["output_top_logprobs"] == metas[1]["output_top_logprobs"]


VARIANTS = {
    "temperature": 0.5,
    "max_new_tokens": 7,
    "min_new_tokens": 1,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "frequency_penalty": 0.5,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.5,
    "logit_bias": {3: 1.0},
    "allowed_token_ids": (1, 2),
    "bad_words": ("x",),
    "stop": ("x",),
    "stop_token_ids": (3,),
    "stop_regex": ("x",),
    "ignore_eos": True,
    "no_stop_trim": True,
    "skip_special_tokens": False,
    "n": 2,
    "best_of": 3,
    "beam_width": 2,
    "length_penalty": 2.0,
    "early_stopping": True,
    "seed": 2,
    "regex": "x",
    "json_schema": "{}",
    "strict": True,
    "ebnf": "x",
    "lark": "x",
    "choices": ("x", "y"),
    "json_object": True,
    "structural_tag": "{}",
    "json_whitespace": 3,
    "json_separators": (",", ":"),
    "cache_salt": "x",
}
NO_MATTER = {"priority": 3, "timeout": 9.0, "spaces_between_special_tokens": True}


def key_of(cache, request, backend=None, kind="generate"):
    return asyncio.run(Cached(backend or Steady(), cache)._key(kind, request))


def test_each_parameter_tells_answers_apart(cache):
    assert {*VARIANTS, *NO_MATTER} == set(SamplingParams.__struct_fields__)
    plain = GenerateRequest(prompt="p", params=SamplingParams(seed=1), rid="a")
    keys = {key_of(cache, plain)}
    for name, value in VARIANTS.items():
        params = msgspec.structs.replace(plain.params, **{name: value})
        keys.add(key_of(cache, GenerateRequest(prompt="p", params=params)))
    for name, value in (
        ("return_logprob", True),
        ("logprob_start_len", 0),
        ("top_logprobs_num", 2),
        ("token_ids_logprob", (3,)),
        ("heal", True),
    ):
        keys.add(key_of(cache, msgspec.structs.replace(plain, **{name: value})))
    keys.add(key_of(cache, plain, Steady(model="another")))
    assert len(keys) == len(VARIANTS) + 7
    for name, value in NO_MATTER.items():
        params = msgspec.structs.replace(plain.params, **{name: value})
        request = GenerateRequest(prompt=[Text("p")], params=params, rid="b")
        assert key_of(cache, request) in keys


segment = st.one_of(
    st.text("ab<|", max_size=3).map(Text),
    st.text("ab<|", max_size=3).map(Content),
    st.builds(Role, st.sampled_from(["user", "a"]), st.sampled_from(["begin", "end"])),
    st.builds(Ids, st.lists(st.integers(0, 3), max_size=3), st.integers(0, 1)),
)
prompts = st.lists(segment, max_size=4)


@settings(max_examples=200, deadline=None)
@given(prompts, prompts)
def test_prompts_share_a_key_only_if_they_are_equal(tmp_path_factory, a, b):
    cache = CallCache(tmp_path_factory.getbasetemp())
    keys = [key_of(cache, GenerateRequest(prompt=prompt)) for prompt in (a, b)]
    assert (keys[0] == keys[1]) == (a == b)


def test_choices_of_a_select_tell_apart_too(cache):
    one = ScoreRequest(prompt="p", choices=["a", "b"])
    variants = [
        one,
        ScoreRequest(prompt="p", choices=["b", "a"]),
        ScoreRequest(prompt="p", choices=["ab"]),
        ScoreRequest(prompt="p", choices=["a", "b"], unconditional=True),
        ScoreRequest(prompt="p", choices=["a", "b"], cache_salt="x"),
        ScoreRequest(prompt="pa", choices=["a", "b"]),
    ]
    keys = {key_of(cache, request, kind="score") for request in variants}
    assert len(keys) == len(variants)
    again = ScoreRequest(prompt=[Text("p")], choices=["a", "b"], priority=2, rid="r")
    assert key_of(cache, again, kind="score") == key_of(cache, one, kind="score")


# ---- what is not kept ----


def test_errors_are_not_kept(cache):
    answers = iter([BackendError("broken"), "whole"])
    backend = Steady(lambda _: next(answers))
    with pytest.raises(BackendError):
        ask.run(temperature=0, backend=backend, cache=cache)
    assert ask.run(temperature=0, backend=backend, cache=cache)["x"] == "whole"


@pytest.mark.parametrize(("limit", "kept"), [(3, True), (4, False), (None, False)])
def test_an_answer_is_kept_cut_only_where_its_own_limit_cut_it(cache, limit, kept):
    backend = Steady(lambda _: Cut("abc"))
    params = SamplingParams(temperature=0, max_new_tokens=limit)
    wrapper = Cached(backend, cache)
    for _ in range(2):
        (answer,) = asyncio.run(
            collect(wrapper.generate(GenerateRequest(prompt="p", params=params)))
        )
        assert (answer.text, answer.finish.type) == ("abc", "length")
    assert len(backend.calls) == 2 - kept


def test_what_is_left_early_is_not_kept(cache):
    backend = Steady("abcdefgh")
    wrapper = Cached(backend, cache)
    request = GenerateRequest(prompt="p", params=SamplingParams(temperature=0))

    async def leave():
        chunks = wrapper.generate(request)
        await anext(chunks)
        await chunks.aclose()

    asyncio.run(leave())
    assert len(backend.aborted) == 1
    assert cache.size() == 0


def test_a_typed_value_that_was_cut_is_cut_again(cache):
    for _ in range(2):
        state = ask.run(
            type=list[int], temperature=0, max_tokens=3, backend=Steady(lambda _: Cut("[1,")),
            cache=cache,
        )  # fmt: skip
        with pytest.raises(boughs.Incomplete):
            state["x"]
    assert state.usage.call_hits == 1


# ---- files ----


def test_a_damaged_file_counts_as_not_there(cache):
    ask.run(temperature=0, backend=Steady("first"), cache=cache)
    ((path, _, _),) = cache._files()
    whole = path.read_bytes()
    broken = (b"", whole[:CHECK_BYTES], whole[:-1], whole[:-1] + b"?", b"x" * 99)
    for at, content in enumerate(broken):
        path.write_bytes(content)
        state = ask.run(temperature=0, backend=Steady(f"again {at}"), cache=cache)
        assert state["x"] == f"again {at}"
        assert state.usage.call_hits == 0
    assert ask.run(temperature=0, backend=Steady("last"), cache=cache)["x"] == f"again {at}"


def test_a_file_of_another_form_counts_as_not_there(cache, monkeypatch):
    ask.run(temperature=0, backend=Steady("first"), cache=cache)
    ((path, _, _),) = cache._files()
    cache.keep(path.name, msgspec.msgpack.encode({"another": "form"}))
    assert ask.run(temperature=0, backend=Steady("second"), cache=cache)["x"] == "second"
    monkeypatch.setattr(cached_module, "FORMAT", 10**6)
    assert ask.run(temperature=0, backend=Steady("third"), cache=cache)["x"] == "third"


def test_it_is_bounded_and_forgets_what_was_used_longest_ago(tmp_path):
    cache = CallCache(tmp_path, max_bytes=64_000)
    keys = [f"{i:040x}" for i in range(200)]
    for at, key in enumerate(keys):
        cache.keep(key, b"x" * 1000)
        path = cache._path(key)
        os.utime(path, (1000 + at, 1000 + at))
        if cache._path(keys[0]).exists():
            os.utime(cache._path(keys[0]), (5000 + at, 5000 + at))
        assert cache.size() <= 64_000 + 64_000 // 16 + 1016
    kept = [key for key in keys if cache.find(key) is not None]
    assert keys[0] in kept  # it was used all the time
    assert kept[1:] == keys[200 - len(kept) + 1 :]
    cache.keep("f" * 40, b"x" * 64_000)
    assert cache.find("f" * 40) is None  # larger than all of it
    assert (cache.hits, cache.misses) == (len(kept), 200 - len(kept) + 1)


def test_clear_forgets_answers_and_nothing_else(cache):
    for question in "abc":
        ask.run(question, temperature=0, backend=Steady(), cache=cache)
    (cache.folder / "notes.txt").write_text("mine")
    stale, young = cache.folder / "00" / ".a.part", cache.folder / "00" / ".b.part"
    stale.parent.mkdir(exist_ok=True)
    for path in (stale, young):
        path.write_bytes(b"half")
    os.utime(stale, (0, time.time() - 7200))
    assert cache.size() > 0
    assert cache.clear() == 3
    assert cache.size() == 0
    assert (cache.folder / "notes.txt").exists()
    assert young.exists()
    assert not stale.exists()


def test_a_folder_that_cannot_be_written_to_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    cache = CallCache(tmp_path / "file")
    for text in ("a", "b"):
        assert ask.run(temperature=0, backend=Steady(text), cache=cache)["x"] == text
    assert cache.clear() == 0


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    """A disk that is full is not filled further."""
    cache = CallCache(tmp_path)
    (tmp_path / "00" / f"{0:040x}").mkdir(parents=True)  # no file can take its place
    cache.keep(f"{0:040x}", b"an answer")
    assert cache.find(f"{0:040x}") is None
    assert [path.name for path in (tmp_path / "00").iterdir()] == [f"{0:040x}"]


def _write_and_read(folder, seed):
    cache = CallCache(folder, max_bytes=20_000)
    for i in range(300):
        key = f"{(i * seed) % 40:040x}"
        found = cache.find(key)
        assert found in (None, key.encode() * 20), "a file was seen half written"
        cache.keep(key, key.encode() * 20)


def test_processes_share_a_folder(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [
        context.Process(target=_write_and_read, args=(tmp_path, seed)) for seed in (3, 7, 11)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(50)
        assert worker.exitcode == 0


# ---- where it is asked for ----


def test_a_run_a_batch_a_backend_or_all_runs(cache, monkeypatch):
    runs = {
        "run": lambda b: ask.run(temperature=0, backend=b, cache=cache),
        "batch": lambda b: ask.run_batch([{"temperature": 0}], backend=b, cache=cache)[0],
        "configured": lambda b: ask.configure(cache=cache).run(temperature=0, backend=b),
        "backend": lambda b: ask.run(temperature=0, backend=boughs.cached(b, cache)),
        "async": lambda b: asyncio.run(ask.run_async(temperature=0, backend=b, cache=cache)),
    }
    assert all(run(Steady(name))["x"] == "run" for name, run in runs.items())
    backend = boughs.cached(Steady("scoped"), cache)
    with boughs.backend(backend):
        assert ask.run(temperature=0)["x"] == "run"
        assert ask.run(temperature=0, cache=False)["x"] == "scoped"  # not at all
    monkeypatch.setattr(boughs.global_config, "cache", cache)
    assert ask.run(temperature=0, backend=Steady("global"))["x"] == "run"
    assert ask.run(temperature=0, backend=Steady("global"), cache=False)["x"] == "global"


def test_programs_in_programs_have_the_cache_of_their_run(cache):
    @boughs.function
    def outer(s):
        return ask.run(temperature=0)["x"]

    for _ in range(2):
        assert outer.run(backend=Steady("first"), cache=cache).ret_value == "first"
    assert cache.hits == 1


def test_true_is_a_folder_of_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("BOUGHS_HOME", str(tmp_path))
    first = boughs.cached(Steady("first"))
    assert first.cache.folder == tmp_path / "calls"
    assert boughs.cached(first) is first
    assert ask.run(temperature=0, backend=first)["x"] == "first"
    assert ask.run(temperature=0, backend=Steady("second"), cache=True)["x"] == "first"
    assert first.cache.clear() == 1


def test_wrong_caches_are_named(tmp_path):
    with pytest.raises(InvalidRequest, match="cache"):
        ask.run(backend=Steady(), cache="yes")
    for options in ({"max_bytes": 0}, {"max_bytes": True}, {"folder": 3}):
        with pytest.raises(InvalidRequest, match=next(iter(options))):
            CallCache(**{"folder": tmp_path, **options})
    with pytest.raises(Unsupported, match="MockBackend does not say which model"):
        ask.run(backend=MockBackend(), cache=True)


def test_a_cached_backend_can_all_that_the_backend_can(cache):
    class Chooses(Steady):
        async def choose(self, request):
            scores = await super().score(request)
            scores.chosen, scores.choices = len(self.calls) % 2, []
            return scores

    @boughs.function
    def pinned(s):
        s += "p"
        s.pin(60)

    pinner = boughs.cached(Steady(), cache)
    assert isinstance(pinner, CachedPinning)
    pinned.run(backend=pinner)
    chooser = boughs.cached(Chooses(lambda c: c.choices[0]), cache)
    assert isinstance(chooser, CachedChoosing)

    @boughs.function
    def program(s):
        s += "p" + boughs.select("x", choices=["a", "b"])

    @boughs.function(num_api_spec_tokens=8)
    def ahead(s):
        s += boughs.gen("x", stop=".")

    choices = [program.run(backend=chooser)["x"] for _ in range(2)]
    assert choices == ["b", "a"]  # what a model chose when asked is a draw, and is not kept
    with pytest.raises(Unsupported, match="num_api_spec_tokens"):
        ahead.run(backend=chooser)
    assert boughs.flush_cache(chooser) is True
    assert boughs.get_server_info(chooser)["model_path"] == "mock"


def test_a_backend_that_becomes_another_is_noticed(cache, monkeypatch):
    backend = Steady("first")
    wrapper = boughs.cached(backend, cache)
    assert ask.run(temperature=0, backend=wrapper)["x"] == "first"
    backend.model = "another"
    monkeypatch.setattr(cached_module, "IDENTITY_SECONDS", -1.0)
    backend._say = lambda _: "second"
    assert ask.run(temperature=0, backend=wrapper)["x"] == "second"


def test_what_is_no_text_reaches_the_backend(cache):
    state = ask.run("\ud800", temperature=0, backend=Steady("x"), cache=cache)
    assert state["x"] == "x"
    assert cache.size() == 0
