"""`program.graph()`: a program's statements as nodes, drawn as text, Mermaid and SVG."""

import io
import re
from enum import Enum
from itertools import combinations
from xml.etree import ElementTree

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from rich.console import Console

import boughs
from boughs.lang.errors import InvalidRequest
from boughs.lang.graph_svg import layout

pytestmark = pytest.mark.timeout(120)

words = st.one_of(st.text(max_size=6), st.just("</text>\"]'<b>&amp;\x1b\r\0\ud800 #quot; `x\\y`"))
leaves = st.one_of(
    st.tuples(st.sampled_from(["text", "user", "content"]), words),
    st.tuples(st.sampled_from(["gen", "select", "set", "assistant"]), st.sampled_from("xyz")),
)
scripts = st.recursive(
    st.lists(leaves, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            leaves,
            st.tuples(
                st.sampled_from(["fork", "open", "late"]), st.lists(inner, min_size=1, max_size=3)
            ),
        ),
        max_size=4,
    ),
    max_leaves=12,
)
fast = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def play(s, script):
    """Run a script: forks that are joined at once, later, or not at all."""
    later = []
    for kind, value in script:
        if kind in ("fork", "open", "late"):
            group = s.fork(len(value))
            for branch, inner in zip(group, value, strict=True):
                play(branch, inner)
            if kind == "fork":
                group.join()
            elif kind == "late":
                later.append(group)
        elif kind == "text":
            s += value
        elif kind == "content":
            s += boughs.content(value)
        elif kind == "gen":
            s += boughs.gen(value, regex="[a-c]+", max_tokens=4)
        elif kind == "select":
            s += boughs.select(value, choices=["a", "<b>"])
        elif kind == "set":
            s[value] = "ab"
        elif kind == "user":
            s += boughs.user(value)
        else:
            s += boughs.assistant("So " + boughs.gen(value, type=int))
    for group in later:
        group.join()


program = boughs.function(play)


def count(script, *kinds):
    """How many statements of these kinds a script has, in its branches too."""
    own = sum(kind in kinds for kind, _ in script)
    inner = [s for k, v in script if k in ("fork", "open", "late") for s in v]
    return own + sum(count(s, *kinds) for s in inner)


@given(scripts)
@fast
def test_every_statement_is_in_the_graph_and_hangs_together(script):
    graph = program.graph(script)
    kinds = [node.kind for node in graph.nodes]
    assert [node.id for node in graph.nodes] == list(range(len(kinds)))
    assert kinds.count("gen") == count(script, "gen", "assistant")
    assert kinds.count("select") == count(script, "select")
    assert kinds.count("set") == count(script, "set")
    assert kinds.count("role") == count(script, "user", "assistant")
    assert kinds.count("fork") == count(script, "fork", "open", "late")
    assert kinds.count("join") == count(script, "fork", "late")
    assert len(set(graph.edges)) == len(graph.edges)
    assert all(edge.source < edge.target for edge in graph.edges)
    assert {edge.target for edge in graph.edges} == set(range(1, len(kinds)))
    assert not graph.notes


@given(scripts)
@fast
def test_no_two_boxes_of_a_drawing_touch(script):
    boxes = layout(program.graph(script))
    for a, b in combinations(boxes, 2):
        apart_x = abs(a.x - b.x) > (a.width + b.width) / 2
        apart_y = abs(a.y - b.y) > (a.height + b.height) / 2
        assert apart_x or apart_y
    for box in boxes:
        assert box.x - box.width / 2 > 0
        assert box.y - box.height / 2 > 0


@given(scripts)
@fast
def test_an_svg_is_xml_that_shows_every_node_inside_of_its_frame(script):
    graph = program.graph(script)
    root = ElementTree.fromstring(graph.svg())
    space = "{http://www.w3.org/2000/svg}"
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = root.findall(f"{space}rect")[1:]
    assert len(boxes) == len(graph.nodes)
    for box in boxes:
        x, y, w, h = (float(box.get(name)) for name in ("x", "y", "width", "height"))
        assert min(x, y) >= 0
        assert (x + w <= width, y + h <= height) == (True, True)
    arrows = [path for path in root.findall(f"{space}path") if path.get("marker-end")]
    assert len(arrows) == len(graph.edges)
    assert {el.tag.removeprefix(space) for el in root.iter()} <= {
        *("svg", "title", "rect", "defs", "marker", "path", "text"),
    }


@given(scripts)
@fast
def test_mermaid_and_text_hold_a_line_a_node(script):
    graph = program.graph(script)
    lines = graph.mermaid().splitlines()
    assert lines[0] == "flowchart TD"
    nodes = [
        line
        for line in lines
        if re.fullmatch(r'  n\d+[(\[{/]+"[^"<>`\\]*(<br/>[^"<>`\\]*)*"[)\]}/]+', line)
    ]
    edges = [line for line in lines if re.fullmatch(r"  n\d+ -->(\|branch \d+\|)? n\d+", line)]
    assert (len(nodes), len(edges)) == (len(graph.nodes), len(graph.edges))
    assert len(lines) == 1 + len(nodes) + len(edges)
    branches = sum(node.branch is not None for node in graph.nodes)
    shown = str(graph).split("\n")
    assert len(shown) == len(graph.nodes) + branches
    assert not {c for c in str(graph) if c < " " and c != "\n"}


