"""Which of a prompt's last tokens are given back, and what a replay makes of those spelt anew."""

import functools
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Content, Ids, Role, Text
from boughs.runtime.front.healing import given_back
from boughs.runtime.front.output import Asked, ChoiceOutput
from boughs.runtime.front.prompt import encode_segments
from boughs.runtime.front.submission import Submission
from boughs.runtime.front.tokenizer import Tokenizer
from boughs.runtime.messages import Output, Submit

_spec = importlib.util.spec_from_file_location(
    "text_tokenizers", Path(__file__).parents[1] / "fixtures" / "text_tokenizers.py"
)
text_tokenizers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(text_tokenizers)


@functools.cache
def of_kind(name):
    return Tokenizer(text_tokenizers.ALL[name](), name)


def back(tokenizer, segments, roles=()):
    ids = encode_segments(tokenizer, segments, roles)
    count = given_back(tokenizer, segments, ids)
    return ids[len(ids) - count :], ids


texts = st.text("the in a:/\n ä日😀", max_size=12)


@pytest.mark.parametrize("kind", sorted(text_tokenizers.ALL))
@settings(max_examples=60, deadline=None)
@given(texts)
def test_what_is_given_back_is_the_end_of_the_text(kind, text):
    """Whole characters of it, which a longer token could spell; or nothing."""
    tokenizer = of_kind(kind)
    given, ids = back(tokenizer, [Text(text)])
    raw = b"".join(map(tokenizer.token_bytes, given))
    assert text.encode().endswith(raw)
    raw.decode()
    assert len(given) < len(ids) or not ids
    if given:
        special = set(tokenizer.control.values())
        assert any(
            spelt.startswith(raw) and len(spelt) > len(raw)
            for id_, spelt in enumerate(tokenizer.bytes_of)
            if id_ not in special
        )


def test_nothing_is_given_back_across_ids_roles_and_special_tokens():
    tokenizer = of_kind("llama3")
    assert back(tokenizer, [Text("a the")])[0]
    assert not back(tokenizer, [Text("a"), Ids(tokenizer.encode(" the", "ids"))])[0]
    assert not back(tokenizer, [Text("a the"), Role("assistant", "begin")], [" the"])[0]
    special = next(iter(tokenizer.special))
    assert not back(tokenizer, [Text(f"a the{special}")])[0]
    assert back(tokenizer, [Text("a th"), Content("e")])[0]


def test_a_replay_says_what_has_been_spelt():
    message = Submit(key=1, prompt_ids=[5, 6], params=SamplingParams(seed=1), heal="ab")
    submission = Submission(message, lambda _: None)
    assert submission.next_message() is message
    submission.take(Output(key=1, ids=[7], healed=1))
    submission.take(Output(key=1, ids=[8]))
    again = submission.next_message()
    assert (again.output_ids, again.healed, again.heal) == ([7, 8], 1, "ab")


@pytest.mark.parametrize("finish", ["length", None])
def test_an_output_may_end_inside_a_character_of_the_prompt(finish):
    """At the context's end, or where it is left early, before the prompt's end is spelt."""
    tokenizer = of_kind("llama3")
    given = tokenizer.encode("\u1e17", "ids")
    assert len(given) > 1, "a character of several tokens"
    params = SamplingParams(stop=("x",))
    asked = Asked(rid="r", prompt_ids=[5], params=params, given_back=given, heal="\u1e17")
    choice = ChoiceOutput(tokenizer, asked)
    chunk = choice.add(Output(key=1, ids=given[:1], healed=1, finish=finish), 0)
    last = chunk or choice.abort("left")
    assert (last.text, last.output_ids, last.segments) == ("", [], [])
    assert last.finish.type == (finish or "abort")
