"""What the next step computes, as a function of plain numbers.

A `View` says what each request wants and what its pages cost; `decide` chooses; the scheduler
carries the `Decision` out. Running decodes come first, then the chunks of running prefills, then
waiting requests are admitted. Where the pages are too few for what runs, requests are retracted,
as many as it takes, and nobody is admitted. What is decided never needs more pages than there are.

This module knows no request, no cache and no queue: the same view gives the same decision, and
nothing else comes of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from boughs.runtime.core.policy import Candidate, blocks, gives_way, goes_along, order


class Running(NamedTuple):
    """A running request.

    Attributes:
        key: Names it.
        tokens: Most that it can compute in this step.
        least: Less than so many are of no use to it.
        pages: Pages that it needs for that.
    """

    key: int
    tokens: int
    least: int
    pages: int


class Victim(NamedTuple):
    """A running request that may be retracted.

    Attributes:
        key: Names it.
        priority: Higher goes first.
        arrival: Position in the order of arrival.
        refund: Pages that come free when it goes, all before it in the order having gone.
        freed: Names of the tree's nodes that are unlocked then.
        width: Places that it takes.
        reserve: Pages that an admission leaves free for it.
        patient: Whether it rather waits with what it has while others compute: a beam search.
    """

    key: int
    priority: int
    arrival: int
    refund: int
    freed: frozenset[int]
    width: int
    reserve: int
    patient: bool


@dataclass(slots=True)
class View:
    """All that a decision depends on.

    Attributes:
        decoding: Requests that run and decode, in the order of arrival.
        prefilling: Requests that run and prefill, likewise.
        budget: Tokens of the step.
        available: Pages to be had.
        page_size: Tokens per page.
        policy: One of `policy.POLICIES`.
        step: The number of the step.
        last: The place of what was admitted last.
        places: How many more may run.
        reserve: Pages that an admission leaves free for what runs.
        unconfirmed: Whether pages are held by requests that have ended.
        victims: In the order in which they are retracted, as far as that may come to pass.
        waiting: Those that may be admitted; none where none is to be.
    """

    decoding: list[Running]
    prefilling: list[Running]
    budget: int
    available: int
    page_size: int
    policy: str = "lpm"
    step: int = 0
    last: tuple[str, bytes] = ("", b"")
    places: int = 0
    reserve: int = 0
    unconfirmed: bool = False
    victims: list[Victim] = field(default_factory=list)
    waiting: list[Candidate] = field(default_factory=list)


@dataclass(slots=True)
class Decision:
    """What is to be done, in this order.

    Attributes:
        retracted: Requests whose pages are taken.
        works: Running requests that compute, and so many tokens at most.
        admitted: Waiting ones that are begun, likewise.
    """

    retracted: list[int] = field(default_factory=list)
    works: list[tuple[int, int]] = field(default_factory=list)
    admitted: list[tuple[int, int]] = field(default_factory=list)

    def __bool__(self) -> bool:
        """Whether anything is to be done."""
        return bool(self.works or self.retracted or self.admitted)


def decide(view: View) -> Decision:
    """What the next step computes, and who is retracted and admitted for it."""
    decision = Decision()
    need = _share(view, decision)
    if need > view.available:
        _retract(view, decision, need)
    elif view.waiting:
        _Admission(view, decision, need).run()
    return decision


def _share(view: View, decision: Decision, without: Iterable[int] = ()) -> int:
    """Share the budget out among what runs, but for some; the pages that this needs."""
    left, need = view.budget, 0
    works = decision.works = []
    for running in (view.decoding, view.prefilling):
        for key, tokens, least, pages in running:
            count = min(tokens, left)
            if count >= least and key not in without:
                works.append((key, count))
                left -= count
                need += pages
    return need


def _retract(view: View, decision: Decision, need: int) -> None:
    """Take the pages of the last in rank, until those that are left suffice for the others.

    A request that is alone may still hold a page too many: its own copy of one that the tree
    lists. Retracted, it is admitted again without it. It waits instead where the front is about to
    give pages back; a search, where others compute without it.
    """
    have, idle = view.available, set[int]()
    total = len(view.decoding) + len(view.prefilling)
    for victim in view.victims:
        if need <= have:
            return
        last = len(decision.retracted) == total - 1
        idle.add(victim.key)
        need = _share(view, decision, idle)
        if last and view.unconfirmed:
            return
        if victim.patient and decision.works and need <= have:
            return
        decision.retracted.append(victim.key)
        have += victim.refund


@dataclass(slots=True)
class _Room:
    """What is left for those that are admitted.

    Attributes:
        tokens: Of the budget.
        pages: To be had.
        reserve: Of these, pages to leave free.
        places: How many more may run.
        others: How many run.
        gone: How many of the victims have gone.
        freed: Nodes that have been unlocked with them.
    """

    tokens: int
    pages: int
    reserve: int
    places: int
    others: int
    gone: int = 0
    freed: frozenset[int] = frozenset()


class _Admission:
    """Begins waiting requests, as far as budget, places and pages go."""

    def __init__(self, view: View, decision: Decision, need: int) -> None:
        self._view = view
        self._decision = decision
        self._running = {one.key: one for one in (*view.decoding, *view.prefilling)}
        self._room = _Room(
            tokens=view.budget - sum(count for _, count in decision.works),
            pages=view.available - need,
            reserve=view.reserve,
            places=view.places,
            others=len(self._running),
        )
        self._begun: list[Candidate] = []
        self._taken: dict[int, int] = {}  # whole pages of nodes that admissions have locked

    def run(self) -> None:
        """Try them in order."""
        view, size = self._view, self._view.page_size
        for candidate in order(view.policy, view.waiting, view.step, view.last):
            if self._room.tokens <= 0:
                return
            if any(key not in self._decision.retracted for key in candidate.leaders):
                continue
            if any(goes_along(candidate, leader, size) for leader in self._begun):
                continue
            room = self._make_room(candidate)
            if room is not None:
                self._begin(candidate, room)
            elif blocks(view.policy, candidate, view.step):
                return  # what comes free is for this one

    def _make_room(self, candidate: Candidate) -> _Room | None:
        """The room in which it fits, with those retracted that must and do give way to it."""
        room = self._room
        while not self._fits(candidate, room):
            if room.gone == len(self._view.victims):
                return None
            victim = self._view.victims[room.gone]
            if not gives_way(self._view.policy, victim, candidate):
                return None
            room = self._without(victim, room)
        return room

    def _fits(self, candidate: Candidate, room: _Room) -> bool:
        """Whether there are places, tokens and pages for it; a copy's page is the reserve's."""
        if candidate.width > min(room.places, room.tokens):
            return False
        need = self._pages(candidate, room)
        if room.others:  # one that is alone may take all there is
            need += room.reserve + candidate.reserve
        return need <= room.pages

    def _pages(self, candidate: Candidate, room: _Room) -> int:
        """Pages that its admission takes now."""
        pages = candidate.price.pages
        for node, whole, held in candidate.price.path:
            if not held or node in room.freed:
                pages += whole * held - min(whole, self._taken.get(node, 0))
        return pages

    def _without(self, victim: Victim, room: _Room) -> _Room:
        """The room when a victim has gone, and computes nothing."""
        works = dict(self._decision.works)
        saved = self._running[victim.key].pages if victim.key in works else 0
        kept = sum(self._taken.get(node, 0) for node in victim.freed)
        return _Room(
            tokens=room.tokens + works.get(victim.key, 0),
            pages=room.pages + victim.refund + saved - kept,
            reserve=room.reserve - victim.reserve,
            places=room.places + victim.width,
            others=room.others - 1,
            gone=room.gone + 1,
            freed=room.freed | victim.freed,
        )

    def _begin(self, candidate: Candidate, room: _Room) -> None:
        decision = self._decision
        for victim in self._view.victims[self._room.gone : room.gone]:
            decision.retracted.append(victim.key)
            decision.works = [work for work in decision.works if work[0] != victim.key]
        remaining = len(candidate.tokens) // 4 - candidate.matched
        count = min(room.tokens, max(candidate.width, remaining))
        decision.admitted.append((candidate.key, count))
        room.tokens -= count
        # Where a victim commits before, the match may change, and end inside a page.
        room.pages -= self._pages(candidate, room) + (candidate.price.copies or room.gone > 0)
        room.reserve += candidate.reserve
        room.places -= candidate.width
        room.others += 1
        for node, whole, _ in candidate.price.path:
            self._taken[node] = max(whole, self._taken.get(node, 0))
        self._begun.append(candidate)
        self._room = room
