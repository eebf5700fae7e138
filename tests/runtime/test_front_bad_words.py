"""Bad words as token sequences, for every kind of tokenizer."""

import functools
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.errors import InvalidRequest
from boughs.runtime.front.bad_words import bad_sequences
from boughs.runtime.front.tokenizer import Tokenizer

_path = Path(__file__).parents[1] / "fixtures" / "text_tokenizers.py"
_spec = importlib.util.spec_from_file_location("text_tokenizers", _path)
kinds = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kinds)


@functools.cache
def tokenizer(name):
    return Tokenizer(kinds.ALL[name](), name)


every_kind = pytest.mark.parametrize("name", sorted(kinds.ALL))
words = st.lists(
    st.text("abckTheqo \n.", min_size=1, max_size=8), min_size=1, max_size=4
)  # fmt: skip


def holds(ids, sequence):
    return any(ids[at : at + len(sequence)] == sequence for at in range(len(ids)))


@every_kind
@given(words)
@settings(max_examples=60, deadline=None)
def test_a_word_is_found_at_the_start_and_behind_a_space(name, texts):
    """What the tokenizer gives for a text that is the word alone, or has it last, is forbidden."""
    tok = tokenizer(name)
    sequences = bad_sequences(tok, texts)
    assert len({tuple(ids) for ids in sequences}) == len(sequences)
    for text in texts:
        bare = text.lstrip(" ") or text
        for whole, place in ((bare, "start"), (bare, "ids"), (f" {bare}", "ids")):
            assert any(holds(tok.encode(whole, place), ids) for ids in sequences)


@every_kind
def test_each_sequence_spells_its_word(name):
    tok = tokenizer(name)
    for ids in bad_sequences(tok, ["quick", " fox", "brown fox"]):
        spelt = b"".join(map(tok.token_bytes, ids)).decode()
        assert spelt.strip() in ("quick", "fox", "brown fox")


@every_kind
def test_a_special_token_is_a_token(name):
    tok = tokenizer(name)
    assert [tok.special["<|end|>"]] in bad_sequences(tok, ["<|end|>"])


def test_a_word_that_the_tokenizer_does_not_know_is_an_error():
    spellable = {}
    for name in kinds.ALL:
        tok = tokenizer(name)
        spellable[name] = tok.hf.unk_token_id not in tok.encode("\u2603", "ids")
        if spellable[name]:
            assert bad_sequences(tok, ["ab", "\u2603"])
            continue
        with pytest.raises(InvalidRequest, match=r"bad_words\[1\]: the tokenizer has no") as caught:
            bad_sequences(tok, ["ab", "\u2603"])
        assert caught.value.param == "bad_words[1]"
    assert set(spellable.values()) == {True, False}
