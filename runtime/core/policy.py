"""The scheduler's choices, as functions of plain numbers.

Which waiting request is tried first, which running one gives way, who waits for whom, and how many
pages an admission leaves free. This module moves no request and knows no pages but their number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from boughs.radix import Price
from boughs.runtime.core.tokens import common

AGED_AFTER = 64
"""Steps after which a waiting request comes before all that arrived later, whatever the policy."""

FORESEEN = 4096
"""Tokens that a request is expected to generate at most, for the reserve."""

Key = tuple[object, ...]


class Ranked(Protocol):
    """What has a rank among those that run."""

    @property
    def priority(self) -> int:
        """Higher goes first."""

    @property
    def arrival(self) -> int:
        """Position in the order of arrival."""


class Candidate(NamedTuple):
    """A waiting request.

    Attributes:
        key: Names it.
        priority: Higher goes first.
        arrival: Position in the order of arrival.
        since: The step in which it began to wait.
        namespace: What shares prefixes, for the order.
        scope: Requests of another scope share no prefix with it.
        tokens: All that it has, as int32 bytes.
        matched: How many of them are cached.
        matchable: How many may be.
        leaders: Keys of running requests that it waits for (`follows`).
        width: Places that it takes.
        reserve: Pages to leave free for what it may yet generate (`reserve`).
        price: What its admission takes of the pages to be had.
    """

    key: int
    priority: int
    arrival: int
    since: int
    namespace: str
    scope: Hashable
    tokens: bytes
    matched: int
    matchable: int
    leaders: tuple[int, ...]
    width: int
    reserve: int
    price: Price

    @property
    def place(self) -> tuple[str, bytes]:
        """Where in the tree its prompt is: sorted by this, prompts are in the order of a DFS."""
        return self.namespace, self.tokens


def order(
    policy: str, waiting: Iterable[Candidate], now: int, last: tuple[str, bytes] = ("", b"")
) -> list[Candidate]:
    """The order in which to admit: priority, then age or the policy's key, then arrival.

    Args:
        policy: One of `POLICIES`.
        waiting: The candidates.
        now: The number of this step.
        last: The place of the request admitted last; `dfs` goes on from there.
    """
    key = POLICIES[policy]

    def rank(candidate: Candidate) -> Key:
        aged = is_aged(candidate, now)
        own = () if aged else key(candidate, last)
        return (-candidate.priority, not aged, *own, candidate.arrival)

    return sorted(waiting, key=rank)


def is_aged(candidate: Candidate, now: int) -> bool:
    """Whether a request has waited so long that nobody who came later may pass it."""
    return now - candidate.since >= AGED_AFTER


def blocks(policy: str, candidate: Candidate, now: int) -> bool:
    """Whether a request that finds no room keeps those behind it from being tried."""
    return policy in ("fcfs", "priority") or is_aged(candidate, now)


POLICIES: dict[str, Callable[[Candidate, tuple[str, bytes]], Key]] = {
    "lpm": lambda candidate, _: (-candidate.matched,),
    "dfs": lambda candidate, last: (candidate.place < last, candidate.place),
    "fcfs": lambda _, __: (),
    "priority": lambda _, __: (),
}
"""What orders waiting requests of one priority: the longest cached prefix; the tree, depth first,
from where it has come to; arrival; arrival, too, but a running request gives way to one of higher
priority that finds no room."""


R = TypeVar("R", bound=Ranked)


def victims(running: Iterable[R]) -> list[R]:
    """In what order they give their pages back: of the lowest priority the last arrived first."""
    return sorted(running, key=lambda one: (one.priority, -one.arrival))


def gives_way(policy: str, running: Ranked, candidate: Ranked) -> bool:
    """Whether what runs is retracted so that what waits finds room."""
    return policy == "priority" and running.priority < candidate.priority


def reserve(left: int, width: int, page_size: int, conservativeness: float) -> int:
    """Pages that an admission leaves free for one request that decodes.

    A page for each token that it decodes in a step, or the share `conservativeness` of what it may
    yet generate, if that is more.

    Args:
        left: Tokens that it may yet generate.
        width: Tokens that it decodes in a step.
        page_size: Tokens per page.
        conservativeness: A share.
    """
    share = -(-int(min(left, FORESEEN) * conservativeness) // page_size)
    return width * max(1, share)


def follows(shared: int, matchable: int, matched: int, computed: int, page_size: int) -> bool:
    """Whether a request that prefills has still to compute a page that a waiting one needs, too.

    Or all that this one needs, however little: choices of one prompt compute it once.

    Args:
        shared: Leading tokens that both have.
        matchable: How many tokens of the one that waits may come from the cache. A prompt's own
            last token is always computed, so it is nothing to wait for.
        matched: How many of them are cached.
        computed: How many the other one has computed; these are in the tree.
        page_size: Tokens per page.
    """
    shared = min(shared, matchable)
    if computed >= shared or shared <= matched:
        return False
    return shared == matchable or shared - matched >= page_size


def goes_along(candidate: Candidate, leader: Candidate, page_size: int) -> bool:
    """Whether a waiting request follows one that is just being admitted."""
    at = 4 * candidate.matched
    if candidate.scope != leader.scope or candidate.matched >= candidate.matchable:
        return False
    if candidate.tokens[at : at + 4] != leader.tokens[at : at + 4]:
        return False  # what they share is cached
    shared = common(candidate.tokens, leader.tokens)
    return follows(shared, candidate.matchable, candidate.matched, leader.matched, page_size)
