"""What the front asks of a core beside requests: figures, pictures, leases, a flush.

A call is carried out between two steps. This module knows no model and no text; what becomes of
requests meanwhile is the scheduler's business.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from array import array
from collections.abc import Callable, Hashable
from dataclasses import asdict
from typing import Any

from boughs.lang.errors import BoughsError, InvalidRequest, RequestTimeout, as_plain
from boughs.radix import Lease, take_snapshot
from boughs.runtime.core.scheduler import Scheduler
from boughs.runtime.core.times import StepTimes
from boughs.runtime.messages import Call, FromCore, LeaseEnded, Reply

Send = Callable[[FromCore], None]


class Calls:
    """Carries calls out, and what they leave to be done later.

    Args:
        scheduler: Whose cache and queues are asked about.
        times: Of the core's steps.
        send: To the front.
        clock: Seconds; leases and patience end by it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        times: StepTimes,
        send: Send,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._times = times
        self._cache = scheduler.cache
        self._send = send
        self._clock = clock
        self._leases: dict[int, Lease] = {}
        self._flushes: dict[int, float] = {}  # ids of calls that wait, and until when
        self._salt = secrets.token_bytes(16)

    def take(self, call: Call) -> None:
        """Carry out a call and reply, or keep it for `turn`."""
        self._cache.leases.expire(self._clock())
        try:
            if call.method == "flush" and call.args.get("wait"):
                self._flush_later(call.id, call.args["wait"])
                return
            result = _METHODS[call.method](self, **call.args)
        except BoughsError as error:
            self._fail(call.id, error)
        else:
            self._send(Reply(call.id, result=result))

    def turn(self) -> bool:
        """Do what is due between two steps; whether requests may go on that could not before."""
        if self._leases:
            self._cache.leases.expire(self._clock())
            self._tell_of_leases()
        return bool(self._flushes) and self._flush_now()

    @property
    def patience(self) -> float | None:
        """Seconds until `turn` has something to do whatever happens; None is for ever."""
        if not self._flushes:
            return None
        return max(0.0, min(self._flushes.values()) - self._clock())

    # ---- flush ----

    def flush(self) -> int:
        """Forget every prefix, unless requests are in the core. Returns pages freed."""
        if not self._scheduler.is_empty:
            sizes = self._scheduler.sizes()
            raise InvalidRequest(
                f"flush_cache: {sizes['running']} requests run and {sizes['waiting']} wait; "
                "flush when none does, or give the seconds that it may wait for them: timeout"
            )
        return self._cache.flush()

    def _flush_later(self, call: int, seconds: float) -> None:
        """Let what runs end, begin nothing new meanwhile, then flush."""
        self._flushes[call] = self._clock() + seconds
        self._scheduler.held = True

    def _flush_now(self) -> bool:
        if self._scheduler.holds_pages:
            now = self._clock()
            for call in [call for call, until in self._flushes.items() if until <= now]:
                del self._flushes[call]
                self._fail(
                    call,
                    RequestTimeout("flush_cache: requests ran on beyond timeout; nothing was lost"),
                )
        else:
            freed = self._cache.flush()
            for call in self._flushes:
                self._send(Reply(call, result=freed))
            self._flushes.clear()
            self._tell_of_leases()
        self._scheduler.held = bool(self._flushes)
        return not self._flushes

    def forget(self, call: int) -> None:
        """Whoever asked for a flush has gone: nobody is held up for it any more."""
        if self._flushes.pop(call, None) is not None:
            self._scheduler.held = bool(self._flushes)

    # ---- leases ----

    def pin(self, lease: int, tokens: list[int], namespace: str, seconds: float) -> int:
        """Keep what is cached of `tokens` for so long; how many tokens that is."""
        held = self._cache.leases.pin(
            array("i", tokens).tobytes(), lease, self._clock() + seconds, namespace
        )
        self._leases[lease] = held
        return held.tokens

    def unpin(self, lease: int) -> None:
        """End a lease, if it has not ended."""
        held = self._leases.pop(lease, None)
        if held is not None:
            self._cache.leases.release(held)

    def _tell_of_leases(self) -> None:
        """Tell the front of leases that have ended by themselves."""
        if len(self._leases) == len(self._cache.leases):
            return  # all that were given out are held
        for key, lease in list(self._leases.items()):
            if lease.state in ("expired", "broken"):
                del self._leases[key]
                self._send(LeaseEnded(key, lease.state))

    # ---- looking ----

    def stats(self) -> dict[str, Any]:
        """Every counter: queues, pages, tokens, and how long steps took."""
        pages = asdict(self._cache.stats())
        scheduler = self._scheduler
        return {
            **scheduler.sizes(),
            **asdict(scheduler.counters),
            "cache": pages,
            "steps_in_seconds": self._times.as_json(),
        }

    def snapshot(self, max_segments: int, max_tokens: int) -> dict[str, Any]:
        """The tree as plain data, and the cache's figures. Namespaces go by digests."""
        tree = self._cache.tree
        shown = asdict(take_snapshot(tree, max_segments, max_tokens))
        for segment in shown["segments"]:
            segment["namespace"] = self._named(segment["namespace"])
        return {**shown, "page_size": tree.page_size, "cache": asdict(self._cache.stats())}

    def _named(self, namespace: Hashable) -> str:
        """A name that tells namespaces apart and does not give away their salts."""
        if namespace == "":
            return ""
        return hashlib.blake2b(repr(namespace).encode(), key=self._salt, digest_size=4).hexdigest()

    def check(self) -> None:
        """Raise AssertionError where the pages or queues disagree."""
        self._scheduler.check()

    def _fail(self, call: int, error: BoughsError) -> None:
        self._send(Reply(call, error=as_plain(error)))


_METHODS: dict[str, Callable[..., Any]] = {
    "flush": lambda calls, **_: calls.flush(),
    "forget": Calls.forget,
    "stats": Calls.stats,
    "check": Calls.check,
    "pin": Calls.pin,
    "unpin": Calls.unpin,
    "snapshot": Calls.snapshot,
}
