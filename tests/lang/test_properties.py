"""Random programs: streamed = unstreamed, forked = sequential, batched = alone, async = plain."""

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import boughs
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(120)

texts = st.text(alphabet="ab<|>é\n", max_size=4)
names = st.sampled_from(["x", "y", "z"])
leaves = st.one_of(
    st.tuples(st.just("text"), texts),
    st.tuples(st.just("gen"), names),
    st.tuples(st.just("several"), names),
    st.tuples(st.just("select"), names),
    st.tuples(st.just("set"), names),
    st.tuples(st.just("read"), st.just("")),
    st.tuples(st.just("user"), texts),
    st.tuples(st.just("assistant"), names),
)
scripts = st.recursive(
    st.lists(leaves, max_size=6),
    lambda inner: st.lists(
        st.one_of(
            leaves,
            st.tuples(st.just("fork"), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just("scope"), inner),
            st.tuples(st.just("copy"), inner),
        ),
        max_size=5,
    ),
    max_leaves=12,
)
fast = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def answer(call):
    """A function of the prompt alone, so that any order of requests gives the same."""
    length = len(call.text)
    if call.choices is not None:
        return call.choices[length % len(call.choices)]
    n = call.request.params.n
    return [f"{length}é{i}" for i in range(n)] if n > 1 else f"({length})" * (length % 4)


def step(s, kind, value):
    """One leaf."""
    if kind == "text":
        s += value
    elif kind == "gen":
        s += boughs.gen(value)
    elif kind == "several":
        s += boughs.gen(value, n=2) + "."
    elif kind == "select":
        s += boughs.select(value, choices=["a", "bc"])
    elif kind == "set":
        s[value] = len(value)
    elif kind == "user":
        s += boughs.user(value)
    elif kind == "assistant":
        s += boughs.assistant("So " + boughs.gen(value))


def play(s, script, depth=0):
    """Run a script; forks run at the same time."""
    for kind, value in script:
        if kind == "read":
            s.sync()
        elif kind == "fork":
            branches = s.fork(len(value))
            for branch, inner in zip(branches, value, strict=True):
                play(branch, inner, depth + 1)
            branches.join()
        elif kind == "scope":
            with s.var_scope(f"scope{depth}"):
                play(s, value, depth + 1)
        elif kind == "copy":
            with s.copy() as c:
                play(c, value, depth + 1)
        else:
            step(s, kind, value)


def play_in_turn(s, script, depth=0):
    """Run a script without fork: a branch is a program of its own that does all from the start."""
    for kind, value in script:
        if kind == "fork":
            ends = []
            for inner in value:
                with s.copy() as c:
                    play_in_turn(c, inner, depth + 1)
                    c.sync()
                    ends.append(dict(c._executor.contents.variables))
                    written = c._executor.contents.written
                    ends[-1] = (ends[-1], set(written), list(written))
            for name in dict.fromkeys(name for _, _, order in ends for name in order):
                s[name] = [variables.get(name) for variables, _, _ in ends]
        elif kind == "scope":
            with s.var_scope(f"scope{depth}"):
                play_in_turn(s, value, depth + 1)
        elif kind == "copy":
            with s.copy() as c:
                play_in_turn(c, value, depth + 1)
        elif kind != "read":
            step(s, kind, value)


program = boughs.function(play)
in_turn = boughs.function(play_in_turn)


@boughs.function
async def native(s, script):
    """The same on the loop, for scripts without copies and reads."""
    play(s, script)


def outcome(state):
    contents = state._executor.contents
    return state.text(), state.messages(), dict(contents.variables), sorted(contents.written)


def run(which, script, **options):
    return which.run(script, backend=MockBackend(answer, **options))


@given(scripts)
@fast
def test_streamed_is_unstreamed(script):
    expected = outcome(run(program, script))
    state = program.run(script, backend=MockBackend(answer, piece=1), stream=True)
    assert "".join(state.text_iter()) == expected[0]
    assert outcome(state) == expected
    assert "".join(state.text_iter()) == expected[0]
    for name, value in expected[2].items():
        if isinstance(value, str):
            assert "".join(state.text_iter(name)) == value


@given(scripts)
@fast
def test_forked_is_sequential(script):
    assert outcome(run(program, script)) == outcome(run(in_turn, script))


@given(st.lists(scripts, max_size=4))
@settings(fast, max_examples=25)
def test_batched_is_alone(batch):
    alone = [outcome(run(program, script)) for script in batch]
    states = program.run_batch([(script,) for script in batch], backend=MockBackend(answer))
    assert [outcome(state) for state in states] == alone


@given(scripts)
@fast
def test_async_is_plain(script):
    def without(items):
        kept = [item for item in items if item[0] != "read"]
        return [(k, list(map(without, v)) if k == "fork" else without(v) if k in ("scope", "copy")
                 else v) for k, v in kept]  # fmt: skip

    script = without(script)
    assert outcome(run(native, script)) == outcome(run(program, script))


@given(scripts)
@fast
def test_a_trace_has_the_variables_of_a_run(script):
    trace = program.trace(script)
    assert set(trace.variables) == set(outcome(run(program, script))[2])
