"""What was put into a state, how far it has come, and how to wait for it.

Every statement gets a ticket: its number. Who reads waits for the ticket of the statement that
makes what is read. The first failure ends it all: every later statement and read raises it. This
module knows not how statements run.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import NamedTuple

from boughs.lang.errors import InvalidRequest, RequestTimeout
from boughs.lang.expression import Node
from boughs.lang.failure import Failure
from boughs.lang.loop import on_loop
from boughs.lang.results import Chunk
from boughs.lang.waiting import Level, Stream


class Entry(NamedTuple):
    """A statement, and where its text is streamed to."""

    node: Node
    stream: Stream[Chunk] | None


class Backlog:
    """The statements of one state.

    Args:
        label: What errors call the state.
        held: Whether the state begins only when `release` is called; that counts as the first
            statement, and sets variables.
    """

    def __init__(self, label: str, *, held: bool = False) -> None:
        self.label = label
        self.submitted = int(held)
        self.failure: Failure | None = None
        self.observed = False  # whether the failure was raised to the program
        self.ended = False
        self._lock = threading.Lock()
        self._held = held
        self._busy = False
        self._entries: deque[Entry] = deque()
        self._announced = Level()
        self._done = Level()
        self._writes: dict[str, int] = {}
        self._barrier = int(held)  # the last statement that may set any variable
        self._streams: dict[str, Stream[Chunk]] = {}

    # ---- putting and taking ----

    def put(self, *nodes: Node) -> tuple[int, bool]:
        """Queue statements: the last one's ticket, and whether to start somebody to take them."""
        with self._lock:
            if self.failure is not None:
                self.observed = True
                raise self.failure.make()
            for node in nodes:
                self._add(node)
            ticket, start = self.submitted, self._must_start()
        self._announced.raise_to(ticket)
        return ticket, start

    def _add(self, node: Node) -> None:
        self.submitted += 1
        stream = None
        if node.variable is not None:
            self._writes[node.variable] = self.submitted
            self._streams.pop(node.variable, None)
            if node.streams:
                stream = self._streams[node.variable] = Stream()
        if node.sets_any:
            self._barrier = self.submitted
        self._entries.append(Entry(node, stream))

    def release(self) -> bool:
        """Let a held state begin; whether somebody must be started to take its statements."""
        with self._lock:
            self._held = False
            start = self._must_start()
        self._done.raise_to(1)
        return start

    def take(self) -> Entry | None:
        """The next statement to run; None ends the work."""
        with self._lock:
            if not self._entries:
                self._busy = False
                return None
            return self._entries.popleft()

    def ran(self) -> None:
        """The statement that was taken has run."""
        self._done.raise_to(self._done.value + 1)

    def end(self) -> None:
        """Nothing more will be put."""
        self.ended = True
        self._announced.raise_to(math.inf)

    def fail(self, failure: Failure) -> bool:
        """End it all; False if it has failed or come to its end before."""
        with self._lock:
            if self.failure is not None or (self.ended and self._done.value >= self.submitted):
                return False
            self.failure = failure
            self._entries.clear()
            streams = tuple(self._streams.values())
        for stream in streams:
            stream.close(failure.make)
        self._announced.raise_to(math.inf)
        self._done.raise_to(math.inf)
        return True

    @property
    def held(self) -> bool:
        """Whether it is still to begin."""
        return self._held and self.failure is None

    def _must_start(self) -> bool:
        start = bool(self._entries) and not (self._busy or self._held)
        self._busy = self._busy or start
        return start

    # ---- waiting ----

    def ticket(self, name: str) -> int | None:
        """The statement to wait for before a variable is read; None if none is known to set it."""
        with self._lock:
            ticket = self._writes.get(name, 0)
            if self._done.value < self._barrier:
                ticket = max(ticket, self._barrier)
            return ticket or None

    def sets(self, name: str) -> bool:
        """Whether a statement so far is known to set a variable."""
        with self._lock:
            return name in self._writes

    def stream_of(self, name: str) -> Stream[Chunk] | None:
        """The stream of a variable, if its text comes piece by piece."""
        with self._lock:
            return self._streams.get(name)

    def wait(self, ticket: float, until: float = math.inf) -> None:
        """Block until a statement has run; raise the failure.

        Args:
            ticket: The statement's.
            until: When to give up, on `time.monotonic`'s clock.

        Raises:
            RequestTimeout: It has not run by then.
        """
        self._block(self._done, ticket, until)
        self.raise_failure()

    async def reach(self, ticket: float) -> None:
        """Await that a statement has run; raise the failure."""
        await self.settled(ticket)
        self.raise_failure()

    def settle(self, ticket: float | None = None) -> None:
        """Block until a statement (by default the last one so far) has run or failed.

        Raises:
            InvalidRequest: Called on the loop, where nothing may block, and it has not run yet.
        """
        self._block(self._done, self.submitted if ticket is None else ticket)

    async def settled(self, ticket: float | None = None) -> None:
        """Await that a statement (by default the last one so far) has run or failed."""
        await self._done.reach(self.submitted if ticket is None else ticket)

    def announced(self, count: float, until: float = math.inf) -> None:
        """Block until `count` statements were put, or none will be any more."""
        self._block(self._announced, count, until)

    async def announced_async(self, count: float) -> None:
        """Await the same."""
        await self._announced.reach(count)

    def raise_failure(self) -> None:
        """Raise what ended this state, if anything did."""
        if self.failure is not None:
            self.observed = True
            raise self.failure.make()

    def _block(self, level: Level, target: float, until: float = math.inf) -> None:
        if level.value >= target:
            return
        if on_loop():
            raise InvalidRequest(
                f"{self.label}: this is not done yet, and an async program must not block; write "
                '`await s.get("name")`, or `await s.wait()` before it'
            )
        if not level.wait(target, until):
            raise RequestTimeout(
                f"{self.label}: what is read was not done within the read's time-out; the program "
                "runs on"
            )
