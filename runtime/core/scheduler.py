"""The queues of requests, and the pages that they hold.

A step is decided (`decision.decide`) from what can be seen of queues and cache (`sight`), and the
decision is carried out here: requests are moved between the queues, and pages through the prefix
cache. A retracted request waits again; what it computed stays in the tree. The scheduler runs no
model and sends nothing: what it makes is a `Step`.
"""

from __future__ import annotations

from boughs.radix import Node, OutOfPages, PrefixCache
from boughs.runtime.core.decision import Decision, View, decide
from boughs.runtime.core.group import next_works, regroup
from boughs.runtime.core.request import Request
from boughs.runtime.core.sight import Sight
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
        self._sight = Sight(cache, page_size, max_batched_tokens, policy, conservativeness)
        self._max_running = max_running
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
        """The next step.

        Where a decision has only made room, another one follows: each of them leaves fewer requests
        running, or begins some.
        """
        self._steps += 1
        step = Step()
        while not step.works and (decision := decide(self.view())):
            self.apply(decision, step)
        if step.works:  # with none, nothing carries the copies out
            step.copies = self.cache.take_copies()
            self.counters.steps += 1
        return step

    def view(self) -> View:
        """What the next decision depends on. Changes nothing."""
        sight = self._sight
        view = sight.running(self._running)
        view.step, view.last = self._steps, self._last
        view.unconfirmed = bool(self._ended)
        view.places = self._max_running - len(self._ended)
        sight.add_waiting(view, self._running, [] if self.held else self._waiting)
        return view

    def apply(self, decision: Decision, step: Step) -> None:
        """Carry a decision out that was made of the view of now; its works are added to `step`."""
        for key in decision.retracted:
            self._retract(self._by_key[key])
        kept = self._keep([self._by_key[key] for key, _ in decision.admitted])
        try:
            for key, tokens in decision.works:
                self._work(self._by_key[key], tokens, step)
            for key, tokens in decision.admitted:
                request = self._by_key[key]
                self._begin(request)
                self._work(request, tokens, step)
        except OutOfPages as error:
            raise AssertionError("more pages were promised than there are") from error
        for node in kept:
            self.cache.let_go(node)

    def _keep(self, admitted: list[Request]) -> list[Node]:
        """Lock what several that are about to be admitted have in the cache.

        What they share is paid for once: one's new pages must not evict it before another comes.
        """
        if len(admitted) < 2:
            return []
        return [self.cache.keep(one.wanted, one.submit.namespace, one.family) for one in admitted]

    def _work(self, request: Request, tokens: int, step: Step) -> None:
        """Let a running request compute so many tokens at most."""
        if request.beams:
            for beam, count in next_works(self.cache, request, tokens):
                step.add(beam, count)
            return
        sequence = request.sequence
        assert sequence is not None, "it runs"
        if len(request.tokens) > len(sequence.pages) * self._page_size:
            self.cache.grow(sequence, len(request.tokens))
        step.add(request, min(tokens, request.remaining))

    def _begin(self, request: Request) -> None:
        """Match and lock the cached prefix of a waiting request, and take pages for the rest.

        Of a search that comes back only the first beam is placed here.
        """
        self._waiting.remove(request)
        first = request.parts[0]
        self._last = (request.submit.namespace, request.place)
        first.sequence = self.cache.admit(
            request.wanted,
            request.submit.namespace,
            length=len(first.tokens),
            family=request.family,
            priority=request.priority,
        )
        self.cache.grow(first.sequence, len(first.tokens))
        first.computed = first.sequence.cached
        if request.cached_tokens is None:
            request.cached_tokens = min(first.sequence.cached, request.prompt_len)
            self.counters.hit_tokens += request.cached_tokens
        self._running.append(request)
        self._running.sort(key=lambda r: r.arrival)
        request.common.clear()
        request.wanted, request.spot, request.place = b"", None, b""

    def _retract(self, request: Request) -> None:
        """Take a request's pages; it waits again, before those that have never run."""
        self._running.remove(request)
        self._give_back(request)
        self._wait(request)
        self.counters.retractions += 1

    def _wait(self, request: Request) -> None:
        first = request.parts[0]
        request.wanted = first.token_bytes(first.matchable)
        request.place = first.token_bytes()
        request.spot = None
        if request.since is None:
            request.since = self._steps
        self._waiting.append(request)

    def computed(self, step: Step) -> None:
        """The step's rows are written: account for them, and enter chunks into the tree."""
        self.cache.copies_done(step.copies)
        prefilled = 0
        for work in step.works:
            request = work.request
            prefill = request.prefilling
            request.computed = work.start + work.count
            if prefill:
                prefilled += work.count
                assert request.sequence is not None
                settled = request.settled
                self.cache.commit(request.sequence, request.token_bytes(settled), settled)
        self.counters.prefill_tokens += prefilled
        self.counters.decode_tokens += step.tokens - prefilled
        for request in {work.request.group or work.request for work in step.works}:
            request.steps += 1

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
