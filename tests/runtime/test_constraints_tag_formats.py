"""Formats of structural tags, against a naive reading of them; tokens, too."""

import json
import random

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.constraints import JsonForm
from boughs.runtime.constraints.llguidance_backend import load
from boughs.runtime.constraints.matcher import Matcher
from boughs.runtime.constraints.trial import try_source

VOCAB, EOS, START = 384, 2, 1
ANY, TOKENS = {"type": "any_text"}, {"type": "any_tokens"}


@pytest.fixture(scope="module")
def backend(tiny_model):
    return load(tiny_model, VOCAB, (EOS,))


def const(value):
    return {"type": "const_string", "value": value}


def token(token):
    return {"type": "token", "token": token}


def tag(begin, content, end):
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements):
    return {"type": "sequence", "elements": [*elements]}


def grammar_of(backend, fmt):
    verdict = try_source(backend, VOCAB, "structural_tag", json.dumps({"format": fmt}))
    assert verdict.error is None
    return verdict.grammar


def takes(backend, grammar, ids):
    raw = backend.build(grammar)
    return raw.try_consume_tokens(ids) == len(ids) and raw.is_accepting()


def tag_grammar(backend, source, *form):
    return backend.translate("structural_tag", source, *form).grammar


def accepts(backend, grammar, text):
    return takes(backend, grammar, backend.tokenizer.tokenize_str(text, parse_special=True))


# ---- a naive reading ----


def spans(fmt, text, at, ends=()):
    """Where a format that begins at `at` may end, with the end that follows it, if there is one."""
    if fmt["type"] == "any_text":
        yield from free_spans(fmt, text, at, ends)
        return
    for stop in bounded_spans(fmt, text, at):
        for end in ends or ("",):
            if text.startswith(end, stop):
                yield stop + len(end)


def free_spans(fmt, text, at, ends):
    def allowed(stop):
        part = text[at:stop]
        short = len(part) <= fmt.get("max_chars", len(part))
        return short and not any(string in part for string in fmt.get("excludes", ()))

    if not ends:
        yield from [len(text)] if allowed(len(text)) else []
        return
    found = [(text.find(end, at) + len(end), end) for end in ends if text.find(end, at) >= 0]
    first = min(found, default=(0, ""))[0]
    yield from {first} if any(s == first and allowed(s - len(end)) for s, end in found) else ()


def bounded_spans(fmt, text, at):
    match fmt["type"]:
        case "const_string":
            if text.startswith(fmt["value"], at):
                yield at + len(fmt["value"])
        case "tag":
            ends = [fmt["end"]] if isinstance(fmt["end"], str) else fmt["end"]
            if text.startswith(fmt["begin"], at):
                yield from spans(fmt["content"], text, at + len(fmt["begin"]), ends)
        case "or":
            for element in fmt["elements"]:
                yield from spans(element, text, at)
        case "sequence":
            reached = {at}
            for element in fmt["elements"]:
                reached = {stop for begin in reached for stop in spans(element, text, begin)}
            yield from reached
        case "repeat":
            reached, seen = {at}, set()
            most = len(text) + 1 if fmt["max"] < 0 else fmt["max"]
            for count in range(most + 1):
                if count >= fmt["min"]:
                    seen |= reached
                reached = {stop for begin in reached for stop in spans(fmt["content"], text, begin)}
            yield from seen


letters = st.text("ab", min_size=1, max_size=3)
ends = st.text(">]", min_size=1, max_size=2)
anything = st.builds(
    lambda excludes, most: (
        {**ANY, "excludes": excludes} | ({} if most > 4 else {"max_chars": most})
    ),
    st.lists(st.text("ab>]", min_size=1, max_size=2), max_size=2),
    st.integers(0, 9),
)


def deeper(inner):
    bounded = inner | letters.map(const)
    return st.one_of(
        st.builds(tag, st.just("<"), anything, ends | st.lists(ends, min_size=1, max_size=2)),
        st.builds(tag, st.just("["), bounded, ends),
        st.builds(
            lambda content, least, more: {
                "type": "repeat",
                "min": least,
                "max": -1 if more > 2 else least + more,
                "content": content,
            },
            bounded,
            st.integers(0, 2),
            st.integers(0, 3),
        ),
        st.lists(bounded, min_size=1, max_size=3).map(lambda elements: sequence(*elements)),
        st.builds(lambda a, b: {"type": "or", "elements": [a, b]}, bounded, letters.map(const)),
    )


