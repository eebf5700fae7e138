"""The algebra of grammars against a matcher that tries everything."""

import itertools

import pydantic
import pytest
from hypothesis import given, settings, strategies as st
from llguidance import LLMatcher, LLTokenizer

import boughs
from boughs.grammar import alt, gen, json, lit, opt, plus, recursive, regex, repeat, seq, star
from boughs.lang.errors import GrammarError, Incomplete, InvalidRequest, InvalidValue
from boughs.lang.named_parts import Parts
from boughs.testing import Cut, MockBackend

BYTES = LLTokenizer("byte")
TEXTS = ["".join(t) for size in range(6) for t in itertools.product("ab", repeat=size)]


def accepted(grammar, text):
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(grammar.lark()), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = list(text.encode())
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


# A term is a tuple: ("lit", "ab"), ("regex", "[ab]"), ("self",), or a kind with terms in it.

LEAVES = st.sampled_from(
    [("lit", "a"), ("lit", "b"), ("lit", "ab"), ("lit", ""), ("regex", "[ab]")]
)


def terms(leaves):
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(st.just("seq"), inner, inner),
            st.tuples(st.just("alt"), inner, inner),
            st.tuples(st.sampled_from(["opt", "star", "plus", "twice"]), inner),
        ),
        max_leaves=6,
    )


MAKERS = {
    "lit": lit,
    "regex": regex,
    "seq": seq,
    "alt": alt,
    "opt": opt,
    "star": star,
    "plus": plus,
    "twice": lambda part: repeat(part, 1, 2),
}


def build(term, itself=None):
    kind, *parts = term
    if kind == "self":
        return itself
    if kind in ("lit", "regex"):
        return MAKERS[kind](*parts)
    return MAKERS[kind](*(build(part, itself) for part in parts))


def language(term, itself=frozenset(), longest=5):
    """All texts of a term of at most so many letters; a part may have a longer one of its own."""

    def join(left, right):
        return {a + b for a in left for b in right if len(a + b) <= longest}

    kind, *parts = term
    if kind == "lit":
        return {parts[0]}
    if kind == "regex":
        return {"a", "b"}
    if kind == "self":
        return set(itself)
    first, *rest = (language(part, itself, longest) for part in parts)
    if kind == "seq":
        return join(first, rest[0])
    if kind == "alt":
        return first | rest[0]
    if kind == "opt":
        return first | {""}
    if kind == "twice":
        return first | join(first, first)
    found = {""} if kind == "star" else set(first)
    while (more := found | join(found, first)) != found:
        found = more
    return found


def has_text(term):
    """Whether a recursive term has any text, however long."""
    kind, *parts = term
    if kind in ("lit", "regex", "self"):
        return kind != "self"
    if kind in ("opt", "star"):
        return True
    return (any if kind == "alt" else all)(map(has_text, parts))


@given(terms(LEAVES), st.lists(st.sampled_from(TEXTS), min_size=5, max_size=12))
def test_a_regular_grammar_accepts_its_language(term, texts):
    grammar, known = build(term), language(term)
    assert grammar.regular
    for text in [*texts, *sorted(known)[:4]]:
        assert accepted(grammar, text) == (text in known), text


@settings(deadline=None)
@given(
    terms(st.one_of(LEAVES, st.just(("self",)))),
    st.lists(st.sampled_from(TEXTS), min_size=5, max_size=12),
)
def test_a_recursive_grammar_accepts_its_language(term, texts):
    grammar = recursive(lambda itself: build(term, itself))
    known = set()
    while (more := language(term, known)) != known:
        known = more
    if not has_text(term):
        assert not known
        with pytest.raises(GrammarError, match="way out"):
            grammar.lark()
        return
    for text in [*texts, *sorted(known)[:4]]:
        assert accepted(grammar, text) == (text in known), text


def test_beside_recursion_a_longer_regex_goes_first():
    greedy = recursive(lambda itself: seq(regex("a*"), opt(seq("(", itself, ")")), opt("a")))
    assert accepted(greedy, "aa(a)a")
    assert not accepted(recursive(lambda _: seq(regex("a*"), "a")), "aa")  # and so this is lost
    exact = recursive(lambda itself: seq(star("a"), "a", opt(seq("(", itself, ")"))))
    assert accepted(exact, "aaa(a)")
    number = plus(regex("[0-9]"))
    term = recursive(lambda t: alt(number, seq("(", t, alt("+", "-"), t, ")")))
    assert accepted(term, "((1+22)-333)")
    assert not accepted(term, "(1+22-333)")
    assert not accepted(term, "()")


def test_rules_within_rules():
    pairs = recursive(
        lambda outer: alt("x", seq("<", recursive(lambda inner: alt(outer, seq(inner, ","))), ">"))
    )
    assert accepted(pairs, "<<x,,>,>")
    assert not accepted(pairs, "<x,")


def test_json_inside_of_a_grammar():
    class Order(pydantic.BaseModel):
        pieces: int

    call = seq("order(", json(Order), ");")
    assert accepted(call, 'order({"pieces": 3});')
    assert not accepted(call, 'order({"pieces": "3"});')
    assert accepted(alt(json({"const": "a"}), json({"type": "null"})), "null")


