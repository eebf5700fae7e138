"""Beam search step by step, against transformers' own on a model that is a function of the text."""

import hashlib

import msgspec
import pytest
import torch
from hypothesis import given, settings, strategies as st
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from boughs.lang.beams import HONOURED
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.sampling import SamplingParams
from boughs.runtime.core.beam import BeamSearch


def logits_of(context, vocab, scale, favoured, favour):
    """Random logits that the context determines; the favoured tokens come up often."""
    text = ",".join(map(str, context)).encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * scale
    logits[sorted(favoured)] += favour
    return logits


class Reciter(PreTrainedModel, GenerationMixin):
    """A causal model without weights."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, config, recite):
        super().__init__(config)
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.recite = recite

    def forward(self, input_ids, **_):
        rows = [self.recite(row) for row in input_ids.tolist()]
        return CausalLMOutput(logits=torch.stack(rows)[:, None, :])

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids}


def transformers_beams(recite, vocab, prompt, ends, params):
    """(ids, score) of each sequence that transformers returns."""
    config = PretrainedConfig(vocab_size=vocab, is_encoder_decoder=False)
    config.num_hidden_layers = 1
    bias = params.logit_bias or {}
    generation = GenerationConfig(
        num_beams=params.beam_width,
        num_return_sequences=params.n,
        do_sample=False,
        max_new_tokens=params.max_new_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=sorted(ends) or None,
        pad_token_id=vocab - 1,
        use_cache=False,
        repetition_penalty=params.repetition_penalty,
        min_new_tokens=params.min_new_tokens or None,
        sequence_bias={(token,): float(value) for token, value in bias.items()} or None,
        output_scores=True,
        return_dict_in_generate=True,
    )
    model = Reciter(config, recite)
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=generation)
    made = []
    scores = getattr(out, "sequences_scores", None)
    for row, sequence in enumerate(out.sequences.tolist()):
        new = sequence[len(prompt) :]
        length = next((at for at, token in enumerate(new, 1) if token in ends), len(new))
        made.append((new[:length], None if scores is None else float(scores[row])))
    return made


def boughs_beams(recite, prompt, ends, params):
    search = BeamSearch(params, prompt, frozenset(ends), params.max_new_tokens)
    while not search.over:
        contexts = [prompt + beam.ids for beam in search.beams]
        search.advance(torch.stack([recite(context) for context in contexts]))
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


def compare(seed, vocab, scale, ends, favour, params):
    """The search and transformers' give the same outputs in the same order."""
    prompt = [seed % vocab, seed // vocab % vocab, 3]

    def recite(context):
        return logits_of([seed, *context], vocab, scale, ends, favour)

    expected = transformers_beams(recite, vocab, prompt, ends, params)
    found = boughs_beams(recite, prompt, ends, params)
    assert [h.ids for h in found] == [ids for ids, _ in expected]
    for hypothesis, (ids, score) in zip(found, expected, strict=True):
        stops = ids[-1] in ends
        assert hypothesis.finish == ("stop" if stops else "length")
        assert hypothesis.matched == (ids[-1] if stops else None)
        if score is not None:
            assert hypothesis.score == pytest.approx(score, abs=1e-4)
            whole = hypothesis.score * len(ids) ** params.length_penalty
            assert hypothesis.sum_logprob == pytest.approx(whole, abs=1e-4)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.9}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"frequency_penalty": 1.0}, "frequency_penalty"),
        ({"presence_penalty": 1.0}, "presence_penalty"),
        ({"stop": ["x"]}, "stop"),
        ({"stop_regex": ["x"]}, "stop_regex"),
        ({"regex": "a+"}, "regex"),
        ({"json_schema": "{}"}, "json_schema"),
        ({"ebnf": "start: /a/"}, "ebnf"),
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
    assert not HONOURED & {"top_p", "top_k", "stop", "regex", "frequency_penalty"}


@pytest.mark.parametrize("temperature", [0, 1, 1.0])
def test_a_temperature_that_changes_nothing_is_accepted(temperature):
    params = SamplingParams.from_mapping({"beam_width": 4, "temperature": temperature, "seed": 3})
    assert params.beam_width == 4
