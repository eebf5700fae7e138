"""Stops found in a growing text, against a search of the whole text."""

import pytest
import regex
from hypothesis import example, given, settings, strategies as st

from boughs.lang.errors import InvalidRequest
from boughs.runtime.front import stops
from boughs.runtime.front.stops import StopFinder, compile_patterns

ALPHABET = "ab\nä"
texts = st.text(ALPHABET, max_size=14)
literals = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=4)
PATTERNS = [
    "a+b", "ab?a", "a{2,3}", r"\n\n", "(?:ab)+$", "b(?=a)", "(?<=a)b", "a|abb", "[ab]*ä", r"\bb",
    "b(?!a)", "^a", "a.*?b", "(a)(b)\\2?\\1", "ä\\Z",
]  # fmt: skip
patterns = st.lists(st.sampled_from(PATTERNS), max_size=3)


@st.composite
def cut_texts(draw):
    """A text, cut into pieces, and from which piece on stops count."""
    text = draw(texts)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    return text, pieces, draw(st.integers(0, len(pieces)))


def naive(text, given, sources, floor):
    """(start, seen, order, end, stop) of the winner, by trying everything."""
    found = []
    for order, stop in enumerate(given):
        for at in range(len(text)):
            end = at + len(stop)
            if text.startswith(stop, at) and end > floor:
                found.append((at, end, order, end, stop))
    for order, source in enumerate(sources, len(given)):
        for at in range(len(text)):
            for seen in range(at + 1, len(text) + 1):
                match = regex.compile(source).match(text, at, seen, partial=True)
                if match is not None and match.partial:
                    continue
                if match is not None and seen > floor:
                    found.append((at, seen, order, match.end(), source))
                break
    return min(found, default=None)


def find(pieces, given, sources, counts_from=0):
    """The winner and what was safe after each piece, read until the winner is final."""
    finder = StopFinder(given, compile_patterns(sources))
    safe = []
    for at, piece in enumerate(pieces):
        finder.feed(piece, counts=at >= counts_from)
        safe.append(finder.safe)
        if finder.final:
            break
    return finder.best, safe


@given(cut_texts(), literals, patterns)
@settings(max_examples=600, deadline=None)
@example(("abc", ["ab", "c"], 0), ["b", "abc"], [])
@example(("aab", ["a", "a", "b"], 0), ["ab", "aab"], [])
def test_the_winner_is_that_of_the_whole_text_however_it_is_cut(cut, given_, sources):
    text, pieces, counts_from = cut
    floor = len("".join(pieces[:counts_from]))
    best, safe = find(pieces, given_, sources, counts_from)
    want = naive(text, given_, sources, floor)
    assert best == want
    # What may be sent only grows, and never reaches into the stop that is found in the end.
    assert safe == sorted(safe)
    if want is not None:
        assert all(size <= want[0] for size in safe)


@given(texts, literals)
@settings(max_examples=300, deadline=None)
def test_no_more_is_held_back_than_may_become_a_stop(text, given_):
    finder = StopFinder(given_)
    for at, char in enumerate(text, 1):
        finder.feed(char)
        if finder.best is not None:
            break
        so_far = text[:at]
        starts = [i for i in range(at) if any(stop.startswith(so_far[i:]) for stop in given_)]
        assert finder.safe == min(starts, default=at)


def test_the_earliest_in_the_text_wins_whatever_the_order():
    assert find(["one two"], ["two", "one"], [])[0].stop == "one"
    assert find(["o", "ne two"], ["two"], ["n."])[0].start == 1


def test_a_stop_inside_a_longer_one_waits_for_it():
    finder = StopFinder(["b", "abc"])
    finder.feed("ab")
    assert (finder.best.stop, finder.final, finder.safe) == ("b", False, 0)
    finder.feed("x")
    assert (finder.best.stop, finder.final, finder.safe) == ("b", True, 1)


def test_a_long_text_is_not_kept_for_strings():
    finder = StopFinder(["stop"])
    for _ in range(1000):
        finder.feed("x" * 100 + "st")
        finder.feed("y")
    assert finder.safe == 103_000
    assert len(finder._text) < 10


@pytest.mark.parametrize("source", ["(", "a{2,1}", "[", "(?P<n>a)(?P<n", "\\"])
def test_a_pattern_that_is_none_is_refused_by_name(source):
    with pytest.raises(InvalidRequest, match="stop_regex") as caught:
        compile_patterns([source])
    assert caught.value.param == "stop_regex[0]"


@pytest.mark.parametrize("source", ["", "a*", "(a|b?)", "$", "(?=)"])
def test_a_pattern_that_matches_nothing_at_all_is_refused(source):
    with pytest.raises(InvalidRequest, match="empty"):
        compile_patterns([source])


@pytest.mark.parametrize("source", ["(a|aa)+x", "(.*a){20}x", "((a+)+)+x", "(?R)x"])
def test_a_pattern_built_to_explode_ends_with_an_error(source, monkeypatch):
    monkeypatch.setattr(stops, "CALL_SECONDS", 0.02)
    monkeypatch.setattr(stops, "BUDGET_SECONDS", 0.05)
    finder = StopFinder([], compile_patterns([source]))

    def feed_much():
        for _ in range(3000):
            finder.feed("aaaa")

    with pytest.raises(InvalidRequest, match="too long"):
        feed_much()


@pytest.mark.parametrize(
    "source", ["(?:(?:ab{1000}){1000}){1000}", "((a{200}b){200}c)", f"a{{{'9' * 200}}}"]
)
def test_a_pattern_too_large_to_compile_is_refused_unread(source):
    with pytest.raises(InvalidRequest, match="multiply"):
        compile_patterns([source])
