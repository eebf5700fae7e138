"""The beams of a search as requests that share pages.

A search is one request in the queues. It is prefilled like any other; then it has beams, each a
`Request` of its own with the prompt and its output, which all decode in the same step. A beam that
parts from another forks its sequence: whole pages are shared, and a copy is ordered of the rows in
the page where they part. After a retraction the beams come back one after the other, so that what
they share is computed once. This module knows no queue, and no scores.
"""

from __future__ import annotations

from itertools import pairwise

from boughs.radix import PrefixCache
from boughs.runtime.core.request import Request
from boughs.runtime.core.tokens import common


def regroup(cache: PrefixCache, group: Request, parents: list[int]) -> None:
    """After a step of the search, let its beams follow.

    The first child of a beam takes over its sequence. The others are to fork it, so it is
    committed. A beam without a child is released; what it computed is of use to nobody, unless
    an output ended there.

    Args:
        cache: Where the sequences are.
        group: The search; its last token of each beam is computed.
        parents: Of each beam now, the index of the one before.
    """
    assert group.search is not None, "only a search has beams"
    before = group.beams or [_first(group)]
    heirs: dict[int, Request] = {}
    group.beams = []
    for parent, beam in zip(parents, group.search.beams, strict=True):
        heir = heirs.get(parent)
        if heir is None:
            member = heirs[parent] = before[parent]
            member.tokens.append(beam.ids[-1])
        else:
            _commit(cache, heir)
            member = _member(group, heir)
            member.tokens[-1] = beam.ids[-1]
            member.heir_of = heir
        group.beams.append(member)
    for index, member in enumerate(before):
        if index in group.search.closed:
            _commit(cache, member)
        if index not in heirs:
            assert member.sequence is not None, "a beam that has computed has pages"
            cache.release(member.sequence)
            member.sequence = None


def wants(cache: PrefixCache, group: Request, page_size: int) -> tuple[int, int]:
    """What `next_works` could do now: the tokens that it would compute, and pages that suffice.

    Changes nothing. The beams before the first that has more to compute than its last token are
    placed, and that one; those that have yet to find their place may each need a page more than
    their tokens do, for a copy.
    """
    tokens = len(group.beams)
    pages = 0
    placed = [(beam, _committed(beam)) for beam in group.beams if beam.sequence is not None]
    for beam in group.beams:
        length = len(beam.tokens)
        pages += -(-length // page_size)
        known = beam.computed
        heir = beam.heir_of.sequence if beam.heir_of is not None else None
        if beam.sequence is not None:
            pages -= len(beam.sequence.pages)
        elif heir is not None:
            known = beam.matchable
            pages += bool(heir.node.children) - known // page_size
        else:
            shared = max(min(common(beam.tokens, o.tokens), end) for o, end in placed)
            shared = min(shared, beam.matchable)
            pages += 1 - shared // page_size
            known = max(
                shared, cache.peek(beam.token_bytes(beam.matchable), group.submit.namespace)
            )
            placed.append((beam, known))
        if length - known > 1:
            return max(tokens, length - known - 1), pages
    return tokens, pages


def next_works(cache: PrefixCache, group: Request, budget: int) -> list[tuple[Request, int]]:
    """What to compute of a search's beams next: a chunk of one, or the last token of all.

    Args:
        cache: Gives the pages, of which there are enough (`wants`).
        group: Has beams, of which some may have no sequence yet.
        budget: Tokens, at least as many as there are beams.
    """
    for beam in group.beams:
        if beam.sequence is None:
            _place(cache, group, beam)
        assert beam.sequence is not None, "it was placed"
        cache.grow(beam.sequence, len(beam.tokens))
        if beam.remaining > 1:  # the beams after it may share what it computes
            return [(beam, min(budget, beam.remaining - 1))]
    assert budget >= len(group.beams), "beams decode all in one step"
    return [(beam, 1) for beam in group.beams]


def pages_wanted(group: Request, page_size: int) -> int:
    """How many different pages the beams' tokens need."""
    beams = sorted(group.beams, key=lambda beam: beam.token_bytes())
    total = -(-len(beams[0].tokens) // page_size)
    for before, beam in pairwise(beams):  # what a beam shares with any, it shares with a neighbour
        total += -(-len(beam.tokens) // page_size) - common(before.tokens, beam.tokens) // page_size
    return total


def _first(group: Request) -> Request:
    """The one beam of a search whose prompt is computed: it takes over the pages."""
    member = _member(group, group)
    member.sequence, member.computed = group.sequence, group.computed
    group.sequence, group.computed = None, 0
    return member


def _member(group: Request, like: Request) -> Request:
    """A beam with the tokens of `like`, and without pages."""
    return Request(
        submit=group.submit,
        arrival=group.arrival,
        limit=group.limit,
        tokens=like.tokens[:],
        row=group.row,
        prompt_logprobs=group.prompt_logprobs,
        group=group,
        queued=None,
    )


def _committed(beam: Request) -> int:
    """How many tokens of a beam with pages can be forked."""
    assert beam.sequence is not None, "it has pages"
    return beam.sequence.node.end


def _commit(cache: PrefixCache, beam: Request) -> None:
    assert beam.sequence is not None, "a beam that has computed has pages"
    cache.commit(beam.sequence, beam.token_bytes(beam.computed), beam.computed)


def _place(cache: PrefixCache, group: Request, beam: Request) -> None:
    """Give a beam a sequence that shares as much as is computed."""
    source = beam.heir_of
    beam.heir_of = None
    namespace = group.submit.namespace
    if source is not None and source.sequence is not None:
        beam.sequence = cache.fork(source.sequence, beam.matchable)
    else:
        placed = [
            (
                min(common(beam.tokens, other.tokens), beam.matchable, _committed(other)),
                other.sequence,
            )
            for other in group.beams
            if other.sequence is not None
        ]
        shared, sequence = max(placed, key=lambda pair: pair[0])
        known = beam.token_bytes(beam.matchable)
        if shared >= cache.peek(known, namespace):
            beam.sequence = cache.fork(sequence, shared)
        else:
            beam.sequence = cache.admit(
                known, namespace, length=len(beam.tokens), priority=group.priority
            )
    beam.computed = beam.sequence.cached
