"""`state.trace()`: who wrote what, what it cost, errors in their place; as text and as HTML."""

import io
import os
import pty
import subprocess
import sys
import threading
from html.parser import HTMLParser

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from rich.console import Console

import boughs
from boughs.lang.errors import BoughsError, InvalidRequest, ProgramError
from boughs.lang.results import Chunk
from boughs.lang.usage import Usage
from boughs.lang.view import Branches, Fault, Span
from boughs.testing import Cut, MockBackend

pytestmark = pytest.mark.timeout(120)

NASTY = "</script></style>-->\"'<b onmouseover=alert(1)>&lt;\x1b[31m\r\0\ud800[red]{{"

words = st.one_of(st.text(alphabet="ab<&>é\n", max_size=4), st.just(NASTY))
leaves = st.one_of(
    st.tuples(st.just("text"), words),
    st.tuples(st.sampled_from(["gen", "several", "select", "thought"]), st.sampled_from("xyz")),
    st.tuples(st.just("user"), words),
    st.tuples(st.just("assistant"), st.sampled_from("xyz")),
)
scripts = st.recursive(
    st.lists(leaves, max_size=5),
    lambda inner: st.lists(
        st.one_of(
            leaves,
            st.tuples(st.sampled_from(["fork", "append"]), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just("copy"), inner),
        ),
        max_size=4,
    ),
    max_leaves=10,
)
fast = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def answer(call):
    """A function of the prompt alone."""
    length = len(call.text)
    if call.choices is not None:
        return call.choices[length % len(call.choices)]
    n = call.request.params.n
    said = f"<think>{length}</think>" + NASTY * (length % 2)
    return [f"{length}é{i}" for i in range(n)] if n > 1 else said


class Forcing(MockBackend):
    """A mock whose grammar forces every third token, and which tells so."""

    async def generate(self, request):
        async for chunk in super().generate(request):
            if chunk.token_chars is not None:
                chunk.forced_at = list(range(1, len(chunk.token_chars), 3))
                chunk.forced_tokens = len(chunk.forced_at)
            yield chunk


def play(s, script, branches):
    """Run a script, and keep all its branches."""
    for kind, value in script:
        if kind in ("fork", "append"):
            group = s.fork(len(value))
            for branch, inner in zip(group, value, strict=True):
                branches.append(branch)
                play(branch, inner, branches)
            group.join("gather_variable" if kind == "fork" else "concate_and_append")
        elif kind == "copy":
            with s.copy() as c:
                branches.append(c)
                play(c, value, branches)
        elif kind == "text":
            s += value
        elif kind == "gen":
            s += boughs.gen(value)
        elif kind == "several":
            s += boughs.gen(value, n=2) + "."
        elif kind == "select":
            s += boughs.select(value, choices=["a", "bc"])
        elif kind == "thought":
            s += boughs.separate_reasoning(boughs.gen(value))
        elif kind == "user":
            s += boughs.user(value)
        else:
            s += boughs.assistant("So " + boughs.gen(value))


program = boughs.function(play)


def written(state, writer):
    """All that one writer wrote in a state."""
    return "".join(span.text for span in state.spans if span.writer == writer)


class Reader(HTMLParser):
    """The text of a document, and whether its tags are closed."""

    VOID = ("meta",)

    def __init__(self, document):
        super().__init__()
        self.text, self.open, self.tags, self.attributes = [], [], set(), set()
        self.feed(document)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)


# ---- the text and its writers ----


@given(scripts)
@fast
def test_the_spans_joined_are_the_text_of_each_state(script):
    branches = []
    state = program.run(script, branches, backend=Forcing(answer))
    for one in (state, *branches):
        text = one.text()
        assert one.trace().text == text
        for span in one.trace().spans:
            assert span.text or span.writer == "model"
            assert not span.tokens or "".join(span.tokens) == span.text


@given(scripts)
@fast
def test_branches_stand_where_they_began_and_costs_add_up(script):
    branches = []
    backend = Forcing(answer)
    state = program.run(script, branches, backend=backend)
    trace = state.trace()
    shown = list(trace.walk())
    assert len(shown) == 1 + len(branches)
    assert {s.status for s in shown} == {"finished"}
    assert sum(len(s.requests) for s in shown) == len(backend.calls) == state.usage.requests
    assert trace.usage == state.usage
    assert Usage.total(r.usage for s in shown for r in s.requests) == state.usage
    prompts = sum(len(call.text) for call in backend.calls)
    assert state.usage.prompt_tokens == prompts
    for one in branches:  # what it costs is its own and its branches'
        assert one.usage == one.trace().usage
        assert one.usage.requests <= state.usage.requests