def test_a_graph_as_text():
    @boughs.function
    def essay(s, topic):
        s += boughs.user("About " + topic + ".")
        s += boughs.assistant("Well, " + boughs.gen("essay", max_tokens=9, stop="\n"))
        for i, branch in enumerate(s.fork(2)):
            branch += f"judge {i}" + boughs.gen("points", 2, dtype=int)
        s += boughs.select("good", choices=["yes", "no"])

    assert str(essay.graph()) == (
        "program essay\n"
        "  user\n"
        "    'About {topic}.'\n"
        "  assistant\n"
        "    'Well, '\n"
        "    gen essay (max_new_tokens=9, stop=('\\n',))\n"
        "  fork into 2\n"
        "    branch 0\n"
        "      'judge 0'\n"
        "      gen points (max_new_tokens=2, dtype='int')\n"
        "    branch 1\n"
        "      'judge 1'\n"
        "      gen points (max_new_tokens=2, dtype='int')\n"
        "  select good ('yes', 'no')"
    )
    assert "About cats" in str(essay.graph("cats"))
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=True, color_system="truecolor").print(essay.graph())
    assert "\x1b[32m" in out.getvalue()


def test_saving(tmp_path):
    graph = program.graph([("gen", "x")])
    for name, made in (("g.svg", graph.svg()), ("g.mmd", graph.mermaid()), ("g.txt", str(graph))):
        graph.save(tmp_path / name)
        assert (tmp_path / name).read_text(encoding="utf-8") == made
    assert graph._repr_svg_() == graph.svg()
    with pytest.raises(InvalidRequest, match=r"\.svg, \.mmd or \.txt"):
        graph.save(tmp_path / "g.png")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


LOOKING = {
    "compares": (lambda s: s["x"] == "yes", True),
    "contains": (lambda s: "yes" in s["x"], True),
    "is empty": (lambda s: not s["x"], True),
    "after strip": (lambda s: s["x"].strip().lower() == "yes", True),
    "a slice": (lambda s: s["x"][:1] == "y", True),
    "a table": (lambda s: {"yes": 1}.get(s["x"]), True),
    "splits": (lambda s: s["x"].split(",", maxsplit=1), True),
    "a number": (lambda s: int(s["n"]) > 3, True),
    "a pattern": (lambda s: len(s["x"]), True),
    "a value": (lambda s: s["typed"], True),
    "an enum": (lambda s: s["colour"] is Colour.RED, True),
    "of many": (lambda s: s["many"][1] == "a", True),
    "of branches": (lambda s: "a" in s["b"], True),
    "a scope": (lambda s: "x" in s["scope"], True),
    "a scope of its own": (lambda s: "x" in s["mine"], False),
    "probabilities": (lambda s: s.choice_probs("pick")["a"] > 0.5, True),
    "adds": (lambda s: s.__iadd__("again: " + s["x"] + f"{s['x']}"), False),
    "adds alone": (lambda s: s.__iadd__(s["x"]), False),
    "a list": (lambda s: s.__iadd__(", ".join(s["many"])), False),
    "has": (lambda s: "x" in s, False),
    "own": (lambda s: s["own"] == "mine", False),
    "whole text": (lambda s: s.messages(), False),
}


@pytest.mark.parametrize("how", LOOKING)
def test_a_program_that_looks_at_what_a_model_writes_is_told(how):
    look, looks = LOOKING[how]

    @boughs.function
    def looking(s):
        s += boughs.gen("x") + boughs.gen("n", dtype=int) + boughs.gen("typed", type=bool)
        s += boughs.gen("many", n=2) + boughs.select("pick", choices=["a", "b"])
        s += boughs.select("colour", choices=Colour)
        s["own"] = "mine"
        with s.var_scope("scope"):
            s += "The " + boughs.gen("inner")
        with s.var_scope("mine"):
            s += "own"
        branches = s.fork(2)
        branches += boughs.gen("b")
        branches.join()
        look(s)

    graph = looking.graph()
    assert bool(graph.notes) == looks
    assert any(node.looked_at for node in graph.nodes) == looks
    if looks:
        (note,) = graph.notes
        assert "this is the one path that placeholders take" in note
        assert note in str(graph)
        assert "looked at" in graph.mermaid()
        assert len(looking.trace().looked_at) == 1


def test_an_async_programs_graph():
    @boughs.function
    async def waits(s):
        s += boughs.gen("x")
        if await s.get("x") == "y":
            s += "never"
        s += "always"

    graph = waits.graph()
    assert "never" not in str(graph)
    assert "(x)" in graph.notes[0]


def test_what_a_body_raises_on_placeholders_says_that_they_are():
    @boughs.function
    def program(s, items):
        for key, value in items.items():
            s += f"{key}: {value}"
        s += boughs.gen("x")
        s += str(int(s["x"]))

    with pytest.raises(AttributeError) as missing:
        program.graph()
    with pytest.raises(ValueError, match="base 10") as converted:
        program.trace(items={})
    for raised in (missing, converted):
        assert "without a model" in raised.value.__notes__[0]
