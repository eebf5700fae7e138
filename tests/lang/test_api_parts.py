"""What the API models are made of, alone: stops and patterns against naive ones; and the wire
against the mock: a program is the same on all of them."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import jsonschema
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import boughs
from boughs.lang.apis.asking import match
from boughs.lang.apis.matching import Trial
from boughs.lang.apis.messages import conversation
from boughs.lang.apis.stops import Stopper
from boughs.lang.apis.strict import narrowed
from boughs.lang.errors import GrammarError
from boughs.lang.segments import Content, Ids, Role, Text
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

texts = st.text(alphabet="abc", max_size=12)


def cut(text, sizes):
    """The text in pieces of these sizes, and the rest."""
    for size in sizes:
        yield text[:size]
        text = text[size:]
    yield text


@given(texts, st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=3), st.data())
def test_a_stop_ends_a_text_wherever_it_is_cut(text, stops, data):
    sizes = data.draw(st.lists(st.integers(0, 4), max_size=6))
    keep = data.draw(st.booleans())
    stopper = Stopper(stops, (), keep=keep)
    given = [stopper.feed(piece) for piece in cut(text, sizes)] + [stopper.rest()]
    found = [text.find(stop) for stop in stops if stop in text]
    if not found:
        assert ("".join(given), stopper.matched) == (text, None)
        return
    begin = min(found)
    assert stopper.matched in [stop for stop in stops if text.startswith(stop, begin)]
    end = begin + len(stopper.matched) if keep else begin
    assert "".join(given) == text[:end]


PATTERNS = ["a*b", "(ab|c)+", "a{2,3}", "abc|ab", "[ab]+c?"]


@given(texts, st.sampled_from(PATTERNS), st.booleans(), st.data())
def test_what_is_accepted_matches(text, pattern, limited, data):
    sizes = data.draw(st.lists(st.integers(1, 4), max_size=6))
    trial = Trial(pattern, Stopper((), (), keep=False))
    for piece in cut(text, sizes):
        if trial.feed(piece):
            break
    trial.finish(cut=limited)
    begins = [text[:end] for end in range(1, len(text) + 1)]
    whole = [begin for begin in begins if re.fullmatch(pattern, begin)]
    if trial.text is None:
        assert not whole
    elif trial.cut:
        assert limited
        assert trial.text == text
    else:
        assert trial.text in whole
        assert trial.text == whole[-1]


def test_a_pattern_that_takes_for_ever_is_an_error(monkeypatch):
    monkeypatch.setattr("boughs.lang.apis.stops.MATCH_SECONDS", 1e-9)
    slow = r"(a|b|ab)*\1c"
    trial = Trial(slow, Stopper((), (), keep=False))
    with pytest.raises(GrammarError, match=r"regex: .* takes more than"):
        trial.feed("ab" * 12 + "d")
    with pytest.raises(GrammarError, match=r"stop_regex: .* takes more than"):
        Stopper((), (slow,), keep=False).feed("ab" * 12 + "d")


@pytest.mark.parametrize(
    ("answer", "choices", "index"),
    [
        ("a", ["a", "b"], 0),
        ("B.", ["a", "b"], 1),
        ("yes, it is", ["no", "yes"], 1),
        ("yesterday", ["no", "yes"], None),
        ("a", ["A", "a"], 1),
        ("aa", ["AA", "aA"], None),
        ("new york city", ["New York", "New York City"], 1),
        ("", ["a"], None),
        ("a", ["a", "a"], 0),
    ],
)
def test_which_choice_an_answer_is(answer, choices, index):
    assert match(answer, choices) == index


def test_text_and_content_are_messages():
    prompt = [
        Text("\n"),
        Role("user", "begin"),
        Content("a"),
        Text("b"),
        Role("user", "end"),
        Text(" "),
        Role("assistant", "begin"),
        Text("c"),
    ]
    found = conversation(prompt, "API")
    assert found.to_json() == [
        {"role": "user", "content": "ab"},
        {"role": "assistant", "content": "c"},
    ]


# ---- schemas ----

KEYS = ["a", "b"]
values = st.recursive(
    st.one_of(st.none(), st.integers(0, 2), st.text(alphabet="ab", max_size=1)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from([*KEYS, "c"]), inner)
    ),
    max_leaves=5,
)
simple = st.sampled_from(
    [
        {"type": "integer"},
        {"type": "string"},
        {"type": "null"},
        {},
        True,
        False,
        {"$ref": "#/$defs/d"},
    ]
)


def wider(inner):
    """Schemas of schemas, with keywords that must not be narrowed under."""
    objects = st.builds(
        lambda properties, required, more: {
            "type": "object",
            "properties": properties,
            "required": [name for name in required if name in properties],
            **more,
        },
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=2),
        st.sets(st.sampled_from(KEYS)),
        st.sampled_from([{}, {"additionalProperties": True}, {"additionalProperties": False}]),
    )
    several = st.lists(inner, min_size=1, max_size=2)
    lists = [st.builds(lambda s, k=k: {k: s}, several) for k in ("anyOf", "allOf", "oneOf")]
    items = st.builds(lambda s: {"type": "array", "items": s}, inner)
    return st.one_of(objects, items, st.builds(lambda s: {"not": s}, inner), *lists)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.recursive(simple, wider, max_leaves=5), simple, st.lists(values, max_size=8))
def test_what_is_valid_under_a_narrowed_schema_is_valid_under_the_one_given(schema, part, values):
    whole = {"$defs": {"d": part if part != {"$ref": "#/$defs/d"} else {}}, "allOf": [schema]}
    if isinstance(schema, dict):
        whole = {"$defs": whole["$defs"], **schema}
    narrow = narrowed(json.dumps(whole))
    given, strict = (jsonschema.Draft202012Validator(each) for each in (whole, narrow))
    for value in values:
        assert given.is_valid(value) or not strict.is_valid(value)


def test_objects_are_closed_and_whole_wherever_they_are():
    class Leaf(pydantic.BaseModel):
        size: int = 0

    class Tree(pydantic.BaseModel):
        name: str
        leaves: list[Leaf] = []
        left: "Tree | None" = None

    narrow = narrowed(json.dumps(Tree.model_json_schema()))
    for name, names in (("Leaf", ["size"]), ("Tree", ["name", "leaves", "left"])):
        assert narrow["$defs"][name]["required"] == names
        assert narrow["$defs"][name]["additionalProperties"] is False
    linked = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    assert narrowed(json.dumps(linked)) == linked  # required, it would have no end


# ---- the same structure as on the mock ----

turns = st.lists(
    st.one_of(
        st.tuples(st.just("user"), st.text(alphabet="ab é", max_size=3)),
        st.tuples(st.just("gen"), st.sampled_from(["x", "y"])),
        st.tuples(st.just("select"), st.sampled_from(["x", "z"])),
        st.tuples(st.just("fork"), st.integers(1, 3)),
        st.tuples(st.just("scope"), st.just("v")),
        st.tuples(st.just("set"), st.just("w")),
    ),
    max_size=5,
)


def play(s, script):
    s += boughs.system("Be good.")
    for kind, value in script:
        if kind == "user":
            s += boughs.user("Q" + value)
        elif kind == "gen":
            s += boughs.user("?") + boughs.assistant(boughs.gen(value))
        elif kind == "select":
            s += boughs.user("?") + boughs.assistant(boughs.select(value, choices=["a", "bc"]))
        elif kind == "fork":
            branches = s.fork(value)
            for i, branch in enumerate(branches):
                branch += boughs.user(str(i)) + boughs.assistant(boughs.gen("f"))
            branches.join()
        elif kind == "scope":
            with s.var_scope(value):
                s += boughs.user("in") + boughs.assistant(boughs.gen("in"))
        else:
            s[value] = 1


def said(messages):
    """A function of the conversation alone."""
    length = sum(len(message["content"]) for message in messages)
    if messages[-1]["content"].startswith("Answer with"):
        asked = length - len(messages[-1]["content"])
        return ["a", "bc"][asked % 2]
    return f"é{length}"


def mocked(call):
    prompt = [
        Text("".join(map(chr, s.ids))) if isinstance(s, Ids) else s for s in call.request.prompt
    ]
    found = conversation(prompt, "the mock").to_json()
    if call.choices is not None:
        return said([*found, {"content": "Answer with"}])
    return said(found)


@pytest.fixture(scope="module")
def backends():
    """One of each wire."""

    def say(body, number):
        system = [{"content": body["system"]}] if "system" in body else []
        return said(system + body["messages"])

    with doubles.Double(say, piece=2) as server:
        yield (
            boughs.OpenAI("m", api_key="k", base_url=server.url + "/v1"),
            boughs.Anthropic("m", api_key="k", base_url=server.url),
        )


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(script=turns)
def test_a_program_is_the_same_on_the_mock_and_on_the_wires(backends, script):
    program = boughs.function(play)

    def outcome(backend):
        s = program.run(script, backend=backend)
        names = [n for n in ("x", "y", "z", "f", "v", "w", "in") if n in s]
        return s.text(), s.messages(), {name: s[name] for name in names}

    want = outcome(MockBackend(mocked, piece=2))
    for backend in backends:
        assert outcome(backend) == want
        streamed = program.run(script, backend=backend, stream=True)
        assert "".join(streamed.text_iter()) == want[0]
