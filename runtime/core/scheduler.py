"""Which requests compute which tokens in the next step.

Each step has a token budget. Running decodes come first, one token each; then the chunks of
running prefills; then waiting requests are admitted, by priority and then in the order of the
policy. When pages run out the last arrived of the lowest priority is retracted: what it computed
stays in the tree, and it waits again.

The scheduler moves requests between its lists and pages through the prefix cache. It runs no
model and sends nothing: what it decides is a `Step`.
"""

from __future__ import annotations

import sys
from typing import Literal

from boughs.radix import OutOfPages, PrefixCache
from boughs.runtime.core.group import common as common_tokens, next_works, pages_wanted, regroup
from boughs.runtime.core.request import Request
from boughs.runtime.core.step import Counters, Step

AGED_AFTER = 64
"""Passes after which a waiting request comes before all that arrived later, whatever the policy."""


class Scheduler:
    """The queues of one core.

    Args:
        cache: The prefix cache whose pages requests hold.
        page_size: Tokens per page.
        max_batched_tokens: The token budget of a step.
        max_running: Requests that hold pages at once.
        policy: `lpm` (longest cached prefix first) or `fcfs`.
    """

    def __init__(
        self,
        cache: PrefixCache,
        page_size: int,
        max_batched_tokens: int,
        max_running: int,
        policy: Literal["lpm", "fcfs"] = "lpm",
    ) -> None:
        self.cache = cache
        self.counters = Counters()
        self.held = False
        """Whether no waiting request is admitted, so that what runs comes to an end."""
        self._page_size = page_size
        self._budget = max_batched_tokens
        self._max_running = max_running
        self._policy = policy
        self._waiting: list[Request] = []
        self._running: list[Request] = []  # in the order of arrival
        self._ended: dict[int, Request] = {}  # by key; pages kept until the front confirms
        self._by_key: dict[int, Request] = {}

    # ---- the queues ----

    def add(self, request: Request) -> None:
        """Let a new request wait."""
        self._by_key[request.key] = request
        self._wait(request)

    def find(self, key: int) -> Request | None:
        """The request of this key, unless it has left."""
        return self._by_key.get(key)

    @property
    def has_work(self) -> bool:
        """Whether a step could have anything to do."""
        return bool(self._waiting or self._running)

    @property
    def is_empty(self) -> bool:
        """Whether no request holds a page or wants one."""
        return not self._by_key

    @property
    def holds_pages(self) -> bool:
        """Whether a request holds a page."""
        return bool(self._running or self._ended)

    def sizes(self) -> dict[str, int]:
        """How many requests are in each state."""
        return {
            "running": len(self._running),
            "waiting": len(self._waiting),
            "unconfirmed": len(self._ended),
        }

    def finish(self, request: Request, length: int | None = None) -> None:
        """The request has ended: what it computed enters the tree, its pages are given back.

        Args:
            request: In any state.
            length: Output tokens that count; later ones are dropped before the tree sees them.
        """
        if length is not None and length < request.output_len:
            del request.tokens[request.prompt_len + length :]
            request.computed = min(request.computed, len(request.tokens))
        self._leave(request)
        self.counters.finished += 1

    def abort(self, request: Request) -> None:
        """Nobody wants the request any more. What it computed stays cached."""
        self._leave(request)
        self.counters.aborted += 1

    def end_unconfirmed(self, request: Request) -> None:
        """The core has ended the request, and the front may yet shorten it: keep its pages."""
        self._running.remove(request)
        self._ended[request.key] = request

    def regroup(self, request: Request, parents: list[int]) -> None:
        """A search has taken a step: its beams now continue these ones of before."""
        regroup(self.cache, request, parents)

    def _leave(self, request: Request) -> None:
        del self._by_key[request.key]
        if self._ended.pop(request.key, None) is None:
            (self._running if request.holds_pages else self._waiting).remove(request)
        self._give_back(request)

    def _give_back(self, request: Request) -> None:
        for part in request.parts:
            if part.sequence is not None:
                self.cache.commit(part.sequence, part.token_bytes(part.computed), part.computed)
                self.cache.release(part.sequence)
                part.sequence = None
            part.computed = 0
            part.heir_of = None

    # ---- a step ----

    def schedule(self) -> Step:
        """The next step."""
        step = Step()
        for request in list(self._running):
            if request.beams:
                self._decode_beams(request, step)
            elif request.sequence is not None and not request.prefilling:
                self._decode(request, step)
        for request in self._running:
            budget = self._budget - step.tokens
            if budget > 0 and request.prefilling:
                step.add(request, min(budget, request.remaining))
        self._admit(step)
        if step.works:  # with none, nothing carries the copies out
            step.copies = self.cache.take_copies()
        self.counters.steps += bool(step.works)
        return step

    def computed(self, step: Step) -> None:
        """The step's rows are written: account for them, and enter chunks into the tree."""
        self.cache.copies_done(step.copies)
        for work in step.works:
            request = work.request
            prefill = request.prefilling
            request.computed = work.start + work.count
            if prefill:
                self.counters.prefill_tokens += work.count
                assert request.sequence is not None
                self.cache.commit(
                    request.sequence, request.token_bytes(request.computed), request.computed
                )
            else:
                self.counters.decode_tokens += work.count

    def _decode(self, request: Request, step: Step) -> None:
        """Give one decode its token, retracting requests while pages are short.

        A request that is alone may still hold a page too many: its own copy of one that the tree
        lists. Retracted, it is admitted again without it.
        """
        if step.tokens >= self._budget:
            return
        while request.sequence is not None:
            try:
                self.cache.grow(request.sequence, len(request.tokens))
            except OutOfPages:
                victim = min(self._running, key=lambda r: (r.priority, -r.arrival))
                if len(self._running) == 1 and self._ended:
                    return  # the front is about to give pages back
                self._retract(victim, step)
            else:
                step.add(request, 1)
                return

    def _decode_beams(self, request: Request, step: Step) -> None:
        """Give a search its next work, retracting requests while pages are short.

        A search that is alone has its pages (`beam_limit`). One that is the last in rank waits with
        what it has, as long as the step computes something.
        """
        while request.holds_pages and step.tokens < self._budget:
            try:
                works = next_works(self.cache, request, self._budget - step.tokens)
            except OutOfPages:
                victim = min(self._running, key=lambda r: (r.priority, -r.arrival))
                if victim is request and step.works:
                    return
                if len(self._running) == 1 and self._ended:
                    return  # the front is about to give pages back
                self._retract(victim, step)
            else:
                for beam, count in works:
                    step.add(beam, count)
                return

    def _retract(self, request: Request, step: Step) -> None:
        """Take a request's pages; it waits again, before those that have never run."""
        step.drop(request)
        self._running.remove(request)
        self._give_back(request)
        self._wait(request)
        self.counters.retractions += 1

    # ---- admission ----

    def _wait(self, request: Request) -> None:
        first = request.parts[0]
        request.wanted = first.token_bytes(first.matchable)
        request.spot = None
        self._waiting.append(request)

    def _admit(self, step: Step) -> None:
        if self.held or not self._waiting or step.tokens >= self._budget:
            return
        load = sum(request.width for request in self._running)
        most = self._max_running - len(self._ended)
        if load >= most:
            return
        admitted = []
        for request, matched in self._ordered():
            if step.tokens >= self._budget or load >= most:
                break
            if self._follows(request, matched):
                continue
            if load + request.width <= most and self._try_admit(request, matched, load):
                admitted.append(request)
                load += request.width
                if not request.beams:
                    step.add(request, min(self._budget - step.tokens, request.remaining))
            elif request.passes >= AGED_AFTER:
                break  # pages that come free are for the one that waits too long
        if admitted:
            taken = set(admitted)
            self._waiting = [request for request in self._waiting if request not in taken]
        for request in self._waiting:
            request.passes += 1
        for request in admitted:
            if request.beams:
                self._decode_beams(request, step)

    def _ordered(self) -> list[tuple[Request, int]]:
        """Waiting requests and how much of each is cached, in the order to try them."""
        pairs = [(request, self._matched(request)) for request in self._waiting]
        return sorted(pairs, key=lambda pair: self._rank(*pair))

    def _matched(self, request: Request) -> int:
        """How much of a waiting request is cached; matched anew where the tree has changed."""
        tree, spot = self.cache.tree, request.spot
        if spot is None:
            spot = tree.find(request.wanted, request.submit.namespace)
        else:
            spot = tree.refind(spot, request.wanted)
        request.spot = spot
        return spot.length

    def _rank(self, request: Request, matched: int) -> tuple[int, int, int]:
        """Lower goes first: priority, then age or the policy's order, then arrival."""
        ahead = self._policy == "fcfs" or request.passes >= AGED_AFTER
        return (
            -request.priority,
            -sys.maxsize if ahead else -matched,
            request.arrival,
        )

    def _follows(self, request: Request, matched: int) -> bool:
        """Whether a running request is still prefilling a page that this one needs, too.

        Or all that this one needs, however little: choices of one prompt compute it once.
        """
        for leader in self._running:
            if not leader.prefilling or leader.submit.namespace != request.submit.namespace:
                continue
            common = request.common.get(leader.key)
            if common is None:
                common = request.common[leader.key] = common_tokens(request, leader)
            # A prompt's own last token is always computed, so it is nothing to wait for.
            common = min(common, request.matchable)
            if leader.computed >= common or common <= matched:
                continue  # what it has computed is in the tree
            if common == request.matchable or common - matched >= self._page_size:
                return True
        return False

    def _try_admit(self, request: Request, matched: int, load: int) -> bool:
        """Match and lock the cached prefix and take pages for the rest, if there are enough.

        Of a search that comes back only the first beam is placed here.
        """
        first = request.parts[0]
        length = len(first.tokens)
        size = self._page_size
        pages = pages_wanted(request, size) if request.beams else -(-length // size)
        # Each running decode may want a page soon; alone, a request may take all there is.
        reserve = load + (request.width if load and length < request.limit else 0)
        if self.cache.available() < pages - -(-matched // size) + reserve:
            return False  # also before the match locks pages that could be evicted
        sequence = self.cache.admit(
            request.wanted,
            request.submit.namespace,
            length=length,
            priority=request.priority,
        )
        try:
            if self.cache.available() < pages - len(sequence.pages) + reserve:
                raise OutOfPages
            self.cache.grow(sequence, length)
        except OutOfPages:
            self.cache.release(sequence)
            return False
        first.sequence = sequence
        first.computed = sequence.cached
        if request.cached_tokens is None:
            request.cached_tokens = min(sequence.cached, request.prompt_len)
            self.counters.hit_tokens += request.cached_tokens
        self._running.append(request)
        self._running.sort(key=lambda r: r.arrival)
        request.common.clear()
        request.wanted, request.spot = b"", None
        return True

    def check(self) -> None:
        """Raise AssertionError where the queues or the pages disagree."""
        self.cache.check()
        for request in self._waiting:
            assert not request.holds_pages, f"waiting request {request.key} holds pages"
            for part in request.parts:
                assert part.computed == 0, f"waiting request {request.key} has rows"
        for request in (*self._running, *self._ended.values()):
            assert request.holds_pages, f"running request {request.key} has no pages"
            for part in request.parts:
                pages = [] if part.sequence is None else part.sequence.pages
                room = len(pages) * self._page_size
                assert part.computed <= room, f"request {request.key} has rows beyond its pages"
                assert part.computed <= len(part.tokens), f"request {request.key}: extra rows"
        every = [*self._waiting, *self._running, *self._ended.values()]
        assert len(every) == len(self._by_key), "a request is lost or in two queues"
        assert {r.key for r in every} == set(self._by_key), "the queues and the index disagree"
        if self.is_empty:
            stats = self.cache.stats()
            assert stats.private == 0, f"{stats.private} pages belong to no request"
