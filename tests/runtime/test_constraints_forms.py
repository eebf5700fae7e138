"""How JSON is written under a grammar; choices; and schemas within Lark."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.constraints import JsonForm
from boughs.lang.sampling import SamplingParams
from boughs.runtime.constraints.compiler import GrammarCompiler
from boughs.runtime.constraints.llguidance_backend import load

VOCAB, EOS = 384, 2
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}, "b": {"type": "null"}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
VALUE = {"a": [1, 2], "b": None}


@pytest.fixture(scope="module")
def backend(tiny_model):
    return load(tiny_model, VOCAB, (EOS,))


def accepts(backend, constraint, text):
    raw = backend.build(backend.translate(*constraint).grammar)
    ids = backend.tokenizer.tokenize_str(text)
    return raw.try_consume_tokens(ids) == len(ids) and raw.is_accepting()


def constraint(**fields):
    return SamplingParams.from_mapping(fields).constraint


def written(*, item=", ", key=": ", indent=None):
    return json.dumps(VALUE, separators=(item, key), indent=indent)


@pytest.mark.parametrize("field", ["json_schema", "structural_tag"])
@pytest.mark.parametrize(
    ("how", "fits", "wrong"),
    [
        ({}, [written()], [written(item=","), written(key=":"), written(indent=1)]),
        ({"json_separators": [",", ":"]}, [written(item=",", key=":")], [written()]),
        ({"json_separators": [" ,\n", "\t: "]}, [written(item=" ,\n", key="\t: ")], [written()]),
        (
            {"json_whitespace": 3},
            [
                written(),
                written(item=",", key=":"),
                written(item=",", indent=1),
                written(item="\t,\r\n "),
            ],
            [written(item=",    "), written(indent=4), " " + written(), written() + "\n"],
        ),
    ],
)
def test_white_space_is_as_asked_for(backend, field, how, fits, wrong):
    source = SCHEMA
    if field == "structural_tag":
        source = {"format": {"type": "json_schema", "json_schema": SCHEMA}}
    for text in fits:
        assert accepts(backend, constraint(**{field: source}, **how), text), text
    for text in wrong:
        assert not accepts(backend, constraint(**{field: source}, **how), text), text


def test_a_form_has_a_grammar_of_its_own(tiny_model, tmp_path):
    for _ in range(2):  # the second compiler finds verdicts on the disk
        compiler = GrammarCompiler(tiny_model, VOCAB, (EOS,), cache=tmp_path)
        try:
            source, closed = json.dumps(SCHEMA), JsonForm(0, ",", ":")
            one, other = compiler.ask("json_schema", source), compiler.ask("json_schema", source)
            assert one is other
            tight = compiler.ask("json_schema", source, closed)
            assert tight is not one
            for form, text in ((JsonForm(), written()), (closed, written(item=",", key=":"))):
                matcher = compiler.matcher("json_schema", source, form)
                ids = load(tiny_model, VOCAB, (EOS,)).tokenizer.tokenize_str(text)
                assert matcher.state.try_consume_tokens(ids) == len(ids)
        finally:
            compiler.close()
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("text", ["{}", '{"a": [1, {"b": null}]}', "[]", "1", ""])
def test_a_json_object_is_any(backend, text):
    assert accepts(backend, constraint(json_object=True), text) == text.startswith("{")


def test_what_only_llguidance_takes_for_a_setting_is_an_annotation(backend):
    lenient = {"x-guidance": {"lenient": True, "whitespace_flexible": True}, **SCHEMA}
    assert accepts(backend, constraint(json_schema=lenient), written())
    assert not accepts(backend, constraint(json_schema=lenient), written(indent=1))
    made = backend.translate(*constraint(json_schema={**lenient, "not": {"const": 1}}))
    assert made.weaker == ("#/not",)


@given(
    st.lists(st.text('ab é\n."\\#|(😀', min_size=1, max_size=4), min_size=1, max_size=5),
    st.lists(st.text('ab é\n."\\#|(', max_size=4), max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_choices_are_the_texts_themselves(backend, choices, others):
    for text in [*choices, *others]:
        assert accepts(backend, constraint(choices=choices), text) == (text in choices)


def test_lark_is_lark_alone(backend):
    grammar = 'start: "a" /[0-9]+/'
    assert accepts(backend, constraint(lark=grammar), "a12")
    assert accepts(backend, constraint(ebnf=grammar), "a12")
    with pytest.raises(ValueError, match=r"^(?!ebnf)"):
        backend.build(backend.translate(*constraint(lark='root ::= "a"')).grammar)


@pytest.mark.parametrize("kind", ["lark", "ebnf"])
def test_schemas_within_lark_are_read_as_others_are(backend, kind):
    schema = {
        "type": "array",
        "items": {"oneOf": [{"const": 1}, {"type": "string", "format": "x"}]},
    }
    source = f'start: "%json {{" j // %json {{\nj: %json {json.dumps(schema, indent=1)}\n'
    assert accepts(backend, constraint(**{kind: source}), '%json {[1, "x"]')
    assert not accepts(backend, constraint(**{kind: source}), '%json {[1,  "x"]')
    assert not accepts(backend, constraint(**{kind: source}), "%json {[2]")
    with pytest.raises(ValueError, match=rf"^{kind}: %json: #/not: no grammar holds this"):
        backend.translate(kind, 'start: %json {"not": {"const": 1}}')
    with pytest.raises(ValueError, match=rf"^{kind}: %json: Expecting"):
        backend.translate(kind, 'start: %json {"not": }')


def test_a_place_in_lark_is_the_users(backend):
    source = 'start: j x\nj: %json {\n"type": "null"\n}\nx: nope'
    with pytest.raises(ValueError, match=r"5\(\d+\): unknown name"):
        backend.build(backend.translate("lark", source).grammar)
