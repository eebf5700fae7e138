"""Faults that users of such systems report, one test each: what happens at the edges of pages."""

import pytest
from boughs_fixtures_cache_world import assert_empty, encode, start, step, store

from boughs.radix import PrefixCache


@pytest.mark.parametrize("page_size", [1, 2, 4, 8, 16, 64])
def test_matching_is_exact_to_the_token(page_size):
    tokens = list(range(2 * page_size + 3))
    for length in range(1, len(tokens) + 1):
        cache = PrefixCache(20, page_size)
        store(cache, encode(tokens))
        again = [*tokens[:length], 999]
        assert cache.peek(encode(again)) == length
        sequence = start(cache, encode(again))
        assert sequence.cached == length
        orders = cache.take_copies()
        # Nobody goes on in the last page of a prompt: that one needs no copy.
        cut = length % page_size if length < len(tokens) else 0
        assert [order.rows for order in orders] == [cut][:cut]
        cache.copies_done(orders)
        cache.commit(sequence, encode(again), length + 1)
        cache.release(sequence)
        assert cache.peek(encode(again)) == length + 1
        assert cache.peek(encode(tokens)) == len(tokens)
        assert_empty(cache)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
def test_a_prompt_that_is_wholly_cached_leaves_its_last_token_to_compute(length):
    cache = PrefixCache(20, 4)
    tokens = encode(range(length))
    store(cache, tokens)
    sequence = cache.admit(tokens[:-4])
    cache.grow(sequence, length)
    assert sequence.cached == length - 1
    step(cache)
    cache.commit(sequence, tokens, length)
    cache.check()
    cache.release(sequence)
    assert cache.peek(tokens) == length
    assert_empty(cache)


@pytest.mark.parametrize("length", [29, 32])
def test_alone_a_request_may_fill_the_pool_whatever_is_cached(length):
    """No match may cost the page that its own request then lacks."""
    for cached in range(1, length):
        for shared in range(cached + 1):
            cache = PrefixCache(9, 4)
            store(cache, encode(range(cached)))
            tokens = encode([*range(shared), *range(100, 100 + length - shared)])
            sequence = cache.admit(tokens[:-4])
            cache.grow(sequence, length)
            assert sequence.cached >= shared // 4 * 4
            step(cache)
            cache.commit(sequence, tokens, length)
            cache.release(sequence)
            assert_empty(cache)


def test_a_match_takes_no_copy_where_the_request_would_lack_the_page():
    for length, cached in ((None, 6), (28, 6), (29, 4)):
        cache = PrefixCache(9, 4)
        store(cache, encode(range(7)))
        other = cache.admit(b"")
        sequence = cache.admit(encode([*range(6), 9]), length=length)
        assert sequence.cached == cached
        cache.grow(sequence, 28 if length is None else length)
        cache.release(sequence)
        cache.release(other)
        assert_empty(cache)


def test_turns_of_a_conversation_go_on_in_their_last_page():
    cache = PrefixCache(40, 16)
    tokens = []
    for turn in range(12):
        tokens += [turn * 10 + k for k in range(5)]
        assert store(cache, encode(tokens)) == len(tokens) - 5
        stats = cache.stats()
        assert (stats.cached, stats.nodes, stats.copies) == (-(-len(tokens) // 16), 1, 0)
    assert_empty(cache)


def test_only_one_goes_on_in_the_last_page():
    cache = PrefixCache(40, 16)
    tokens = encode(range(20))
    store(cache, tokens)
    sequences = [start(cache, encode([*range(20), 50 + k])) for k in range(3)]
    cache.check()
    assert [sequence.cached for sequence in sequences] == [20] * 3
    assert len({sequence.pages[1] for sequence in sequences}) == 3
    orders = cache.take_copies()
    assert [order.source for order in orders] == [sequences[0].pages[1]] * 2
    cache.copies_done(orders)
    cache.release(sequences.pop(0))
    sequences.append(start(cache, encode([*range(20), 60])))  # the page is without a writer again
    assert cache.take_copies() == []
    for k, sequence in enumerate(sequences):
        cache.commit(sequence, encode([*range(20), 70 + k]), 21)
        cache.check()
    for sequence in sequences:
        cache.release(sequence)
    assert_empty(cache)


def test_branches_inside_a_page_bind_no_page_more_than_their_tokens():
    """A prompt that leaves another inside a page, and another that, and so on."""
    cache = PrefixCache(40, 16)
    tokens = []
    for turn in range(12):
        tokens = [*tokens[:-1], *(turn * 10 + k for k in range(4))]
        store(cache, encode(tokens))
    held = cache.admit(encode(tokens))
    pages = -(-len(tokens) // 16)
    assert len(held.pages) == pages
    assert cache.available() == cache.stats().pages - pages
    cache.release(held)
    assert_empty(cache)
