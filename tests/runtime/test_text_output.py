"""One choice's tokens to text, chunks and segments, however the tokens arrive."""

import functools
import importlib.util
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from boughs.lang.results import Answer, Finish
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Ids, Text
from boughs.runtime.front.detokenize import Detokenizer
from boughs.runtime.front.output import Asked, ChoiceOutput
from boughs.runtime.front.stops import compile_patterns
from boughs.runtime.front.tokenizer import Tokenizer
from boughs.runtime.messages import Output

_fixtures = Path(__file__).parents[1] / "fixtures"
EOS = 2


def load(name):
    spec = importlib.util.spec_from_file_location(name, _fixtures / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def tiny():
    with tempfile.TemporaryDirectory() as folder:
        return Tokenizer.load(load("tiny_models").make_tiny_tokenizer(Path(folder)))


@functools.cache
def of_kind(name):
    return Tokenizer(load("text_tokenizers").ALL[name](), name)


def ids_of(text):
    """The ids of a text, byte by byte where it is not ASCII, so that characters are cut."""
    return [id_ for char in text for id_ in tiny().encode(char, "ids")]


tokens = st.integers(0, 383)
texts = st.text("ab\n ä日😀", max_size=10)
streams = st.one_of(
    st.lists(tokens, max_size=12),
    texts.map(ids_of),
    st.lists(texts.map(ids_of) | st.lists(tokens, max_size=3), max_size=4).map(
        lambda parts: [id_ for part in parts for id_ in part]
    ),
)


@st.composite
def bursts(draw, ids):
    """The ids, as the steps of a core may bring them."""
    places = sorted(draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    return [ids[a:b] for a, b in zip([0, *places], [*places, len(ids)], strict=True)]


def run(ids, steps, params, *, finish="length", matched=None, tokenizer=None, stop_texts=None):
    """The chunks that come of `ids` in `steps`, and the choice."""
    asked = Asked(
        rid="r",
        prompt_ids=[5],
        params=params,
        rendered=["mark"],
        logprobs=True,
        patterns=compile_patterns(params.stop_regex),
        stop_texts=stop_texts or {},
    )
    choice = ChoiceOutput(tokenizer or tiny(), asked)
    chunks, at = [], 0
    for number, step in enumerate(steps, 1):
        last = number == len(steps)
        output = Output(
            key=1,
            ids=step,
            logprobs=[-float(at + i) for i in range(len(step))],
            finish=finish if last else None,
            matched=matched if last else None,
        )
        at += len(step)
        chunk = choice.add(output, 0)
        if chunk is not None:
            chunks.append(chunk)
        if choice.ended:
            break
    return chunks, choice


def answer_of(chunks):
    answer = Answer.empty("r")
    for chunk in chunks:
        answer.add(chunk)
    return answer


def decoded(ids, *, skip):
    """The text of ids, in one go."""
    shown = [id_ for id_ in ids if not (skip and id_ in tiny().special_ids)]
    return b"".join(map(tiny().token_bytes, shown)).decode("utf-8", "replace")


def counted(ids, *, skip):
    """Characters complete after each token."""
    made = Detokenizer(tiny(), skip_special=skip)
    total, ends = 0, []
    for id_ in ids:
        total += len(made.add(id_))
        ends.append(total)
    if ends:
        ends[-1] += len(made.end())
    return ends


@given(streams, st.booleans())
@settings(max_examples=300, deadline=None)
def test_pieces_joined_are_the_text_decoded_in_one_go(ids, skip):
    made = Detokenizer(tiny(), skip_special=skip)
    pieces = [made.add(id_) for id_ in ids] + [made.end()]
    assert "".join(pieces) == decoded(ids, skip=skip)
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in decoded(ids, skip=skip)


@pytest.mark.parametrize("kind", ["llama2", "mistral", "unigram"])
def test_the_dummy_space_is_dropped_at_the_start_of_a_text_alone(kind):
    tok = of_kind(kind)
    ids = tok.encode("a quick dog", "start")
    assert tok.text_of(ids[0]).startswith(" ")
    for at_start, want in ((True, "a quick dog"), (False, " a quick dog")):
        made = Detokenizer(tok, skip_special=True, at_start=at_start)
        assert "".join(made.add(id_) for id_ in ids) == want


@pytest.mark.parametrize(
    ("prompt", "want"), [([1], "a dog"), ([1, 3], "a dog"), ([1, 70], " a dog")]
)
def test_a_prompt_of_special_tokens_alone_starts_a_text(prompt, want):
    tok = of_kind("llama2")
    ids = tok.encode("a dog", "start")
    choice = ChoiceOutput(tok, Asked(rid="r", prompt_ids=prompt, params=SamplingParams()))
    assert choice.add(Output(key=1, ids=ids, finish="length"), 0).text == want


@st.composite
def cases(draw):
    ids = draw(streams.filter(bool))
    skip = draw(st.booleans())
    text = decoded(ids, skip=skip)
    stops = draw(st.lists(st.text("ab\n ä日", min_size=1, max_size=3), max_size=3))
    for _ in range(draw(st.integers(0, 2))):  # stops that are really there
        a = draw(st.integers(0, max(0, len(text) - 1)))
        part = text[a : a + draw(st.integers(1, 4))]
        stops += [part] if part else []
    params = SamplingParams(
        stop=tuple(stops),
        stop_regex=tuple(draw(st.lists(st.sampled_from(["a+b", "日|ä", r"\n\s"]), max_size=1))),
        min_new_tokens=draw(st.integers(0, 4)),
        no_stop_trim=draw(st.booleans()),
        skip_special_tokens=skip,
    )
    return ids, draw(bursts(ids)), params


@given(cases())
@settings(max_examples=300, deadline=None)
def test_the_answer_does_not_depend_on_the_steps(case):
    ids, steps, params = case
    chunks, choice = run(ids, steps, params)
    whole, one = run(ids, [ids], params)
    got, want = answer_of(chunks), answer_of(whole)
    assert len(whole) == 1
    assert got == want
    assert choice.length == one.length == len(got.output_ids) == got.completion_tokens
    assert [chunk.finish is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.rendered for chunk in chunks] == [["mark"]] + [None] * (len(chunks) - 1)
    assert [entry.token_id for entry in got.logprobs] == got.output_ids
    assert [entry.logprob for entry in got.logprobs] == [
        -float(i) for i in range(got.completion_tokens)
    ]


@given(cases())
@settings(max_examples=300, deadline=None)
def test_a_stop_cuts_text_tokens_and_segments(case):
    ids, steps, params = case
    if params.stop_regex:
        return  # `test_text_stops` knows where those are
    chunks, _ = run(ids, steps, params)
    answer = answer_of(chunks)
    skip = params.skip_special_tokens
    text, ends, floor = decoded(ids, skip=skip), counted(ids, skip=skip), 0
    if params.min_new_tokens > len(ids):
        floor = len(text)
    elif params.min_new_tokens > 1:
        floor = ends[params.min_new_tokens - 2]
    found = [
        (at, at + len(stop), order, stop)
        for order, stop in enumerate(params.stop)
        for at in range(len(text))
        if text.startswith(stop, at) and at + len(stop) > floor
    ]
    if not found:
        assert answer.text == text
        assert answer.output_ids == ids
        assert answer.finish == Finish("length", length=len(ids))
        assert answer.segments == [Ids(ids)]
        return
    start, end, _, stop = min(found)
    upto = end if params.no_stop_trim else start
    assert answer.text == text[:upto]
    assert answer.finish == Finish("stop", matched=stop)
    count = next(i for i, size in enumerate(ends, 1) if size >= end)
    assert answer.output_ids == ids[:count]
    # Segments say the same text, and end inside no character.
    parts = [s.text if isinstance(s, Text) else s.ids for s in answer.segments]
    kept = parts[0] if parts and isinstance(parts[0], list) else []
    rest = parts[-1] if parts and isinstance(parts[-1], str) else ""
    assert kept == ids[: len(kept)]
    assert decoded(kept, skip=skip) + rest == answer.text
    # No more is cut than must be: the next token would reach beyond, or ends inside a character.
    for more in range(len(kept) + 1, count + 1):
        reaches = ends[more - 1] > upto
        broken = decoded(ids[:more], skip=skip) != text[: ends[more - 1]]
        assert reaches or broken or decoded(ids[:more], skip=True).endswith("\ufffd")


def test_a_character_is_never_sent_broken():
    ids = ids_of("日😀ä")
    chunks, _ = run(ids, [[id_] for id_ in ids], SamplingParams())
    assert [chunk.text for chunk in chunks if chunk.text] == ["日", "😀", "ä"]
    assert sum(len(chunk.output_ids) for chunk in chunks) == len(ids)


def test_what_may_become_a_stop_is_held_back_and_then_sent():
    ids = ids_of("a###b")
    chunks, _ = run(ids, [[id_] for id_ in ids], SamplingParams(stop=("###!",)))
    assert [chunk.text for chunk in chunks] == ["a", "", "", "", "###b"]


def test_the_rest_of_a_token_that_a_stop_cuts_becomes_text():
    tok = tiny()
    word = next(i for i in range(3, 384) if len(tok.text_of(i)) >= 4 and tok.text_of(i).isascii())
    text = tok.text_of(word)
    ids = [ids_of("a")[0], word]
    for trim, want, segments in (
        (False, "a" + text[:2], [Ids(ids[:1]), Text(text[:2])]),
        (True, "a" + text[:3], [Ids(ids[:1]), Text(text[:3])]),
    ):
        answer = answer_of(run(ids, [ids], SamplingParams(stop=(text[2],), no_stop_trim=trim))[0])
        assert (answer.text, answer.segments, answer.output_ids) == (want, segments, ids)


@pytest.mark.parametrize("skip", [True, False])
def test_an_eos_is_counted_but_in_no_text_and_no_segment(skip):
    ids = [*ids_of("ab"), EOS]
    params = SamplingParams(skip_special_tokens=skip)
    answer = answer_of(run(ids, [ids[:1], ids[1:]], params, finish="stop", matched=EOS)[0])
    assert (answer.text, answer.output_ids, answer.completion_tokens) == ("ab", ids, 3)
    assert answer.segments == [Ids(ids[:2])]
    assert answer.finish == Finish("stop", matched=EOS)


@pytest.mark.parametrize(("skip", "text"), [(True, "ab"), (False, "ab<|im_end|>")])
def test_without_trim_the_stop_token_is_shown_where_special_tokens_are(skip, text):
    ids = [*ids_of("ab"), EOS]
    params = SamplingParams(skip_special_tokens=skip, no_stop_trim=True)
    answer = answer_of(run(ids, [ids], params, finish="stop", matched=EOS)[0])
    assert answer.text == text
    assert answer.segments == [Ids(ids[:2] if skip else ids)]


@pytest.mark.parametrize(("keep", "text"), [(False, "ab"), (True, "ab<|im_end|>")])
def test_a_stop_string_that_is_a_special_token_is_named_as_given(keep, text):
    ids = [*ids_of("ab"), EOS]
    params = SamplingParams(stop=("<|im_end|>",), no_stop_trim=keep)
    answer = answer_of(
        run(ids, [ids], params, finish="stop", matched=EOS, stop_texts={EOS: "<|im_end|>"})[0]
    )
    assert (answer.text, answer.finish) == (text, Finish("stop", matched="<|im_end|>"))


def test_an_incomplete_character_before_eos_ends_the_text_and_leaves_eos_out():
    ids = [*ids_of("日")[:2], EOS]
    answer = answer_of(run(ids, [ids], SamplingParams(), finish="stop", matched=EOS)[0])
    assert answer.text == "\ufffd"
    assert answer.segments == [Ids(ids[:2])]


def test_a_stop_of_the_grammar_matches_no_token():
    ids = ids_of("ab")
    answer = answer_of(run(ids, [ids], SamplingParams(), finish="stop")[0])
    assert (answer.finish, answer.segments) == (Finish("stop"), [Ids(ids)])


def test_prefill_only_gives_one_chunk():
    chunks, choice = run([], [[]], SamplingParams(max_new_tokens=0))
    assert [(c.text, c.output_ids, c.segments) for c in chunks] == [("", [], [])]
    assert chunks[0].finish == Finish("length", length=0)
    assert choice.length == 0


def test_an_abort_sends_what_was_held_back():
    asked = Asked(rid="r", prompt_ids=[5], params=SamplingParams(stop=("abc",)))
    choice = ChoiceOutput(tiny(), asked)
    assert choice.add(Output(key=1, ids=ids_of("xab") + ids_of("日")[:1]), 0).text == "x"
    chunk = choice.abort("why")
    assert (chunk.text, chunk.finish) == ("ab\ufffd", Finish("abort", message="why"))
    assert ChoiceOutput(tiny(), asked).abort("early").text == ""


@given(st.integers(1, 40))
@settings(max_examples=20, deadline=None)
@example(3)
def test_min_new_tokens_counts_the_token_that_completes_the_stop(least):
    ids = ids_of("x" * 30)
    params = SamplingParams(stop=("x",), min_new_tokens=least)
    answer = answer_of(run(ids, [[i] for i in ids], params)[0])
    if least > 30:
        assert answer.finish.type == "length"
    else:
        assert (answer.completion_tokens, answer.text) == (max(1, least), "x" * (least - 1))