@pytest.mark.parametrize(
    "text", ["/", '"', "\\", "\n", "é", "日本", "\x00", "\t a/b\\/c", "%json {}"]
)
def test_any_text_and_its_pattern(text):
    for grammar in (lit(text), recursive(lambda _: seq("<", text, ">"))):
        wanted = text if grammar.regular else f"<{text}>"
        assert accepted(grammar, wanted)
        assert not accepted(grammar, wanted + "x")
    pattern = "".join(f"\\{c}" if c in '\\"/' else c for c in text if c not in "{}")
    assert accepted(regex(pattern), text.translate(str.maketrans("", "", "{}")))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: seq("a", 5), "seq: expected text or a grammar, got 5"),
        (alt, "alt: there must be"),
        (lambda: lit(None), "lit: expected a text"),
        (lambda: regex(""), "regex: expected a pattern"),
        (lambda: repeat("a", 3, 2), "repeat: no text has 3 to 2"),
        (lambda: json(""), "json: expected a schema"),
        (lambda: recursive(lambda r: r).lark(), "way out"),
        (lambda: recursive(lambda r: seq("a", plus(r))).lark(), "way out"),
        (lambda: boughs.gen("x", grammar="a"), "gen: variable 'x': grammar: expected"),
        (lambda: boughs.gen("x", grammar=regex("(")), "gen: variable 'x': grammar: "),
        (lambda: boughs.gen("x", grammar=lit("a"), ebnf="start: /a/"), "ebnf"),
        (lambda: boughs.gen("x", grammar=lit("a"), regex="a"), "regex"),
        (lambda: boughs.gen("x", grammar=lit("a"), type=int), "grammar"),
        (lambda: boughs.gen("x", grammar=lit("a"), dtype=int), "grammar"),
    ],
)
def test_what_is_wrong_is_said_at_once(make, said):
    with pytest.raises(InvalidRequest) as caught:
        make()
    assert said in str(caught.value)


def test_a_reference_outside_of_its_rule():
    kept = []
    recursive(lambda r: kept.append(r) or "a")
    with pytest.raises(GrammarError, match="outside"):
        seq("b", kept[0]).lark()


def test_a_gen_with_a_grammar():
    backend = MockBackend(["aab"])

    @boughs.function
    def program(s):
        s += boughs.gen("x", grammar=seq(star("a"), "b"))

    assert program.run(backend=backend)["x"] == "aab"
    assert backend.calls[0].request.params.ebnf == seq(star("a"), "b").lark()


# ---- named parts ----


REGULAR = terms(LEAVES)


@given(REGULAR, REGULAR)
@settings(max_examples=40, deadline=None)
def test_named_parts_are_texts_of_their_grammars_and_make_up_the_whole(first, second):
    grammar = seq(gen("one", build(first)), "|", gen("two", build(second)))
    parts = Parts.of(grammar)
    for one, two in itertools.product(TEXTS[:12], TEXTS[:12]):
        whole = f"{one}|{two}"
        told = parts.read(whole, cut=False)
        if accepted(build(first), one) and accepted(build(second), two):
            assert accepted(grammar, whole)
            assert told == {"one": one, "two": two}
        else:
            assert isinstance(told["one"], InvalidValue)


def test_parts_become_variables():
    grammar = seq(
        gen("name", regex("[a-z]+")), opt(seq(" is ", gen("age", regex("[0-9]+")))),
        star(seq(", ", gen("tags", alt("red", "big")))), ".",
    )  # fmt: skip

    @boughs.function
    def program(s, n):
        s += boughs.gen("x", grammar=grammar, n=n)
        s += "!" + boughs.gen(grammar=gen("y", "ok"))
        return s["name"], s["age"], s["tags"], s["y"]

    for text, told in (
        ("ada is 36, big, red.", ("ada", "36", ["big", "red"])),
        ("ada.", ("ada", None, [])),
    ):
        backend = MockBackend(lambda c, text=text: "ok" if c.text.endswith("!") else text)
        state = program.run(1, backend=backend)
        assert state.ret_value == (*told, "ok")
        assert (state["x"], state["name"]) == (text, "ada")
        assert state.get_meta_info("name") == {}
    backend = MockBackend(lambda c: "ok" if c.text.endswith("!") else ["a.", "b is 1."])
    assert program.run(2, backend=backend).ret_value == (["a", "b"], [None, "1"], [[], []], "ok")
    assert {"name", "age", "tags", "x", "y"} == set(program.trace(1).variables)


def test_parts_of_a_cut_text_raise_where_they_are_read():
    @boughs.function
    def program(s):
        s += boughs.gen("x", grammar=seq("<", gen("inner", "ab"), ">"))

    state = program.run(backend=MockBackend(lambda _: Cut("<a")))
    assert state["x"] == "<a"
    with pytest.raises(Incomplete, match=r"variable 'x'.*max_tokens"):
        state["inner"]


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (lambda: seq(gen("a", "x"), json({"type": "object"})), "recursion or JSON"),
        (lambda: recursive(lambda r: alt(gen("a", "x"), seq("(", r, ")"))), "recursion or JSON"),
        (lambda: seq(gen("a", "x"), gen("a", "y")), "two parts are called 'a'"),
        (lambda: seq(gen("x", "x")), "same name"),
        (lambda: gen("", "x"), "variable's name"),
        (lambda: gen("a", 5), "gen: expected text or a grammar"),
    ],
)
def test_parts_that_cannot_be_told_are_refused_where_they_are_written(grammar, said):
    with pytest.raises(InvalidRequest, match=said):
        boughs.gen("x", grammar=grammar())
