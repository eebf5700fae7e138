"""A backend whose answers are kept on disk.

An answer is kept if asking again would give the same: greedy decoding, beam search, a seed, scores,
and what only prefills. A draw without a seed is a new one each time, and is always asked for. Only
answers that came to their end are kept; errors and what was cut by anything but the request's own
`max_tokens` are not. This module knows neither programs nor files.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

import msgspec

from boughs.lang.abilities import Choosing, Identified, Seeing
from boughs.lang.backend import Backend, Pinning
from boughs.lang.call_cache import CallCache
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.requests import GenerateRequest, PinRequest, Prompt, ScoreRequest
from boughs.lang.results import Answer, Chunk, LeaseState, Scores
from boughs.lang.sampling import GREEDY_BELOW, SamplingParams
from boughs.lang.segments import Ids, Segment, Text

FORMAT = 1
"""Counts up when what is kept changes its form or its meaning."""

IDENTITY_SECONDS = 5.0
"""How long a backend is believed to be what it said it was."""

_KEPT = {"call_cache": "hit"}
_AS_ASKED = ("priority", "timeout")
"""Parameters that change when an answer comes, and not what it is."""


class Cached:
    """A backend that asks another one only for what is not kept.

    Args:
        inner: Who is asked.
        cache: Where answers are kept.
    """

    def __init__(self, inner: Backend, cache: CallCache) -> None:
        if not isinstance(inner, Identified):
            raise Unsupported(
                f"cache: a {type(inner).__name__} does not say which model answers, so that its "
                "answers cannot be told from another's; run without cache=…",
                "cache",
            )
        self.inner = inner
        self.cache = cache
        self._identified = inner
        self._identity: str | None = None
        self._asked_at = 0.0

    def __repr__(self) -> str:
        return f"<{self.inner!r} with {self.cache!r}>"

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """The chunks of the answer; one a choice where it was kept."""
        if not repeats(request.params):
            async with aclosing(_chunks(self.inner, request)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        key = await self._key("generate", request)
        kept = self._find(key, list[Answer])
        if kept is not None:
            for answer in kept:
                answer.rid = request.rid or answer.rid
                answer.extra = {**(answer.extra or {}), **_KEPT}
                yield answer.as_chunk()
            return
        answers: dict[int, Answer] = {}
        async with aclosing(_chunks(self.inner, request)) as chunks:
            async for chunk in chunks:
                answer = answers.setdefault(chunk.index, Answer.empty(chunk.rid, chunk.index))
                answer.add(chunk)
                yield chunk
        made = [answers[index] for index in sorted(answers)]
        if len(made) == request.params.n and all(_whole(a, request.params) for a in made):
            await self._keep(key, made)

    async def score(self, request: ScoreRequest) -> Scores:
        """The logprobs of each choice."""
        key = await self._key("score", request)
        kept = self._found(key)
        if kept is not None:
            return kept
        scores = await self.inner.score(request)
        await self._keep(key, scores)
        return scores

    @property
    def sees(self) -> bool:
        """Whether the backend's model has eyes."""
        return isinstance(self.inner, Seeing) and self.inner.sees

    async def flush_cache(self, seconds: float = 0.0) -> None:
        """Forget every cached prefix of the backend; the answers on disk stay."""
        await self.inner.flush_cache(seconds)

    async def get_server_info(self) -> dict[str, Any]:
        """What the backend is and how it does."""
        return await self.inner.get_server_info()

    async def _key(self, kind: str, request: GenerateRequest | ScoreRequest) -> str | None:
        """The digest of all that an answer depends on; None of what is no text."""
        now = time.monotonic()
        if self._identity is None or now - self._asked_at > IDENTITY_SECONDS:
            self._identity, self._asked_at = await self._identified.identity(), now
        fields: dict[str, Any] = msgspec.to_builtins(request, str_keys=True)
        fields["prompt"] = [msgspec.to_builtins(part) for part in _segments(request.prompt)]
        fields.pop("rid", None)
        params = fields.get("params", fields)
        for name in _AS_ASKED:
            params.pop(name, None)
        try:
            what = msgspec.json.encode((FORMAT, self._identity, kind, fields), order="sorted")
        except UnicodeEncodeError:  # the backend refuses it, and says where
            return None
        return hashlib.blake2b(what, digest_size=20).hexdigest()

    def _find(self, key: str | None, kind: Any) -> Any:
        """What is kept under a key, unless it is of another form."""
        raw = None if key is None else self.cache.find(key)
        try:
            return None if raw is None else msgspec.msgpack.decode(raw, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def _found(self, key: str | None) -> Scores | None:
        """The scores that are kept under a key."""
        kept: Scores | None = self._find(key, Scores)
        if kept is not None:
            kept.extra = {**(kept.extra or {}), **_KEPT}
        return kept

    async def _keep(self, key: str | None, made: list[Answer] | Scores) -> None:
        if key is None:
            return
        await asyncio.to_thread(self.cache.keep, key, msgspec.msgpack.encode(made))


class CachedPinning(Cached):
    """A `Cached` over a backend that pins."""

    async def pin(self, request: PinRequest) -> AsyncIterator[LeaseState]:
        """Keep a prompt in the backend's own cache."""
        assert isinstance(self.inner, Pinning), "it is made for such"
        states = self.inner.pin(request)
        try:
            async for state in states:
                yield state
        finally:
            if isinstance(states, AsyncGenerator):
                await states.aclose()


class CachedChoosing(Cached):
    """A `Cached` over a backend that may let its model choose, and may speculate."""

    async def choose(self, request: ScoreRequest) -> Scores:
        """Scores, or what the model chose: that is a draw without a seed, and is not kept."""
        assert isinstance(self.inner, Choosing), "it is made for such"
        key = await self._key("score", request)
        kept = self._found(key)
        if kept is not None:
            return kept
        scores = await self.inner.choose(request)
        if scores.chosen is None:
            await self._keep(key, scores)
        return scores

    def ahead(self, tokens: int) -> Backend:
        """Refuse: what a call wrote past its stop belongs to one state."""
        raise Unsupported(
            f"cache: cannot be had together with num_api_spec_tokens={tokens}; leave out one",
            "cache",
        )


def cached_backend(inner: Backend, asked: CallCache | bool) -> Backend:
    """`inner` with a cache as `asked`: True is the default one, False none.

    Raises:
        InvalidRequest: `asked` is none of these.
        Unsupported: The backend does not say which model it has.
    """
    if isinstance(inner, Cached):
        if asked is True or inner.cache is asked:
            return inner
        inner = inner.inner
    if asked is False:
        return inner
    if asked is True:
        asked = default_cache()
    if not isinstance(asked, CallCache):
        raise InvalidRequest(
            f"cache: expected True, False or a boughs.CallCache, got {asked!r:.40}", "cache"
        )
    if isinstance(inner, Choosing):
        return CachedChoosing(inner, asked)
    return CachedPinning(inner, asked) if isinstance(inner, Pinning) else Cached(inner, asked)


def default_cache() -> CallCache:
    """The cache of `cache=True`: one a process and folder, as `$BOUGHS_HOME` may change."""
    made = CallCache()
    return _defaults.setdefault(str(made.folder), made)


_defaults: dict[str, CallCache] = {}


def repeats(params: SamplingParams) -> bool:
    """Whether the same request has the same answer each time."""
    return (
        params.seed is not None
        or params.max_new_tokens == 0
        or params.temperature < GREEDY_BELOW
        or params.beam_width is not None
    )


def _whole(answer: Answer, params: SamplingParams) -> bool:
    """Whether an answer came to its own end, or to the limit that its request gave."""
    if answer.finish is None or answer.finish.type == "abort":
        return False
    if answer.finish.type == "stop":
        return True
    most = params.max_new_tokens
    return most is not None and answer.completion_tokens >= most


async def _chunks(backend: Backend, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
    """The chunks of an answer, which is ended where this is."""
    chunks = backend.generate(request)
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


def _segments(prompt: Prompt) -> list[Segment]:
    """A prompt of any form in one form."""
    if isinstance(prompt, str):
        return [Text(prompt)]
    ids = [item for item in prompt if isinstance(item, int)]
    return [Ids(ids)] if ids else [item for item in prompt if not isinstance(item, int)]
