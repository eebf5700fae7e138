"""Prompts with many endings are tokenized as each would be by itself, and what they share once."""

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from boughs.lang.segments import Content, Ids, Role, Text
from boughs.runtime.front.endings import encode_endings
from boughs.runtime.front.prompt import encode_segments
from boughs.runtime.front.tokenizer import Tokenizer

_path = Path(__file__).parents[1] / "fixtures" / "text_tokenizers.py"
_spec = importlib.util.spec_from_file_location("text_tokenizers", _path)
kinds = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kinds)

MADE = {}


def tokenizer_of(name):
    if name not in MADE:
        MADE[name] = Tokenizer(kinds.ALL[name](), name)
    return MADE[name]


texts = st.text("ab \n1.<|>éser", max_size=20) | st.lists(
    st.sampled_from(["the", "fox", " ", "  ", "\n", "1", "12", "e\u0301", "日本", ",", "<|end|>",
                     "<|en", "d|>", "a b", " king", "\u0301", " \n"]), max_size=12
).map("".join)  # fmt: skip
segments = st.lists(
    st.one_of(
        texts.map(Text),
        texts.map(Content),
        st.lists(st.integers(5, 60), max_size=3).map(Ids),
        st.just(Role("user", "begin")),
    ),
    max_size=5,
)


@pytest.mark.parametrize("name", sorted(kinds.ALL))
@given(segments=segments, endings=st.lists(texts, min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_they_are_what_each_is_by_itself(name, segments, endings):
    tokenizer = tokenizer_of(name)
    roles = [f"<|user|>{at} said\n" for at in range(len(segments))]
    roles = roles[: sum(isinstance(segment, Role) for segment in segments)]
    whole = encode_segments(tokenizer, segments, roles)
    made = encode_endings(tokenizer, segments, roles, whole, endings)
    assert made == [
        encode_segments(tokenizer, [*segments, Text(ending)], roles) for ending in endings
    ]


@pytest.mark.parametrize("name", ["gpt2", "llama3", "llama2", "gemma", "unigram"])
@pytest.mark.parametrize("last", [Text, Content])
def test_what_they_share_is_tokenized_twice_at_most(name, last, monkeypatch):
    """To know the prompt, and to know the part that is kept."""
    tokenizer = Tokenizer(kinds.ALL[name](), name)
    assert tokenizer.words_apart
    segments = [last("the quick brown fox " * 1000 + "jumps over the "), Role("user", "begin")]
    whole = encode_segments(tokenizer, segments, ["<|user|>"])
    sizes, encode = [], tokenizer.encode

    def counted(stretch, place):
        sizes.append(len(stretch))
        return encode(stretch, place)

    monkeypatch.setattr(tokenizer, "encode", counted)
    made = encode_endings(tokenizer, segments, ["<|user|>"], whole, [f" {n}" for n in range(100)])
    assert len(made) == 100
    assert sum(sizes) < 20_020 + 100 * 100


def test_a_vocabulary_whose_tokens_hold_words_is_not_cut():
    """A token that the ending completes may reach back over a space."""
    made = kinds.gpt2()
    made.add_tokens(["the king of"])
    tokenizer = Tokenizer(made, "phrases")
    assert not tokenizer.words_apart
    segments = [Text("and so the king")]
    whole = encode_segments(tokenizer, segments)
    (ids,) = encode_endings(tokenizer, segments, [], whole, [" of"])
    assert tokenizer.hf.convert_tokens_to_ids("the king of") in ids
