"""The chunks of several requests as one stream, for a reader that may be slower than they come.

What a reader has not taken yet is joined, chunk to chunk, so that no client's backlog is larger
than its answers. This module knows no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple, cast

import msgspec

from boughs.lang.errors import BoughsError
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import Answer, Chunk, TokenLogprob
from boughs.runtime.naming import Names, placed, renamed

from .served import Served

MOST_AT_ONCE = 1024
"""Choices of one call that are given to the engine at once; the others wait here."""


class Piece(NamedTuple):
    """What is new of one answer: the request's place in the call, and the chunk."""

    item: int
    chunk: Chunk


async def merged(
    served: Served,
    requests: Sequence[GenerateRequest],
    *,
    names: Sequence[Names],
    is_list: bool = False,
    idle: float | None = None,
) -> AsyncGenerator[Piece | None, None]:
    """Run all requests; what they answer, as it comes. Closing the iterator aborts them.

    Args:
        served: Runs them.
        requests: At least one.
        names: What the caller calls the fields of each.
        is_list: Whether an error says which of the prompts it is of.
        idle: Give None after so many seconds without news.

    Raises:
        BoughsError: The first failure, with the place of its request; the others are aborted.
    """
    inbox = _Inbox(len(requests))
    queue = enumerate(requests)
    widest = max(max(one.params.n, one.params.best_of or 1) for one in requests)
    most = max(1, MOST_AT_ONCE // widest)
    tasks = [
        asyncio.create_task(_work(served, queue, inbox)) for _ in range(min(most, len(requests)))
    ]
    try:
        while True:
            if not await inbox.wait(idle):
                yield None
                continue
            if inbox.failure is not None:
                at, error = inbox.failure
                if not isinstance(error, BoughsError):
                    raise error
                if is_list:
                    raise placed(error, names[at], names[at]["prompt"]) from error
                raise renamed(error, names[at])
            for piece in inbox.take():
                yield piece
            if inbox.over:
                return
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def collect_all(
    served: Served,
    requests: Sequence[GenerateRequest],
    *,
    names: Sequence[Names],
    is_list: bool = False,
) -> list[list[Answer]]:
    """The whole answers: of each request, of each of its choices. Raises as `merged` does."""
    answers: list[dict[int, Answer]] = [{} for _ in requests]
    async with aclosing(merged(served, requests, names=names, is_list=is_list)) as pieces:
        async for piece in pieces:
            assert piece is not None, "without `idle` there are only pieces"
            add(answers[piece.item], piece.chunk)
    return [[made[index] for index in sorted(made)] for made in answers]


def add(choices: dict[int, Answer], chunk: Chunk) -> Answer:
    """Append a chunk to the answer that it belongs to, and return that."""
    if chunk.index not in choices:
        choices[chunk.index] = Answer.empty(chunk.rid, chunk.index)
    choices[chunk.index].add(chunk)
    return choices[chunk.index]


class _Inbox:
    """What has come and was not read."""

    def __init__(self, running: int) -> None:
        self._running = running
        self._pending: dict[tuple[int, int], Chunk] = {}
        self._news = asyncio.Event()
        self.failure: tuple[int, Exception] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing is left to come or to read."""
        return not self._running and not self._pending

    def put(self, item: int, chunk: Chunk) -> None:
        key = (item, chunk.index)
        before = self._pending.get(key)
        self._pending[key] = chunk if before is None else _joined(before, chunk)
        self._news.set()

    def fail(self, item: int, error: Exception) -> None:
        if self.failure is None:
            self.failure = (item, error)

    def end(self) -> None:
        self._running -= 1
        self._news.set()

    async def wait(self, seconds: float | None) -> bool:
        """Whether there is news within so many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    def take(self) -> list[Piece]:
        """What is new, oldest first; it is not given again."""
        pending, self._pending = self._pending, {}
        return [Piece(item, chunk) for (item, _), chunk in pending.items()]


async def _work(
    served: Served, queue: Iterator[tuple[int, GenerateRequest]], inbox: _Inbox
) -> None:
    """Run one request after the other, as long as there are any."""
    for item, request in queue:
        # The protocol's iterators can be closed: that is how a request is aborted.
        chunks = cast("AsyncGenerator[Chunk, None]", served.generate(request))
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    inbox.put(item, chunk)
        except Exception as error:  # noqa: BLE001 -- the reader raises it
            inbox.fail(item, error)
            return
        finally:
            inbox.end()


def _joined(first: Chunk, second: Chunk) -> Chunk:
    """Two chunks of one choice as one."""
    return msgspec.structs.replace(
        second,
        text=first.text + second.text,
        output_ids=first.output_ids + second.output_ids,
        logprobs=_concatenated(first.logprobs, second.logprobs),
        prompt_logprobs=_concatenated(first.prompt_logprobs, second.prompt_logprobs),
        rendered=second.rendered if first.rendered is None else first.rendered,
    )


def _concatenated(
    first: list[TokenLogprob] | None, second: list[TokenLogprob] | None
) -> list[TokenLogprob] | None:
    if first is None or second is None:
        return second if first is None else first
    return first + second