formats = st.recursive(letters.map(const), deeper, max_leaves=5)


@given(formats, st.booleans(), st.lists(st.text("ab<>[]", max_size=8), max_size=6), st.data())
@settings(max_examples=150, deadline=None)
def test_formats_are_read_as_they_are_nested(backend, fmt, last_is_free, texts, data):
    if last_is_free:
        fmt = sequence(fmt, const("|"), data.draw(anything))
    grammar = tag_grammar(backend, json.dumps({"format": fmt}))
    made = sampled(backend, grammar, random.Random(data.draw(st.integers(0, 99))))
    for text in [*texts, *made]:
        fits = len(text) in spans(fmt, text, 0)
        assert accepts(backend, grammar, text) == fits, text


def sampled(backend, grammar, rng, most=12):
    """Texts of single characters that a grammar allows at first, and each without its last."""
    plain = {
        text: id_ for id_ in range(VOCAB) if len(text := backend.tokenizer.decode_str([id_])) == 1
    }
    ours = {plain[character]: character for character in "ab<>[]|"}
    matcher, text = Matcher(backend.build(grammar), backend, "structural_tag"), ""
    while not matcher.complete and len(text) < most:
        allowed = [id_ for id_ in np.flatnonzero(matcher.mask(VOCAB)) if id_ in ours]
        if not allowed:
            break
        matcher.accept(chosen := int(rng.choice(allowed)))
        text += ours[chosen]
        yield text


# ---- free text beside what is not ----


@pytest.mark.parametrize("way", ["optional", "star", "repeat", "or"])
def test_a_string_goes_before_the_free_text_that_may_stand_in_its_place(backend, way):
    thought = tag("<t>", ANY, "</t>")
    free = {**ANY, "excludes": ["<t>", "</t>"]}
    first = {"type": way, "content": thought}
    if way == "repeat":
        first |= {"min": 0, "max": 1}
    fmt = sequence(first, free)
    if way == "or":
        fmt = {"type": "or", "elements": [sequence(thought, free), free]}
    grammar = grammar_of(backend, fmt)
    for text in ("", "x", "<", "<t", "<t></t>", "<t>a</t>b", "<t>a<</t><t"):
        assert accepts(backend, grammar, text), text
    for text in ("<t>", "x<t>a</t>", "<t>a</t></t>", "</t>", "<t>a</t>b<t>c</t>"):
        assert not accepts(backend, grammar, text), text
    assert accepts(backend, grammar, "<t></t><t></t>") == (way == "star")


@pytest.mark.parametrize("loop", [True, False])
def test_dispatch_follows_its_patterns(backend, loop):
    rules = [["[", const("1]")], ["<f>", {"type": "regex", "pattern": "[0-9]+"}]]
    fmt = {"type": "dispatch", "rules": rules, "loop": loop, "excludes": ["END"]}
    ended = grammar_of(backend, sequence(fmt, const("END")))
    grammar = grammar_of(backend, fmt)
    for text in ("", "a", "[1]", "a<f>12", "<f"):
        assert accepts(backend, grammar, text), text
        assert accepts(backend, ended, f"{text}END"), text
        assert not accepts(backend, ended, text), text
    for text in ("[2]", "[", "<f>x", "xEND", "END[1]"):
        assert not accepts(backend, grammar, text), text
    for text in ("[1]a", "[1][1]<f>12[1]"):
        assert accepts(backend, grammar, text) == loop, text


def test_the_first_island_stands_at_once_where_one_has_to(backend):
    fmt = {"type": "triggered_tags", "triggers": ["["], "tags": [tag("[", const("1"), "]")]}
    grammar = grammar_of(backend, {**fmt, "at_least_one": True})
    assert accepts(backend, grammar, "[1]a[1]b")
    assert not accepts(backend, grammar, "a[1]")
    assert not accepts(backend, grammar, "")


