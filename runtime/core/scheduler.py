"""Which requests compute which tokens in the next step.

Each step has a token budget. Running decodes come first, one token each; then the chunks of
running prefills; then waiting requests are admitted, by priority and then in the order of the
policy. When pages run out the last arrived of the lowest priority is retracted: what it computed
stays in the tree, and it waits again.

The scheduler moves requests between its lists and pages through the prefix cache. It runs no
model and sends nothing: what it decides is a `Step`.
"""

from __future__ import annotations

from boughs.radix import OutOfPages, PrefixCache
from boughs.runtime.core.group import next_works, pages_wanted, regroup
from boughs.runtime.core.policy import (
    Candidate,
    blocks,
    follows,
    gives_way,
    order,
    reserve,
    victim,
)
from boughs.runtime.core.request import Request
from boughs.runtime.core.step import Counters, Step


class Scheduler:
    """The queues of one core.

    Args:
        cache: The prefix cache whose pages requests hold.
        page_size: Tokens per page.
        max_batched_tokens: The token budget of a step.
        max_running: Requests that hold pages at once.
        policy: One of `boughs.runtime.core.policy.POLICIES`.
        conservativeness: Share of what running requests may yet generate for which an admission
            leaves pages free.
    """

    def __init__(
        self,
        cache: PrefixCache,
        page_size: int,
        max_batched_tokens: int,
        *,
        max_running: int,
        policy: str = "lpm",
        conservativeness: float = 0.0,
    ) -> None:
        self.cache = cache
        self.counters = Counters()
        self.held = False
        """Whether no waiting request is admitted, so that what runs comes to an end."""
        self._page_size = page_size
        self._budget = max_batched_tokens
        self._max_running = max_running
        self._policy = policy
        self._conservativeness = conservativeness
        self._steps = 0
        self._last = ("", b"")  # the place of what was admitted last
        self._compiling: list[Request] = []  # their grammars are: they hold and want nothing
        self._waiting: list[Request] = []
        self._running: list[Request] = []  # in the order of arrival
        self._ended: dict[int, Request] = {}  # by key; pages kept until the front confirms
        self._by_key: dict[int, Request] = {}

    # ---- the queues ----

    def add(self, request: Request) -> None:
        """Let a new request wait; one without its grammar until `free`, apart from the others."""
        request.scope = self.cache.scope(request.submit.namespace, request.family)
        self.cache.join(request.scope)
        self._by_key[request.key] = request
        if request.compiled is None:
            self._wait(request)
        else:
            self._compiling.append(request)

    @property
    def compiling(self) -> list[Request]:
        """The requests that wait for their grammars."""
        return list(self._compiling)

    def free(self, request: Request) -> None:
        """The request's grammar is there: let it wait like others."""
        self._compiling.remove(request)
        request.compiled = None
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
            "waiting": len(self._waiting) + len(self._compiling),
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
            self._queue_of(request).remove(request)
        self._give_back(request)
        self.cache.leave(request.scope)

    def _queue_of(self, request: Request) -> list[Request]:
        if request.holds_pages:
            return self._running
        return self._waiting if request.compiled is None else self._compiling

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
        self._steps += 1
        for request in list(self._running):
            if request.beams:
                self._decode_beams(request, step)
            elif request.sequence is not None and not request.prefilling:
                self._decode(request, step)
        for request in list(self._running):
            if not request.prefilling:
                continue
            if request.begun:  # what a grammar forced may need pages
                self._decode(request, step)
            elif step.tokens < self._budget:
                step.add(request, min(self._budget - step.tokens, request.remaining))
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
        for request in {work.request.group or work.request for work in step.works}:
            request.steps += 1

    def _decode(self, request: Request, step: Step) -> None:
        """Give one decode its tokens, retracting requests while pages are short.

        A request that is alone may still hold a page too many: its own copy of one that the tree
        lists. Retracted, it is admitted again without it.
        """
        if step.tokens >= self._budget:
            return
        while request.sequence is not None:
            try:
                self.cache.grow(request.sequence, len(request.tokens))
            except OutOfPages:
                if len(self._running) == 1 and self._ended:
                    return  # the front is about to give pages back
                self._retract(victim(self._running), step)
            else:
                step.add(request, min(self._budget - step.tokens, request.remaining))
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
                loser = victim(self._running)
                if loser is request and step.works:
                    return
                if len(self._running) == 1 and self._ended:
                    return  # the front is about to give pages back
                self._retract(loser, step)
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
        if self._policy == "dfs":
            request.place = first.token_bytes()
        if request.since is None:
            request.since = self._steps
        self._waiting.append(request)

    def _admit(self, step: Step) -> None:
        """Begin waiting requests, as far as budget, places and pages go."""
        if self.held or not self._waiting or step.tokens >= self._budget:
            return
        if self._policy != "priority" and self._places < 1:
            return
        ordered = order(
            self._policy,
            [Candidate(r, self._matched(r)) for r in self._waiting],
            self._steps,
            self._last,
        )
        self._waiting = [candidate.request for candidate in ordered]
        for candidate in ordered:
            request = candidate.request
            if step.tokens >= self._budget:
                break
            if any(follows(request, candidate.matched, r, self._page_size) for r in self._running):
                continue
            if self._make_room(candidate, step):
                self._waiting.remove(request)
                if request.beams:
                    self._decode_beams(request, step)
                else:
                    step.add(request, min(self._budget - step.tokens, request.remaining))
            elif blocks(self._policy, request, self._steps):
                break  # what comes free is for this one

    @property
    def _places(self) -> int:
        """How many more may run."""
        return self._max_running - len(self._ended) - sum(r.width for r in self._running)

    def _make_room(self, candidate: Candidate, step: Step) -> bool:
        """Admit a request, if need be in the place of those that give way to it."""
        while not (candidate.request.width <= self._places and self._try_admit(candidate)):
            loser = gives_way(self._policy, self._running, candidate.request)
            if loser is None:
                return False
            self._retract(loser, step)
        return True

    def _matched(self, request: Request) -> int:
        """How much of a waiting request is cached; matched anew where the tree has changed."""
        tree, spot = self.cache.tree, request.spot
        if spot is None:
            spot = tree.find(request.wanted, request.scope)
        else:
            spot = tree.refind(spot, request.wanted)
        request.spot = spot
        return spot.length

    def _try_admit(self, candidate: Candidate) -> bool:
        """Match and lock the cached prefix and take pages for the rest, if there are enough.

        Of a search that comes back only the first beam is placed here.
        """
        request, matched = candidate
        first = request.parts[0]
        length = len(first.tokens)
        size = self._page_size
        pages = pages_wanted(request, size) if request.beams else -(-length // size)
        spare = reserve(self._running, request, size, self._conservativeness)
        if self.cache.available() < pages - -(-matched // size) + spare:
            return False  # also before the match locks pages that could be evicted
        sequence = self.cache.admit(
            request.wanted,
            request.submit.namespace,
            length=length,
            family=request.family,
            priority=request.priority,
        )
        try:
            if self.cache.available() < pages - len(sequence.pages) + spare:
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
        self._last = candidate.place
        request.wanted, request.spot, request.place = b"", None, b""
        return True

    def check(self) -> None:
        """Raise AssertionError where the queues or the pages disagree."""
        self.cache.check()
        for request in (*self._waiting, *self._compiling):
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
        every = [*self._compiling, *self._waiting, *self._running, *self._ended.values()]
        assert len(every) == len(self._by_key), "a request is lost or in two queues"
        assert {r.key for r in every} == set(self._by_key), "the queues and the index disagree"
        if self.is_empty:
            stats = self.cache.stats()
            assert stats.private == 0, f"{stats.private} pages belong to no request"
