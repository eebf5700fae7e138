"""Beam search step by step, against transformers' own on a model that is a function of the text."""

import importlib.util
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.kernels.bitmask import pack
from boughs.lang.beams import HONOURED
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.sampling import SamplingParams
from boughs.runtime.core.beam import BeamSearch
from boughs.runtime.core.forbidden import Forbidden
from boughs.runtime.core.sampler import RowState

_path = Path(__file__).parents[1] / "fixtures" / "hf_beams.py"
_spec = importlib.util.spec_from_file_location("hf_beams", _path)
theirs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(theirs)


class Language:
    """A grammar of a few sequences. An end may follow one that others go on from.

    It stands for a matcher at a place, and for what transformers asks of one.
    """

    weaker = False

    def __init__(self, sequences, ends, at=()):
        self.sequences, self.ends, self.at, self.ended = sequences, ends, tuple(at), False

    def following(self, ids):
        ids = tuple(ids)
        return {s[len(ids)] for s in self.sequences if len(s) > len(ids) and s[: len(ids)] == ids}

    def allowed(self, ids):
        ends = self.ends if tuple(ids) in self.sequences else ()
        # transformers goes on with what has no chance, and must be given something.
        return sorted({*self.following(ids), *ends}) or [0]

    def whole(self, ids):
        return tuple(ids) in self.sequences and not self.following(ids)

    def mask(self, vocab):
        allowed = np.zeros(vocab, dtype=bool)
        allowed[self.allowed(self.at)] = True
        return pack(allowed)

    def fork(self):
        return Language(self.sequences, self.ends, self.at)

    def check(self):
        pass

    def accept(self, token):
        assert token in self.allowed(self.at)
        self.ended = token in self.ends and token not in self.following(self.at)
        self.at = (*self.at, token)

    @property
    def complete(self):
        return self.ended or self.whole(self.at)

    @property
    def accepting(self):
        return self.at in self.sequences


def boughs_beams(recite, prompt, ends, params, *, vocab=None, language=None, bad=()):
    row = RowState(params, 0, frozenset(ends))
    row.note_prompt(prompt)
    if bad or params.allowed_token_ids is not None:
        row.forbidden = Forbidden(vocab, params.allowed_token_ids, bad)
    search = BeamSearch(row, params.max_new_tokens)
    search.begin(language, None)
    while not search.over:
        contexts = [prompt + beam.ids for beam in search.beams]
        masks = [beam.matcher and beam.matcher.mask(vocab) for beam in search.beams]
        search.advance(torch.stack([recite(context) for context in contexts]), masks)
    return search.best()


@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(16, 40),
    width=st.integers(1, 6),
    ends=st.sampled_from([(), (4,), (0, 7), (1, 2, 9)]),
    favour=st.sampled_from([-1.0, 0.0, 2.0, 5.0]),
    scale=st.sampled_from([1.0, 4.0]),
    length_penalty=st.sampled_from([-1.0, 0.0, 1.0, 2.0]),
    early_stopping=st.sampled_from([False, True, "never"]),
    most=st.integers(1, 14),
    least=st.integers(0, 3),
    penalty=st.sampled_from([1.0, 1.0, 1.3, 0.7]),
    bias=st.none() | st.dictionaries(st.integers(0, 9), st.sampled_from([-3.0, 3.0]), min_size=1),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_it_is_the_search_of_transformers(
    seed, vocab, width, ends, favour, scale, length_penalty, early_stopping, most, least, penalty,
    bias, data,
):  # fmt: skip
    params = SamplingParams(
        beam_width=width,
        n=data.draw(st.integers(1, width)),
        max_new_tokens=most,
        min_new_tokens=min(least, most),
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        repetition_penalty=penalty,
        logit_bias=bias,
    )
    compare(seed, vocab, scale, ends, favour, params)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("favour", [1.0, 3.0])
def test_many_ends_and_long_outputs_that_pay(favour, early_stopping):
    """Ends take most of the best places, and outputs that end late may beat the first ones."""
    params = SamplingParams(
        beam_width=3, n=3, max_new_tokens=16, length_penalty=2.0, early_stopping=early_stopping
    )
    for seed in range(12):
        compare(seed, 24, 2.0, (1, 2, 9), favour, params)


tokens = st.integers(0, 15)


