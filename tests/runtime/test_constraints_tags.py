"""Structural tags: free text, triggers and islands, against a naive reading of them."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from boughs.runtime.constraints.llguidance_backend import load
from boughs.runtime.constraints.matcher import Matcher
from boughs.runtime.constraints.trial import try_source

VOCAB, EOS = 384, 2
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
POINT["additionalProperties"] = False
CALLS = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=f>", "schema": POINT, "end": "</function>"},
        {"begin": "<function=ff>", "end": "</function>"},
        {"begin": "<fun>", "schema": POINT, "end": ""},
    ],
    "triggers": ["<function=", "<fun"],
}


@pytest.fixture(scope="module")
def backend(tiny_model):
    return load(tiny_model, VOCAB, (EOS,))


def tag_grammar(backend, source, *form):
    return backend.translate("structural_tag", source, *form).grammar


def accepts(backend, grammar, text):
    """Whether an output may be `text`; its special tokens are tokens."""
    raw = backend.build(grammar)
    ids = backend.tokenizer.tokenize_str(text, parse_special=True)
    return raw.try_consume_tokens(ids) == len(ids) and raw.is_accepting()


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("", True),
        ("free", True),
        ("<fu", True),
        ("<fun", False),
        ('<function=f>{"x": 1}</function>', True),
        ('a <function=ff>[1, null]</function> b <function=f>{"x": 1}</function> c <fu', True),
        ('<function=f>{"x": 1}</function><function=f>{"x": 2}</function>', True),
        ('<fun>{"x": 1} and more', True),
        ('<function=f>{"x": "1"}</function>', False),
        ('<function=f>{"x":1}</function>', False),
        ("<function=g>{}</function>", False),
        ('<function=f>{"x": 1}', False),
    ],
)
def test_islands_are_held_and_text_is_free(backend, text, fits):
    assert accepts(backend, tag_grammar(backend, json.dumps(CALLS)), text) == fits
    whole = {"type": "triggered_tags", "triggers": CALLS["triggers"], "tags": []}
    for one in CALLS["structures"]:
        content = {"type": "json_schema", "json_schema": one.get("schema")}
        whole["tags"].append({"type": "tag", **one, "content": content})
        whole["tags"][-1].pop("schema", None)
    assert accepts(backend, tag_grammar(backend, json.dumps({"format": whole})), text) == fits


@pytest.mark.parametrize("follows", [False, True])
@pytest.mark.parametrize("wrap", ["format", "sequence", "triggered"])
def test_the_end_of_the_output_ends_a_tag_where_nothing_has_to_follow(backend, wrap, follows):
    eos = backend.tokenizer.decode_str([EOS])
    fmt = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema"}, "end": eos}
    if wrap == "triggered":
        fmt = {"type": "triggered_tags", "triggers": ["<f"], "tags": [fmt], "at_least_one": True}
    if wrap == "sequence" or follows:
        end = {"type": "const_string", "value": "."}
        rest = end if follows else {"type": "optional", "content": end}
        fmt = {"type": "sequence", "elements": [fmt, rest]}
    verdict = try_source(backend, VOCAB, "structural_tag", json.dumps({"format": fmt}))
    if follows:
        assert "ends the output (EOS), and more would have to follow" in verdict.error
        return
    matcher = Matcher(backend.build(verdict.grammar), backend, "structural_tag")
    for token in [*backend.tokenizer.tokenize_str("<f>[1]"), EOS]:
        assert not matcher.complete
        assert matcher.mask(VOCAB)[token]
        matcher.accept(token)
    assert matcher.complete


# ---- against a naive reading ----

strings = st.text("<ab", min_size=1, max_size=3)


def first_end(text, triggers, begin=0):
    """Where the first trigger that begins at `begin` or later ends."""
    ends = [text.find(trigger, begin) + len(trigger) for trigger in triggers]
    found = [
        end for trigger, end in zip(triggers, ends, strict=True) if end >= begin + len(trigger)
    ]
    return min(found, default=None)


def reads(text, tags, triggers, begin=0, *, at_once=False, excludes=()):
    """Whether a text is free text and islands; an island holds a 1."""
    end = first_end(text, triggers, begin)
    if end is None:
        return not at_once and not any(string in text[begin:] for string in excludes)
    for opening, closing in tags:
        to_trigger = first_end(opening, triggers)
        start = end - to_trigger
        whole = f"{opening}1{closing}"
        if start < begin or (at_once and start > begin) or not text.startswith(whole, start):
            continue
        if any(string in text[begin:start] for string in excludes):
            continue
        if reads(text, tags, triggers, start + len(whole), excludes=excludes):
            return True
    return False


@given(
    st.lists(
        st.tuples(strings, st.text(">c", max_size=2), st.integers(1, 3)), min_size=1, max_size=3
    ),
    st.lists(st.text("<ab1>c", max_size=9), min_size=3, max_size=8),
    st.booleans(),
    st.lists(strings, max_size=2),
)
@settings(max_examples=150, deadline=None)
def test_triggers_of_every_kind_are_read_as_they_come(backend, drawn, texts, some, excludes):
    tags = [(begin, end) for begin, end, _ in drawn]
    triggers = [begin[:length] for begin, _, length in drawn]
    fmt = {
        "type": "triggered_tags",
        "tags": [{"type": "tag", "begin": b, "content": ONE, "end": e} for b, e in tags],
        "triggers": triggers,
        "at_least_one": some,
        "excludes": excludes,
    }
    grammar = tag_grammar(backend, json.dumps({"format": fmt}))
    for text in [*texts, *(f"{a}{b}1{e}{a}" for a in texts[:2] for b, e in tags)]:
        fits = reads(text, tags, triggers, at_once=some, excludes=excludes)
        assert accepts(backend, grammar, text) == fits, text


# ---- formats ----

ANY, END = {"type": "any_text"}, {"type": "const_string", "value": "END"}
THINK = {"type": "tag", "begin": "<t>", "content": ANY, "end": "</t>"}
ONE = {"type": "json_schema", "json_schema": {"const": 1}}
ITEM = {"type": "tag", "begin": "[", "content": ONE, "end": ["]", "]]"]}
AB = {"type": "regex", "pattern": "a/?b+"}


@pytest.mark.parametrize(
    ("form", "fits", "wrong"),
    [
        (ANY, ["", "x\ny"], []),
        (END, ["END"], ["", "EN", "ENDx"]),
        (AB, ["a/b", "abb"], ["a", "a/"]),
        (THINK, ["<t></t>", "<t>a</</t>"], ["<t>", "<t></t>x", "x<t></t>"]),
        ({"type": "grammar", "grammar": 'root ::= "a" x\nx ::= [0-9]'}, ["a1"], ["a"]),
        ({"type": "sequence", "elements": [THINK, ONE]}, ["<t>1</t>1"], ["<t>1</t>", "1"]),
        ({"type": "sequence", "elements": [ANY, END]}, ["END", "xEND"], ["x", "ENDx"]),
        ({"type": "sequence", "elements": [ANY, END, ONE]}, ["xEND1"], ["xEND"]),
        ({"type": "sequence", "elements": [END, ANY]}, ["END", "ENDx"], ["x"]),
        ({"type": "or", "elements": [ONE, THINK, END]}, ["1", "<t></t>", "END"], ["", "2"]),
        ({"type": "optional", "content": ONE}, ["", "1"], ["11"]),
        ({"type": "star", "content": END}, ["", "ENDEND"], ["E"]),
        ({"type": "plus", "content": END}, ["END", "ENDEND"], [""]),
        (
            {"type": "tags_with_separator", "tags": [ITEM], "separator": ", "},
            ["", "[1]", "[1], [1]]", "[1]], [1]"],
            ["[1],", "[1][1]", "x[1]"],
        ),
        (
            {
                "type": "tags_with_separator",
                "tags": [ITEM],
                "separator": ",",
                "at_least_one": True,
                "stop_after_first": True,
            },
            ["[1]"],
            ["", "[1],[1]"],
        ),
        (
            {"type": "triggered_tags", "triggers": ["["], "tags": [ITEM], "stop_after_first": True},
            ["", "x", "[1]", "x[1]]"],
            ["[1]x", "["],
        ),
        (
            {
                "type": "tag",
                "begin": "<t>",
                "content": {"type": "triggered_tags", "triggers": ["["], "tags": [ITEM]},
                "end": "</t>",
            },
            ["<t>a[1]b[1]</t>", "<t></t>"],
            ["<t>[</t>", "<t>[1]"],
        ),
    ],
)
def test_formats(backend, form, fits, wrong):
    grammar = tag_grammar(backend, json.dumps({"type": "structural_tag", "format": form}))
    for text in fits:
        assert accepts(backend, grammar, text), text
    for text in wrong:
        assert not accepts(backend, grammar, text), text


def test_a_begin_that_is_a_special_token_is_that_token(backend):
    spec = {
        "structures": [
            {"begin": "<|im_start|>f", "schema": {"const": 1}, "end": "<|im_start|>"},
            {"begin": "<|im_start|>g", "schema": {"const": 2}, "end": ""},
        ],
        "triggers": ["<|im_start|>"],
    }
    verdict = try_source(backend, VOCAB, "structural_tag", json.dumps(spec))
    assert verdict.error is None
    special = backend.tokenizer.tokenize_str("<|im_start|>", parse_special=True)
    assert backend.tokenizer.is_special_token(special[0])
    assert accepts(backend, verdict.grammar, "x<|im_start|>f1<|im_start|>y")
    assert accepts(backend, verdict.grammar, "<|im_start|>g2<|im_start|>f1<|im_start|>")
    assert not accepts(backend, verdict.grammar, "x<|im_start|>")
    assert not accepts(backend, verdict.grammar, "x<|im_start|>f2<|im_start|>")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ([1], "expected an object, got [1]"),
        ({}, "$: Object missing required field `format`"),
        (
            {"structures": [], "triggers": ["<"]},
            "tags (structures, rules): there must be at least one",
        ),
        ({**CALLS, "triggers": ["<function="]}, "no trigger starts the begin '<fun>'"),
        ({**CALLS, "triggers": ["<fun", "<x"]}, "no begin starts with the trigger '<x'"),
        ({**CALLS, "triggers": ["<fun", ""]}, "a trigger is empty"),
        ({**CALLS, "excludes": ["x"]}, "$: Object contains unknown field `excludes`"),
        (
            {"type": "tag", "format": ANY},
            "$.type: Invalid enum value 'tag'; it is 'structural_tag'",
        ),
        ({"format": {"type": "x"}}, "$.format.type: Invalid value 'x'; it is one of const_string,"),
        (
            {"format": {**ONE, "style": "xml"}},
            "$.format.style: Invalid enum value 'xml'; it is one",
        ),
        ({"format": {**ONE, "any_order": True}}, "keys come in the schema's order"),
        ({"format": {**ONE, "excludes": ["a"]}}, "excludes are not supported in the style json"),
        ({"format": {**ANY, "max_tokens": 2}}, "max_chars bounds any_text"),
        ({"format": {**ANY, "excludes": ["a", ""]}}, "excludes: a string is empty"),
        ({"format": {"type": "token", "token": 999}}, "token: 999 is out of range; this model has"),
        ({"format": {"type": "token", "token": "ab"}}, "'ab' is not one token of this model"),
        ({"format": {**THINK, "end": {"type": "token", "token": 9}}}, "where token 9 ends it"),
        ({"format": {**THINK, "content": {"type": "any_tokens"}}}, "cannot tell where '</t>' ends"),
        ({"format": {"type": "repeat", "min": 3, "max": 2, "content": ONE}}, "max 2 is less than"),
        ({"format": {**THINK, "content": {**ONE, "json_schema": {"not": {"const": 1}}}}}, "#/not"),
        ({"format": {**ITEM, "content": {**ONE, "json_schema": {"x": 1, "type": "y"}}}}, "Invalid"),
        ({"format": {"type": "sequence", "elements": [ANY, ONE]}}, "what is free (any_text"),
        ({"format": {"type": "star", "content": ANY}}, "what is free (any_text"),
        ({"format": {"type": "grammar", "grammar": "x"}}, "grammar: "),
        ({"format": {"type": "regex", "pattern": "("}}, "unclosed group"),
        ({"format": {"type": "or", "elements": []}}, "or: elements: there must be at least one"),
        ({"format": {**ITEM, "end": []}}, "tag: end: there must be at least one"),
        (
            {
                "structures": [{"begin": "a<|im_start|>", "end": ""}],
                "triggers": ["a<|im_start|>"],
            },
            "has a special token that is not its first",
        ),
    ],
)
def test_what_is_refused_says_why(backend, spec, says):
    error = try_source(backend, VOCAB, "structural_tag", json.dumps(spec)).error
    assert error.startswith("structural_tag: ")
    assert says in error
    assert len(error) < 500


def test_what_is_nested_too_deeply_is_refused(backend):
    deep = '{"type":"star","content":' * 4000 + json.dumps(ONE) + "}" * 4000
    error = try_source(backend, VOCAB, "structural_tag", f'{{"format":{deep}}}').error
    assert "nested too deeply" in error