@pytest.mark.parametrize("end", ["\n<|im_start|>", "<|im_start|>", "\n<|im_start|>x"])
def test_an_end_may_have_special_tokens_behind_text(backend, end):
    grammar = grammar_of(backend, sequence(tag("<", ANY, end), const(".")))
    for text in ("", "a", "\n", "a\nb", "\n\n"):
        assert accepts(backend, grammar, f"<{text}{end}.")
    assert not accepts(backend, grammar, f"<a{end}")
    if end[0] == "\n":
        assert not accepts(backend, grammar, f"<a{end[1:]}.")


# ---- tokens ----


@pytest.mark.parametrize("most", [None, 0, 2])
def test_tokens_are_held_one_by_one(backend, most):
    fmt = {**TOKENS, "exclude_tokens": [7, "<|endoftext|>"]}
    fmt |= {} if most is None else {"max_tokens": most}
    free = grammar_of(backend, fmt)
    tagged = grammar_of(backend, tag(token("<|im_start|>"), fmt, token(9)))
    inner = sequence(const("x"), {"type": "exclude_token", "exclude_tokens": [7]}, token(8))
    one = grammar_of(backend, inner)
    x = backend.tokenizer.tokenize_str("x")
    rng = random.Random(0)
    for _ in range(200):
        ids = [rng.choice([0, START, 3, 7, 8, 9, 200]) for _ in range(rng.randrange(4))]
        fits = not {0, 7} & {*ids} and (most is None or len(ids) <= most)
        assert takes(backend, free, ids) == fits
        assert takes(backend, tagged, [START, *ids, 9]) == (fits and 9 not in ids)
        assert takes(backend, one, [*x, *ids]) == (len(ids) == 2 and ids[0] != 7 and ids[1] == 8)


def test_no_token_that_ends_the_output_is_any_token(backend):
    matcher = Matcher(backend.build(grammar_of(backend, sequence(TOKENS, token(9)))), backend, "x")
    allowed = matcher.mask(VOCAB)
    assert not allowed[EOS]
    assert allowed.sum() == VOCAB - 1


@pytest.mark.parametrize("kind", ["token_triggered_tags", "token_dispatch"])
@pytest.mark.parametrize("once", [True, False])
def test_tokens_lead_into_islands(backend, kind, once):
    if kind == "token_dispatch":
        fmt = {"rules": [["<|im_start|>", const("1")], [9, const("2")]], "loop": not once}
    else:
        tags = [tag(token(START), const("1"), ""), tag(token(9), const("2"), "")]
        fmt = {"trigger_tokens": ["<|im_start|>", 9], "tags": tags, "stop_after_first": once}
    grammar = grammar_of(backend, {"type": kind, **fmt, "exclude_tokens": [7]})
    (one,), (two,) = backend.tokenizer.tokenize_str("1"), backend.tokenizer.tokenize_str("2")
    island = {START: one, 9: two}

    def reads(ids):
        for at, id_ in enumerate(ids):
            if id_ == 7:
                return False
            if id_ in island:
                rest = ids[at + 2 :]
                return ids[at + 1 : at + 2] == [island[id_]] and (not rest if once else reads(rest))
        return True

    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.choice([START, 9, one, two, 7, 50]) for _ in range(rng.randrange(6))]
        assert takes(backend, grammar, ids) == reads(ids), ids


def test_grammars_may_be_lark(backend):
    lark = 'start: "a" x\nx: /[0-9]/ | %json {"type": "boolean"}'
    fmt = {"type": "grammar", "syntax": "lark", "grammar": lark}
    grammar = grammar_of(backend, tag("<", fmt, ">"))
    assert accepts(backend, grammar, "<atrue>")
    assert accepts(backend, grammar, "<a5>")
    assert not accepts(backend, grammar, "<a>")


def test_white_space_in_json_may_be_bounded_in_its_place(backend):
    fmt = {"type": "json_schema", "json_schema": {"type": "array"}}
    source = json.dumps({"format": fmt})
    assert accepts(backend, tag_grammar(backend, source), "[1, 2]")
    dense = tag_grammar(backend, json.dumps({"format": {**fmt, "max_whitespace_cnt": 0}}))
    assert accepts(backend, dense, "[1,2]")
    assert not accepts(backend, dense, "[1, 2]")
    some = tag_grammar(
        backend, json.dumps({"format": {**fmt, "max_whitespace_cnt": 2}}), JsonForm()
    )
    assert accepts(backend, some, "[ 1,  2\n]")
    assert not accepts(backend, some, "[1,   2]")