@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 5),
    ends=st.sampled_from([(4,), (0, 7)]),
    favour=st.sampled_from([-1.0, 2.0]),
    frequency=st.sampled_from([0.0, 0.7, -1.5]),
    presence=st.sampled_from([0.0, 0.5]),
    allowed=st.none() | st.sets(tokens, min_size=9).map(tuple),
    bad=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=3), max_size=5),
    most=st.integers(1, 10),
    least=st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_penalties_and_lists_act_as_processors_of_transformers(
    seed, width, ends, favour, frequency, presence, allowed, bad, most, least
):
    params = SamplingParams(
        beam_width=width,
        n=width,
        max_new_tokens=most,
        min_new_tokens=min(least, most),
        frequency_penalty=frequency,
        presence_penalty=presence,
        allowed_token_ids=allowed,
    )
    compare(seed, 16, 2.0, ends, favour, params, bad=bad)


@given(
    seed=st.integers(0, 10**6),
    width=st.integers(1, 5),
    ends=st.sampled_from([(14,), (14, 15)]),
    early_stopping=st.sampled_from([False, "never"]),
    length_penalty=st.sampled_from([0.0, 1.0, 2.0]),
    most=st.integers(1, 8),
    sequences=st.sets(
        st.lists(st.integers(0, 5), min_size=1, max_size=6).map(tuple), min_size=1, max_size=12
    ),
)
@settings(max_examples=150, deadline=None)
def test_a_grammar_acts_as_allowed_prefixes_of_transformers(
    seed, width, ends, early_stopping, length_penalty, most, sequences
):
    params = SamplingParams(
        beam_width=width,
        n=width,
        max_new_tokens=most,
        early_stopping=early_stopping,
        length_penalty=length_penalty,
    )
    compare(seed, 16, 2.0, ends, 0.0, params, language=Language(sequences, ends))


def test_the_end_of_a_grammar_may_come_before_min_new_tokens():
    """Where it is all that is left, as without beams."""
    params = SamplingParams(beam_width=3, n=3, max_new_tokens=8, min_new_tokens=4)
    language = Language({(1,), (1, 2), (3,)}, (14,))

    def recite(context):
        return theirs.logits_of(context, 16, 2.0, (), 0.0)

    found = boughs_beams(recite, [5], (14,), params, vocab=16, language=language)
    assert sorted(h.ids for h in found) == [[1, 2], [3]]  # not [1, 14]: 2 could follow


def compare(seed, vocab, scale, ends, favour, params, *, language=None, bad=()):
    """The search and transformers' give the same outputs in the same order."""
    prompt = [seed % vocab, seed // vocab % vocab, 3]

    def recite(context):
        return theirs.logits_of([seed, *context], vocab, scale, ends, favour)

    more = {} if language is None else {"allowed": language.allowed, "complete": language.whole}
    expected = theirs.beams(recite, vocab, prompt, ends, params, bad=bad, **more)
    assert expected
    found = boughs_beams(recite, prompt, ends, params, vocab=vocab, language=language, bad=bad)
    assert [h.ids for h in found] == [ids for ids, _ in expected]
    for hypothesis, (ids, score) in zip(found, expected, strict=True):
        whole = language is not None and language.whole(ids)
        assert hypothesis.finish == ("stop" if ids[-1] in ends or whole else "length")
        assert hypothesis.matched == (ids[-1] if ids[-1] in ends else None)
        cut = hypothesis.finish == "length" and language is not None
        assert hypothesis.incomplete == (cut and tuple(ids) not in language.sequences)
        if score is not None:
            assert hypothesis.score == pytest.approx(score, abs=1e-4)
            total = hypothesis.score * len(ids) ** params.length_penalty
            assert hypothesis.sum_logprob == pytest.approx(total, abs=1e-4)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"best_of": 4}, "best_of"),
        ({"n": 5}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 129}, "beam_width"),
        ({"beam_width": True}, "beam_width"),
        ({"beam_width": 2.5}, "beam_width"),
        ({"length_penalty": float("nan")}, "length_penalty"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"early_stopping": "always"}, "early_stopping"),
    ],
)
def test_what_it_does_not_honour_is_refused_by_name(fields, named):
    with pytest.raises((InvalidRequest, Unsupported), match=rf"^sampling_params\.{named}\b"):
        SamplingParams.from_mapping({"beam_width": 4, **fields}, "sampling_params.")


def test_every_field_is_honoured_or_refused():
    """A field that is new is refused until somebody says that beams honour it."""
    known = {field.name for field in msgspec.structs.fields(SamplingParams)}
    assert known >= HONOURED
    assert not HONOURED & {"top_p", "top_k", "min_p", "best_of"}


@pytest.mark.parametrize("temperature", [0, 1, 1.0])
def test_a_temperature_that_changes_nothing_is_accepted(temperature):
    params = SamplingParams.from_mapping({"beam_width": 4, "temperature": temperature, "seed": 3})
    assert params.beam_width == 4
