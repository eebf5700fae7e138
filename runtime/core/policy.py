"""The scheduler's choices, as functions of what it knows. They change nothing.

Which waiting request is tried first, which running one gives way, who waits for whom, and how many
pages an admission leaves free. This module moves no request and knows no pages but their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from boughs.runtime.core.group import common
from boughs.runtime.core.request import Request

AGED_AFTER = 64
"""Steps after which a waiting request comes before all that arrived later, whatever the policy."""

FORESEEN = 4096
"""Tokens that a request is expected to generate at most, for the reserve."""

Key = tuple[object, ...]


class Candidate(NamedTuple):
    """A waiting request, and how many of its tokens are cached."""

    request: Request
    matched: int

    @property
    def place(self) -> tuple[str, bytes]:
        """Where in the tree its prompt is: sorted by this, prompts are in the order of a DFS."""
        return self.request.submit.namespace, self.request.place


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
        request = candidate.request
        aged = is_aged(request, now)
        own = () if aged else key(candidate, last)
        return (-request.priority, not aged, *own, request.arrival)

    return sorted(waiting, key=rank)


def is_aged(request: Request, now: int) -> bool:
    """Whether a request has waited so long that nobody who came later may pass it."""
    assert request.since is not None, "it waits"
    return now - request.since >= AGED_AFTER


def blocks(policy: str, request: Request, now: int) -> bool:
    """Whether a request that finds no room keeps those behind it from being tried."""
    return policy in ("fcfs", "priority") or is_aged(request, now)


POLICIES: dict[str, Callable[[Candidate, tuple[str, bytes]], Key]] = {
    "lpm": lambda candidate, _: (-candidate.matched,),
    "dfs": lambda candidate, last: (candidate.place < last, candidate.place),
    "fcfs": lambda _, __: (),
    "priority": lambda _, __: (),
}
"""What orders waiting requests of one priority: the longest cached prefix; the tree, depth first,
from where it has come to; arrival; arrival, too, but a running request gives way to one of higher
priority that finds no room."""


def victim(running: Sequence[Request]) -> Request:
    """Who gives its pages back when they are short: of the lowest priority the last arrived."""
    return min(running, key=lambda request: (request.priority, -request.arrival))


def gives_way(policy: str, running: Sequence[Request], request: Request) -> Request | None:
    """Who is retracted so that a waiting request finds room, if anybody is."""
    if policy != "priority" or not running:
        return None
    lowest = victim(running)
    return lowest if lowest.priority < request.priority else None


def reserve(
    running: Iterable[Request], request: Request, page_size: int, conservativeness: float
) -> int:
    """Pages that an admission leaves free for what runs, and for the newcomer beside others.

    One for each that goes on to decode, or the share `conservativeness` of what it may yet
    generate, if that is more. A request that is alone may take all there is.
    """
    others = list(running)
    if not others:
        return 0
    pages = 0
    for one in (*others, request):
        left = min(one.limit - one.longest, FORESEEN)
        if one is not request or left > 0:
            share = -(-int(left * conservativeness) // page_size)
            pages += one.width * max(1, share)
    return pages


def follows(request: Request, matched: int, leader: Request, page_size: int) -> bool:
    """Whether a running request is still prefilling a page that a waiting one needs, too.

    Or all that this one needs, however little: choices of one prompt compute it once.

    Args:
        request: Waits. Remembers what it shares with whom.
        matched: How many of its tokens are cached.
        leader: Runs.
        page_size: Tokens per page.
    """
    if matched >= request.matchable:
        return False
    if not leader.prefilling or leader.scope != request.scope:
        return False
    shared = request.common.get(leader.key)
    if shared is None:
        shared = request.common[leader.key] = common(request, leader)
    # A prompt's own last token is always computed, so it is nothing to wait for.
    shared = min(shared, request.matchable)
    if leader.computed >= shared or shared <= matched:
        return False  # what it has computed is in the tree
    return shared == request.matchable or shared - matched >= page_size
