"""Many gens of one call (`num_api_spec_tokens`)."""

import importlib.util
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import boughs
from boughs.lang.errors import BackendError, InvalidRequest, Unsupported
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(120)


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


doubles = load("api_doubles")


class Api:
    """A double of each API with its backend, whose model writes one document and no other."""

    def __init__(self, kind, say):
        self.kind = kind
        self.server = doubles.Double(say, piece=4)
        if kind == "anthropic":
            self.backend = boughs.Anthropic("m", base_url=self.server.url, api_key="k")
        else:
            self.backend = boughs.OpenAI(
                "m",
                is_chat_model=kind == "chat",
                base_url=self.server.url + "/v1",
                api_key="k",
                max_retries=0,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.backend.close()
        self.server.__exit__()


def written(body):
    """What a request's prompt has of the assistant's text."""
    if "prompt" in body:
        return body["prompt"].removeprefix("Q?")
    last = body["messages"][-1]
    return last["content"] if last["role"] == "assistant" else ""


def writer(document):
    """A model whose next character is a function of the text: the document's, else `#\\n`."""

    def following(text):
        if document.startswith(text):
            return document[len(text) : len(text) + 1]
        return {"#": "\n", "\n": ""}.get(text[-1], "#")

    def say(body, number):
        text = begun = written(body)
        while more := following(text):
            text += more
        return text[len(begun) :]

    return say


DOCUMENT = "Ann\nJob: cook\nAge: 42\nThe end"


def body(s, *, after="\nJob: ", chat=True, **last):
    s += boughs.user("Q?") + boughs.assistant_begin() if chat else "Q?"
    s += boughs.gen("name", stop="\n") + after + boughs.gen("job", stop="\n")
    s += "\nAge: " + boughs.gen("age", stop="\n") + "\n" + boughs.gen("rest", **last)
    if chat:
        s += boughs.assistant_end()


fast_form = boughs.function(num_api_spec_tokens=64)(body)
form = boughs.function(body)


@pytest.mark.parametrize("kind", ["chat", "text", "anthropic"])
def test_one_call_makes_all_gens(kind):
    with Api(kind, writer(DOCUMENT)) as api:
        s = fast_form.run(chat=kind != "text", backend=api.backend)
        names = ("name", "job", "age", "rest")
        assert [s[name] for name in names] == ["Ann", "cook", "42", "The end"]
        assert len(api.server.seen) == 1
        assert (s.usage.spec_hits, s.usage.spec_misses, s.usage.requests) == (3, 0, 1)
        metas = [s.get_meta_info(name) for name in names]
        assert [meta["speculation"] for meta in metas] == ["call", "hit", "hit", "hit"]
        assert [meta["completion_tokens"] for meta in metas] == [len(DOCUMENT), 0, 0, 0]
        assert s.usage.completion_tokens == len(DOCUMENT)
        text, trace = s.text(), s.trace()
        assert (trace.text, trace.usage) == (text, s.usage)
        assert [r.text for r in trace.requests if r.kind == "gen"] == [s[name] for name in names]
        assert not any(span.tokens for span in trace.spans)  # APIs tell no tokens
        assert s.usage.forward_steps == 0
        assert metas[1]["finish_reason"] == {"type": "stop", "matched": "\n"}
        sent = api.server.seen[0].body
        assert "stop" not in sent
        assert "stop_sequences" not in sent
        assert sent.get("max_tokens", sent.get("max_completion_tokens")) == 128


@pytest.mark.parametrize("kind", ["text", "anthropic"])
def test_a_text_that_differs_is_a_miss_and_a_new_call(kind):
    def say(body, number):
        begun = written(body)
        return "cook\nAge: 42\nThe end" if begun.endswith("Trade:") else DOCUMENT[len(begun) :]

    with Api(kind, say) as api:
        s = fast_form.run(after="\nTrade:", chat=kind != "text", backend=api.backend)
        assert [s[name] for name in ("name", "job", "age", "rest")] == [
            *("Ann", "cook", "42", "The end"),
        ]
        assert len(api.server.seen) == 2
        assert (s.usage.spec_hits, s.usage.spec_misses, s.usage.requests) == (2, 1, 2)
        assert s.get_meta_info("job")["speculation"] == "miss"


def test_a_chat_that_cannot_go_on_writes_the_turn_anew_and_gives_up_after_a_bound():
    with Api("chat", lambda body, number: DOCUMENT.replace("Job:", "Work:", number % 2)) as api:
        s = fast_form.run(backend=api.backend)
        assert s["job"] == "cook"
        assert len(api.server.seen) == 1
    with Api("chat", lambda body, number: DOCUMENT.replace("Job:", "Work:")) as api:
        with pytest.raises(BackendError, match=r"asked 3 times .*'Ann\\nJob: '; at last"):
            fast_form.run(backend=api.backend)
        assert len(api.server.seen) == 4
    with Api("chat", writer(DOCUMENT)) as api:
        with pytest.raises(Unsupported, match="num_api_spec_tokens"):
            form.run(backend=api.backend)


def test_a_turn_may_begin_with_text_on_a_chat_that_cannot_go_on():
    @boughs.function(num_api_spec_tokens=32)
    def named(s):
        s += boughs.user("Q?")
        s += boughs.assistant("Name: " + boughs.gen("a", stop="\n") + "\n" + boughs.gen("b"))

    said = ["Sure! Name: Ann\nBye", "Name: Bob\nBye"]
    with Api("chat", lambda body, number: said[number]) as api:
        s = named.run(backend=api.backend)
        assert (s["a"], s["b"]) == ("Bob", "Bye")
        assert s.usage.requests == 1  # of which both attempts' tokens are counted
        assert s.usage.completion_tokens == sum(map(len, said))


def test_a_gen_has_no_more_tokens_than_it_may():
    @boughs.function(num_api_spec_tokens=64)
    def short(s, limit):
        s += "Q?" + boughs.gen("a", stop="\n", max_tokens=limit) + boughs.gen("b", max_tokens=3)

    for limit, text, requests in ((2, "An", 3), (3, "Ann", 3), (4, "Ann", 2), (90, "Ann", 2)):
        with Api("text", writer(DOCUMENT)) as api:
            s = short.run(limit, backend=api.backend)
            assert s["a"] == text
            assert len(s["b"]) == 3
            assert len(api.server.seen) == requests


def test_branches_do_not_share_what_was_written():
    @boughs.function(num_api_spec_tokens=64)
    def forked(s):
        s += "Q?" + boughs.gen("a", stop="\n")
        branches = s.fork(2)
        for branch in branches:
            branch += "\nJob: " + boughs.gen("b", stop="\n")
        branches.join()

    with Api("text", writer(DOCUMENT)) as api:
        s = forked.run(backend=api.backend)
        assert s["b"] == ["cook", "cook"]
        assert len(api.server.seen) == 3
        assert s.usage.spec_hits == 0


def test_gens_of_other_parameters_are_calls_of_their_own():
    for own in ({"temperature": 0.5}, {"regex": "[a-z]+"}, {"return_logprob": True}, {"n": 2}):
        with Api("text", writer(DOCUMENT)) as api:

            @boughs.function(num_api_spec_tokens=64)
            def program(s, own=own):
                s += "Q?" + boughs.gen("a", stop="\n")
                s += "\nJob: " + boughs.gen("b", stop="\n", **own)

            s = program.run(backend=api.backend)
            assert s["b"] in ("cook", ["cook", "cook"])
            assert (s.usage.spec_hits, s.usage.spec_misses) == (0, 1)


def test_it_says_nothing_to_other_backends_and_is_kept_by_bind():
    mock = MockBackend(["Ann", "cook", "42", "Bye"])
    s = fast_form.bind(after="\nWork: ").run(backend=mock)
    assert [s[name] for name in ("name", "job")] == ["Ann", "cook"]
    assert s.usage.spec_hits == 0
    with Api("text", writer(DOCUMENT)) as api:
        assert fast_form.bind(chat=False).configure(seed=1).run(backend=api.backend).usage.spec_hits
    for tokens in (0, -1, True, "many"):
        with pytest.raises(InvalidRequest, match="num_api_spec_tokens"):
            boughs.function(body, num_api_spec_tokens=tokens)


pieces = st.lists(
    st.tuples(
        st.text(alphabet="ab:\n ", max_size=3),
        st.sampled_from([None, "\n", "b", ["a:", "\n"]]),
        st.sampled_from([2, 5, 100]),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture(scope="module")
def shared():
    """One double for all examples."""
    with Api("text", writer("")) as api:
        yield api


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    script=pieces,
    document=st.text(alphabet="ab:\n ", max_size=24),
    tokens=st.sampled_from([1, 6, 64]),
)
def test_speculated_is_what_is_generated_one_by_one(shared, script, document, tokens):
    """A model that is a function of its prompt writes the same text either way."""

    def program(s):
        s += "Q?"
        for i, (text, stop, limit) in enumerate(script):
            s += text + boughs.gen(f"x{i}", stop=stop, max_tokens=limit)

    def outcome(program):
        s = program.run(backend=shared.backend)
        return [s[f"x{i}"] for i in range(len(script))], s.text()

    shared.server.say = writer(document)
    fast = boughs.function(program, num_api_spec_tokens=tokens)
    assert outcome(fast) == outcome(boughs.function(program))
