"""A state's contents against a naive model: a list of (kind, text)."""

import pytest
from hypothesis import given, strategies as st

from boughs.lang import segments as seg
from boughs.lang.contents import Contents
from boughs.lang.errors import InvalidRequest
from boughs.lang.results import Answer

words = st.sampled_from(["", "a", "bc", "<|im_end|>", "d e\n"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("text"), words),
        st.tuples(st.just("content"), words),
        st.tuples(st.just("answer"), words),
        st.tuples(st.just("begin"), st.sampled_from(["user", "assistant", "tool"])),
        st.tuples(st.just("end"), st.just("")),
        st.tuples(st.just("render"), st.just("")),
        st.tuples(st.just("branch"), st.just("")),
    ),
    max_size=30,
)


def mark(role):
    return f"<{role.role}>" if role.at == "begin" else f"</{role.role}>"


def apply(contents, kind, value):
    if kind == "text":
        contents.add_text(value)
    elif kind == "content":
        contents.add_content(value)
    elif kind == "answer":
        answer = Answer.empty("r")
        answer.text = value
        answer.segments = [seg.Ids(list(map(ord, value)))] if value else []
        contents.add_answer(answer)
    elif kind == "begin" and contents.role is None:
        contents.begin_role(value)
    elif kind == "end" and contents.role is not None:
        contents.end_role(contents.role)
    elif kind == "render":
        marks = [s for s in contents.segments if isinstance(s, seg.Role)]
        contents.render([mark(role) for role in marks])


def naive(contents):
    """The text that the segments stand for."""
    return "".join(
        mark(s)
        if isinstance(s, seg.Role)
        else "".join(map(chr, s.ids))
        if isinstance(s, seg.Ids)
        else s.text
        if isinstance(s, seg.Text)
        else s.content
        for s in contents.segments
    )


@given(steps)
def test_text_and_segments_agree(script):
    contents = Contents()
    for kind, value in script:
        if kind == "branch":
            contents = contents.copy()
        else:
            apply(contents, kind, value)
        assert "" not in [contents.shown[at] for at in contents.marks[: contents.known]]
        assert contents.settled <= len(contents.shown)
        assert len(contents.authors) == len(contents.shown)
    apply(contents, "render", "")
    assert contents.text() == naive(contents)
    assert contents.settled == len(contents.shown)


@given(steps, st.lists(steps, max_size=3))
def test_joined_branches_are_their_texts_one_after_the_other(script, branch_scripts):
    parent = Contents()
    for kind, value in script:
        apply(parent, kind, value)
    branches = []
    for branch_script in branch_scripts:
        branch = parent.copy()
        for kind, value in branch_script:
            if kind not in ("begin", "end"):  # roles must pair over all of them
                apply(branch, kind, value)
        branches.append(branch)
    apply(parent, "render", "")
    before = parent.text()
    for branch in branches:
        parent.append_from(branch)
        apply(branch, "render", "")
    apply(parent, "render", "")
    assert parent.text() == before + "".join(b.text()[len(before) :] for b in branches)
    assert parent.text() == naive(parent)


@given(steps)
def test_a_branch_and_its_parent_share_nothing(script):
    parent = Contents()
    for kind, value in script:
        apply(parent, kind, value)
    parent.set("x", 1, {"id": "r"})
    before = repr(parent)
    branch = parent.copy()
    for kind, value in [*script, ("text", "more"), ("render", "")]:
        apply(branch, kind, value)
    branch.set("x", 2)
    branch.set("y", 3)
    assert repr(parent) == before
    assert branch.written == {"x", "y"}
    assert branch.variables == {"x": 2, "y": 3}
    assert branch.meta == {}


def test_what_a_string_becomes_depends_on_its_role():
    contents = Contents()
    contents.add_text("a")
    for role in ("user", "system", "tool", "assistant"):
        contents.begin_role(role)
        contents.add_text("b")
        contents.end_role(role)
    kinds = [type(s) for s in contents.segments if not isinstance(s, seg.Role)]
    assert kinds == [seg.Text, seg.Content, seg.Content, seg.Content, seg.Text]
    assert contents.messages[0] == {"role": "user", "content": "b"}


def test_roles_must_pair():
    contents = Contents()
    with pytest.raises(InvalidRequest, match="user message ends, but none is open"):
        contents.end_role("user")
    contents.begin_role("user")
    with pytest.raises(InvalidRequest, match="begins inside of the user message"):
        contents.begin_role("system")
    with pytest.raises(InvalidRequest, match="open one is user"):
        contents.end_role("system")


def test_a_begin_that_nothing_follows_is_not_final():
    contents = Contents()
    contents.begin_role("user")
    contents.end_role("user")
    contents.begin_role("assistant")
    contents.render(["<u>", "</u>", "<a>"], final=False)
    assert contents.text() == "<u></u><a>"
    assert contents.known == 2
    contents.render(["<u>", "</u>", "<a think>"])
    assert contents.known == 3
    assert contents.text() == "<u></u><a think>"
