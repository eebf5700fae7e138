"""What can be seen of queues and cache, as the plain numbers that a decision is made of.

Looking changes no request, no queue and no page; a request remembers what it was compared with.
This module chooses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from boughs.radix import PrefixCache, Price
from boughs.runtime.core.decision import Running, Victim, View
from boughs.runtime.core.group import pages_wanted, wants
from boughs.runtime.core.policy import Candidate, follows, gives_way, reserve, victims
from boughs.runtime.core.request import Request
from boughs.runtime.core.tokens import common


class Sight:
    """Looks at the requests of one scheduler.

    Args:
        cache: The prefix cache whose pages requests hold.
        page_size: Tokens per page.
        budget: Tokens of a step.
        policy: One of `boughs.runtime.core.policy.POLICIES`.
        conservativeness: Share of what running requests may yet generate for which an admission
            leaves pages free.
    """

    def __init__(
        self,
        cache: PrefixCache,
        page_size: int,
        budget: int,
        policy: str,
        conservativeness: float,
    ) -> None:
        self._cache = cache
        self._size = page_size
        self._budget = budget
        self._policy = policy
        self._conservativeness = conservativeness

    def running(self, requests: Sequence[Request]) -> View:
        """A view of what runs, given in the order of arrival; of the victims, as many as it takes.

        These are looked for only where the pages do not suffice for all.
        """
        size = self._size
        decoding, prefilling = [], []
        need = 0
        for request in requests:
            if request.beams:
                tokens, pages = wants(self._cache, request, size)
                decoding.append(Running(request.submit.key, tokens, len(request.beams), pages))
                need += pages
                continue
            length = len(request.tokens)
            sequence = request.sequence
            assert sequence is not None, "it runs"
            pages = max(0, -(-length // size) - len(sequence.pages))
            need += pages
            tokens = length - request.computed
            one = Running(request.submit.key, tokens, 1, pages)
            if tokens > 1 or not request.begun:
                prefilling.append(one)
            else:
                decoding.append(one)
        available = self._cache.available()
        view = View(decoding, prefilling, self._budget, available, size, self._policy)
        if need > available:
            self._add_victims(view, requests, need)
        return view

    def _add_victims(self, view: View, requests: Sequence[Request], need: int | None) -> None:
        """Add those that go first; until what is left needs no more, or all of them."""
        pages = {one.key: one.pages for one in (*view.decoding, *view.prefilling)}
        have = view.available
        ranked = victims(requests)
        refunds = self._cache.refunds(
            [
                (part.sequence, part.token_bytes(part.computed))
                for part in request.parts
                if part.sequence is not None
            ]
            for request in ranked
        )
        for request, refund in zip(ranked, refunds, strict=False):
            view.victims.append(
                Victim(
                    request.key,
                    request.priority,
                    request.arrival,
                    refund.pages,
                    refund.nodes,
                    request.width,
                    self._reserve(request),
                    bool(request.beams),
                )
            )
            if need is not None:
                have += refund.pages
                need -= pages[request.key]
                if need <= have:
                    return

    def _reserve(self, request: Request) -> int:
        left = request.limit - request.longest
        return reserve(left, request.width, self._size, self._conservativeness)

    def add_waiting(
        self, view: View, running: Sequence[Request], waiting: Sequence[Request]
    ) -> None:
        """Add those that wait, if there may be budget and places for any.

        `view.places` has those that are taken by what runs, too.
        """
        if not waiting or view.victims:
            return
        if sum(one.tokens for one in (*view.decoding, *view.prefilling)) >= view.budget:
            return
        view.places -= sum(request.width for request in running)
        view.reserve = sum(map(self._reserve, running))
        if self._policy == "priority" and running:
            highest = max(waiting, key=lambda request: request.priority)
            if gives_way(self._policy, victims(running)[0], highest):
                self._add_victims(view, running, None)
        if view.places < 1 and not view.victims:
            return
        freed = frozenset[int]().union(*(victim.freed for victim in view.victims))
        room = view.available + sum(victim.refund for victim in view.victims)
        leaders = [request for request in running if request.prefilling]
        view.waiting = [self._candidate(r, leaders, room, freed) for r in waiting]

    def _candidate(
        self, request: Request, leaders: Sequence[Request], room: int, freed: frozenset[int]
    ) -> Candidate:
        """A waiting request; the price of one that cannot fit is only told to be too much."""
        first = request.parts[0]
        spot = request.spot
        if spot is None:
            spot = self._cache.tree.find(request.wanted, request.scope)
        else:
            spot = self._cache.tree.refind(spot, request.wanted)
        request.spot = spot
        size = self._size
        length, matched, matchable = len(first.tokens), spot.length, first.matchable
        pages = pages_wanted(request, size) if request.beams else -(-length // size)
        if pages - -(-matched // size) > room:
            price = Price(pages, copies=True, path=())
        else:
            price = self._cache.price(spot, length, freed)
            if request.beams:
                price = price._replace(
                    pages=price.pages + pages - -(-length // size) + len(request.beams) - 1
                )
        assert request.since is not None, "it waits"
        return Candidate(
            key=request.submit.key,
            priority=request.priority,
            arrival=request.arrival,
            since=request.since,
            namespace=request.submit.namespace,
            scope=request.scope,
            tokens=request.place,
            matched=matched,
            matchable=matchable,
            leaders=tuple(
                leader.key
                for leader in leaders
                if matched < matchable
                and leader.scope == request.scope
                and follows(
                    self._shared(request, leader), matchable, matched, leader.computed, size
                )
            ),
            width=request.width,
            reserve=self._reserve(request) if request.limit > request.longest else 0,
            price=price,
        )

    @staticmethod
    def _shared(request: Request, leader: Request) -> int:
        """Leading tokens that both have; compared once."""
        shared = request.common.get(leader.key)
        if shared is None:
            shared = request.common[leader.key] = common(request.tokens, leader.tokens)
        return shared
