"""Grammars that cannot be: each is an error that says why, and none ends the core."""

import pytest

from boughs.lang.errors import GrammarError
from boughs.runtime.constraints.compiler import GrammarCompiler
from boughs.runtime.constraints.llguidance_backend import load
from boughs.runtime.constraints.matcher import MAX_MESSAGE
from boughs.runtime.constraints.worker import Bounds

VOCAB, EOS = 384, 2


@pytest.fixture(scope="module")
def grammars(tiny_model):
    bounds = Bounds(seconds=60.0, memory=1 << 30)  # the machine may be busy
    compiler = GrammarCompiler(tiny_model, VOCAB, (EOS,), bounds)
    yield compiler
    compiler.close()


def run(grammars, kind, source, steps=20):
    """Follow a grammar, each time with the last token that it allows."""
    matcher = grammars.matcher(kind, source)
    tokens = []
    while len(tokens) < steps and not matcher.complete:
        token = int(matcher.mask(VOCAB).nonzero()[0][-1])
        matcher.accept(token)
        tokens.append(token)
    return tokens


@pytest.mark.parametrize(
    ("kind", "source", "says"),
    [
        ("json_schema", '{"a":' * 100_000 + "1" + "}" * 100_000, "has 600001 bytes; at most"),
        ("json_schema", "[" * 100_000, "nested too deeply"),
        ("json_schema", '{"properties":{"a":' * 400 + "{}" + "}}" * 400, "nested too deeply"),
        ("json_schema", '{"properties":{"a":' * 64 + "{}" + "}}" * 64, "nested too deeply"),
        ("json_schema", "{", "property name"),
        ("json_schema", "[1]", "expected an object or a boolean, got [1]"),
        ("json_schema", "null", "expected an object or a boolean, got None"),
        ("json_schema", '{"const": NaN}', "NaN is not JSON"),
        ("json_schema", '{"const": -Infinity}', "-Infinity is not JSON"),
        ("json_schema", '{"type": "foo"}', "Invalid type: foo"),
        ("json_schema", '{"$ref": "http://example.org/x"}', "retriev"),
        ("json_schema", '{"not": {}}', "not"),
        ("regex", "(", "unclosed group"),
        ("regex", "a/\nb(", "unclosed group at position 4: 'a/\\nb' ^ '('"),
        ("regex", "(a)\\1", "backreferences are not supported at position 3"),
        ("regex", "a(?=b)", "at position 1: 'a' ^ '(?=b)'"),
        ("regex", "(" * 5000 + "a" + ")" * 5000, "at position 250"),
        ("ebnf", "", "Empty grammar"),
        ("ebnf", "start: (", "Expected token"),
        ("ebnf", "start: nope", "at 1(8): unknown name"),
        ("ebnf", "root ::= (", "Expected ')' at line 1, 'root ::= (' ^ ''"),
        ("ebnf", 'root ::= "a" nope', "Rule 'nope' not found"),
        ("ebnf", 'other ::= "a"', "No 'root' rule"),
        ("ebnf", "root ::= " + "(" * 5000, "too deeply"),
        ("ebnf", "root ::= [z-a]", "start must be <= the end at position 1"),
        ("regex", r"a\b", "lookarounds not supported"),
    ],
)
def test_a_source_that_cannot_be_compiled_says_why(grammars, kind, source, says):
    with pytest.raises(GrammarError, match=f"^{kind}: ") as caught:
        grammars.matcher(kind, source)
    assert says in str(caught.value)
    assert len(str(caught.value)) < MAX_MESSAGE + 40
    assert caught.value.param == kind


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", '{"$ref": "#"}'),
        ("regex", "[a&&b]"),
        ("ebnf", "start: start"),
        ("ebnf", "start: a\na: b\nb: a"),
    ],
)
def test_a_grammar_without_any_text_says_so(grammars, kind, source):
    with pytest.raises(GrammarError, match=rf"^{kind}: the grammar allows no output$"):
        run(grammars, kind, source)


def test_a_grammar_that_explodes_says_so_without_the_state_of_the_parser(grammars):
    with pytest.raises(GrammarError, match=r"^regex: lexer error: too many expressions"):
        run(grammars, "regex", "((((a{100}){100}){100}){100})")


@pytest.mark.parametrize("source", ["true", "{}"])
def test_a_schema_may_allow_anything(grammars, source):
    assert run(grammars, "json_schema", source)


def test_the_empty_regex_allows_the_end_alone(grammars):
    assert run(grammars, "regex", "") == [EOS]


SUMS = 'root ::= term ("+" term)*  # a sum\nterm ::= [0-9]{1,2} | "(" root ")"'
LARK = 'start: term ("+" term)*\nterm: /[0-9]{1,2}/ | "(" start ")"'


@pytest.mark.parametrize("source", [SUMS, LARK])
@pytest.mark.parametrize(
    ("text", "whole"), [("1+22", True), ("(1+2)+3", True), ("1+", False), ("123", False)]
)
def test_gbnf_and_lark_say_the_same(grammars, tiny_model, source, text, whole):
    backend = load(tiny_model, VOCAB, (EOS,))
    matcher = grammars.matcher("ebnf", source)
    ids = backend.tokenizer.tokenize_str(text)
    taken = matcher.state.try_consume_tokens(ids)
    assert (taken == len(ids) and matcher.accepting) == whole


def test_every_end_of_the_model_is_allowed_where_the_grammar_may_end(tiny_model):
    ends = (EOS, 0)
    compiler = GrammarCompiler(tiny_model, VOCAB, ends)
    try:
        for end in ends:
            matcher = compiler.matcher("regex", "a+")
            assert not matcher.mask(VOCAB)[list(ends)].any()
            matcher.accept(int(matcher.mask(VOCAB).nonzero()[0][0]))
            assert matcher.mask(VOCAB)[list(ends)].all()
            matcher.accept(end)
            assert matcher.complete
    finally:
        compiler.close()
