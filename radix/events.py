"""What happens to the tree, as a stream: for routers that keep a picture of it, and for debugging.

A segment is what one `stored` event brought, by number. It grows at its end (`stored` again, with
the same number), others begin inside it or at its end (`parent`, `start`), and it is evicted from
its end on. This module changes nothing in the tree.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

from .node import WIDTH, Node, namespace_of


class Event(NamedTuple):
    """One change.

    Attributes:
        kind: `stored`: tokens came; `evicted`: a segment ends at `start` now; `flushed`: nothing
            is left but what `stored` events after this one say.
        namespace: Where. None for `flushed`.
        segment: Which segment.
        parent: The segment that holds the token before `start`; 0 at the beginning.
        start, end: Positions of the tokens in the prompts that they belong to.
        tokens: What was stored, int32 bytes; empty for the other kinds.
    """

    kind: Literal["stored", "evicted", "flushed"]
    namespace: Hashable = None
    segment: int = 0
    parent: int = 0
    start: int = 0
    end: int = 0
    tokens: bytes = b""


class EventLog:
    """One listener's events. Iterating takes what has happened since the last time.

    Args:
        limit: Events that are kept for a listener that does not read. What comes beyond is lost,
            and `lost` counts it: such a listener starts anew.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        self.lost = 0
        self._limit = limit
        self._events: deque[Event] = deque()

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        while self._events:
            yield self._events.popleft()

    def stored(self, node: Node, start: int) -> None:
        """The tokens of `node` from position `start` on have come."""
        above = node.parent
        assert above is not None, "a root holds no tokens"
        self._add(
            Event(
                "stored",
                namespace_of(node),
                node.segment,
                above.segment if start == node.start else node.segment,
                start,
                node.end,
                node.tokens[(start - node.start) * WIDTH :],
            )
        )

    def evicted(self, node: Node, start: int) -> None:
        """The tokens of `node` from position `start` on are about to go."""
        self._add(Event("evicted", namespace_of(node), node.segment, start=start, end=node.end))

    def flushed(self, roots: Iterable[Node]) -> None:
        """All went, but what there is under `roots`. What was not read yet is void."""
        self._events.clear()
        self._add(Event("flushed"))
        self.replay(roots)

    def replay(self, roots: Iterable[Node]) -> None:
        """Store all that there is under `roots`, parents first."""
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node.parent is not None:
                self.stored(node, node.start)
            stack.extend(node.children.values())

    def _add(self, event: Event) -> None:
        if len(self._events) >= self._limit:
            self.lost += 1
        else:
            self._events.append(event)


class Events:
    """The listeners of one tree.

    >>> from array import array
    >>> from boughs.radix import PrefixCache
    >>> cache = PrefixCache(num_pages=9, page_size=4)
    >>> log = cache.tree.events.listen()
    >>> for words in ([5, 6, 7], [5, 6, 8, 9]):
    ...     tokens = array("i", words).tobytes()
    ...     sequence = cache.admit(tokens)
    ...     cache.grow(sequence, len(words))
    ...     cache.copies_done(cache.take_copies())
    ...     cache.commit(sequence, tokens, len(words))
    ...     cache.release(sequence)
    >>> for event in log:
    ...     print(event.kind, event.segment, event.parent, event.start, event.end)
    stored 1 0 0 3
    stored 2 1 2 4
    """

    def __init__(self) -> None:
        self.logs: list[EventLog] = []
        """The listeners; none, most of the time."""

    def listen(self, roots: Iterable[Node] = (), limit: int = 65536) -> EventLog:
        """A stream of what happens, which begins with what there is under `roots`.

        Args:
            roots: Where the listener knows nothing yet; without any, it is told only what is new.
            limit: Events to keep for a listener that does not read them.
        """
        log = EventLog(limit)
        log.replay(roots)
        self.logs.append(log)
        return log

    def unlisten(self, log: EventLog) -> None:
        """End a stream."""
        self.logs.remove(log)

    def stored(self, node: Node, start: int) -> None:
        """Tell that the tokens of `node` from `start` on have come."""
        for log in self.logs:
            log.stored(node, start)

    def evicted(self, node: Node, start: int) -> None:
        """Tell that the tokens of `node` from `start` on are about to go."""
        for log in self.logs:
            log.evicted(node, start)

    def flushed(self, roots: Iterable[Node]) -> None:
        """Tell that all went but what is under `roots`."""
        for log in self.logs:
            log.flushed(roots)

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Tell nothing meanwhile."""
        logs, self.logs = self.logs, []
        try:
            yield
        finally:
            self.logs = logs