def test_each_writer_is_told():
    @boughs.function
    def guide(s):
        s += boughs.user("Where?")
        s += boughs.assistant(
            "In " + boughs.gen("place") + ", " + boughs.select("sure", ["y", "n"])
        )
        s += "."

    state = guide.run(backend=Forcing(["Rome!", "y"]))
    state.text()
    trace = state.trace()
    assert written(trace, "program") == "Where?In , ."
    assert written(trace, "template") == (
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n<|im_end|>\n"
    )
    assert [(s.text, s.writer, s.tokens) for s in trace.spans if s.request][:5] == [
        ("R", "model", ("R",)),
        ("o", "forced", ("o",)),
        ("me", "model", ("m", "e")),
        ("!", "forced", ("!",)),
        ("y", "choice", ()),
    ]
    gen, select = trace.requests[0], trace.requests[1]
    assert (gen.kind, gen.name, gen.text, gen.finish) == ("gen", "place", "Rome!", "stop")
    assert (gen.usage.completion_tokens, gen.usage.forced_tokens) == (5, 2)
    assert sum(select.probs.values()) == pytest.approx(1)
    assert [r.kind for r in trace.requests] == ["gen", "select", "prefill"]
    assert gen.begin <= select.begin


def test_marks_that_nobody_has_rendered_are_named_where_a_trace_is_shown():
    state = boughs.function(lambda s: s.user("hi")).run(backend=MockBackend())
    trace = state.trace()
    assert [(s.text, s.mark) for s in trace.spans if s.writer == "template"] == [
        ("", "user begins"),
        ("", "user ends"),
    ]
    assert "[user begins]hi[user ends]" in trace.plain()
    assert "[user begins]hi[user ends]" in "".join(Reader(trace.html()).text)
    assert not trace.requests


def test_a_trimmed_stop_has_no_token_and_a_backend_may_tell_no_tokens():
    class Trimming(MockBackend):
        async def generate(self, request):
            async for chunk in super().generate(request):
                if chunk.token_chars is not None:
                    chunk.token_chars = [2, 1, 4, 1, 0]
                    chunk.forced_at = [1, 2]
                yield chunk

    @boughs.function
    def say(s):
        s += boughs.gen("x")

    spans = say.run(backend=Trimming(["abcde"])).trace().spans
    assert [(s.text, s.writer, s.tokens) for s in spans] == [
        ("ab", "model", ("ab",)),
        ("cde", "forced", ("c", "de")),
    ]

    class Silent(MockBackend):
        async def generate(self, request):
            async for chunk in super().generate(request):
                chunk.token_chars = chunk.forced_at = None
                yield chunk

    (span,) = say.run(backend=Silent(["abc"])).trace().spans
    assert (span.text, span.writer, span.tokens) == ("abc", "model", ())


# ---- running, failed, async ----


def test_a_running_program_shows_what_there_is():
    goes_on = threading.Event()

    class Slow(MockBackend):
        async def generate(self, request):
            async for chunk in super().generate(request):
                yield chunk
                if chunk.finish is None:
                    told.set()
                while not goes_on.is_set():
                    await boughs_sleep(0.001)

    import asyncio

    boughs_sleep, told = asyncio.sleep, threading.Event()

    @boughs.function
    def say(s):
        s += "Say: " + boughs.gen("x") + "!"

    state = say.run(backend=Slow(["abcdefgh"]), stream=True)
    assert told.wait(10)
    trace = state.trace()
    assert (trace.status, trace.text) == ("running", "Say: abcd")
    assert trace.requests[0].usage.completion_tokens == 4
    assert state.usage.completion_tokens == 4
    goes_on.set()
    assert state.text() == state.trace().text == "Say: abcdefgh!"
    state.sync()
    assert state.trace().status == "finished"


def test_errors_stand_where_they_happened():
    @boughs.function
    def judge(s):
        s += "Judge: "
        branches = s.fork(3)
        branches += lambda i: f"no {i}: " + boughs.gen("x")
        branches.join()

    def say(call):
        if "no 1" in call.text:
            raise ValueError("broken")
        return "fine"

    state = judge.run(backend=MockBackend(say), stream=True)
    assert isinstance(state.error(), ProgramError)
    trace = state.trace()
    assert trace.status == "failed"
    inner = {s.label: s for s in trace.walk()}
    (fault,) = [p for p in inner["program judge, branch 1"].parts if isinstance(p, Fault)]
    assert "ValueError: broken" in fault.message
    assert "variable 'x'" in fault.message
    assert inner["program judge, branch 1"].requests[0].failed
    assert trace.parts[-1] == Fault("ended by an error of a branch")
    assert isinstance(trace.parts[-2], Branches)
    assert trace.plain().count("ValueError: broken") == 1
    assert "ValueError: broken" in "".join(Reader(trace.html()).text)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_of_the_body_is_the_states(is_async):
    seen = []

    def body(s):
        s += "a" + boughs.gen("x")
        s.fork(1)[0].user("b")
        seen.append(s)
        raise KeyError("mine")

    async def coroutine(s):
        body(s)

    with pytest.raises(KeyError):
        boughs.function(coroutine if is_async else body).run(backend=MockBackend())
    trace = seen[0].trace()
    assert trace.status == "failed"
    assert "KeyError: 'mine'" in trace.parts[-1].message
    for branch in trace.branches:
        assert branch.parts[-1] == Fault("ended with the state that it was forked from")


def test_what_a_request_had_made_when_it_failed_is_shown_and_counted():
    class Breaking(MockBackend):
        async def generate(self, request):
            async for chunk in super().generate(request):
                if chunk.finish is not None:
                    raise ValueError("broken")
                yield chunk

    state = boughs.function(lambda s: s.submit(boughs.gen("x"))).run(
        backend=Breaking(["abcdefgh"]), stream=True
    )
    assert state.error() is not None
    trace = state.trace()
    assert [p.text for p in trace.parts if isinstance(p, Span)] == ["abcd"]
    assert isinstance(trace.parts[-1], Fault)
    assert state.usage.completion_tokens == 4


def test_a_value_that_cannot_be_read_is_told_behind_its_text():
    @boughs.function
    def ask(s):
        s += "n: " + boughs.gen("n", type=int) + " and on"

    state = ask.run(backend=MockBackend([Cut("-")]))
    parts = state.trace().parts
    assert [type(p) for p in parts] == [Span, Span, Fault, Span]
    with pytest.raises(BoughsError):
        state["n"]


def test_an_async_program_sees_itself():
    @boughs.function
    async def ask(s):
        s += "a" + boughs.gen("x")
        await s.get("x")
        return s.trace()

    state = ask.run(backend=MockBackend(["yes"]))
    assert (state.ret_value.text, state.ret_value.status) == ("ayes", "running")


def test_a_branch_shows_what_it_began_with():
    @boughs.function
    def tree(s):
        s += "root "
        (branch,) = s.fork(1)
        branch += "leaf" + boughs.gen("x")
        s.ret = branch
        branch.sync()
        return branch

    branch = tree.run(backend=MockBackend([" end"])).ret_value
    trace = branch.trace()
    assert (trace.text, [s.text for s in trace.before]) == ("root leaf end", ["root "])
    assert trace.status == "finished"


# ---- what it is shown as ----


@given(scripts)
@settings(fast, max_examples=25)
def test_html_holds_the_text_and_nothing_of_it_as_markup(script):
    state = program.run(script, [], backend=Forcing(answer))
    text = state.text()
    trace = state.trace()
    reader = Reader(trace.html())
    assert reader.tags <= {
        *("html", "head", "meta", "title", "style", "body", "div", "span", "details", "summary"),
        *("table", "tr", "th", "td"),
    }
    assert reader.attributes <= {"lang", "charset", "name", "content", "class", "title", "open"}
    if not trace.branches:
        pictures = text.replace("\x1b", "␛").replace("\r", "␍").replace("\0", "␀")
        assert pictures.replace("\ud800", "\ufffd") in "".join(reader.text)
    assert Reader(trace._repr_html_()).text


@given(scripts)
@settings(fast, max_examples=25)
def test_what_is_printed_holds_no_control_characters(script):
    trace = program.run(script, [], backend=Forcing(answer)).trace()
    for width in (20, 80):
        out = io.StringIO()
        Console(file=out, width=width).print(trace)
        printed = out.getvalue()
        assert not {c for c in printed if (c < " " and c != "\n") or "\ud800" <= c < "\ue000"}
    colours = io.StringIO()
    Console(file=colours, width=80, force_terminal=True, color_system="truecolor").print(trace)
    assert "\x1b[31m" not in colours.getvalue()  # the program's own
    assert "«" not in colours.getvalue()


def test_saving(tmp_path):
    state = boughs.function(lambda s: s.submit(boughs.gen("x"))).run(backend=MockBackend([NASTY]))
    trace = state.trace()
    trace.save(tmp_path / "x.html")
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == trace.html()
    trace.save(str(tmp_path / "x.TXT"))
    assert "«</script>" in (tmp_path / "x.TXT").read_text(encoding="utf-8")
    with pytest.raises(InvalidRequest, match=r"\.html or \.txt"):
        trace.save(tmp_path / "x.pdf")


PRINTING = """
import boughs
from boughs.testing import MockBackend
state = boughs.function(lambda s: s.submit(boughs.gen("x"))).run(backend=MockBackend(["said"]))
print(state.trace())
"""


def printed(**options):
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    for name in ("NO_COLOR", "FORCE_COLOR"):
        env.pop(name, None)
    return subprocess.run(
        [sys.executable, "-c", PRINTING], env=env, check=True, timeout=60, **options
    )


def test_print_is_plain_where_it_is_piped():
    out = printed(capture_output=True).stdout.decode()
    assert "«said»" in out
    assert "\x1b" not in out


def test_print_is_coloured_on_a_terminal():
    ours, theirs = pty.openpty()
    try:
        printed(stdout=theirs)
        out = os.read(ours, 100_000).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "\x1b[32msaid" in out
    assert "«" not in out


def test_usage_adds_up():
    chunk = Chunk(rid="r", text="", output_ids=[])
    assert chunk.forward_steps == 0
    a = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=3, requests=1, seconds=0.5)
    b = Usage(forced_tokens=2, forward_steps=5, spec_hits=1)
    assert a + b == Usage(10, 4, 3, 1, 2, 5, spec_hits=1)
    assert (a + b).seconds == 0.5
    assert (a.computed_tokens, a.hit_rate, Usage().hit_rate) == (6, 0.4, 0.0)
    assert Usage.total([]) == Usage()
