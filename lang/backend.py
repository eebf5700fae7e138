"""What the language asks of a backend.

A backend is anything with the methods of `Backend`: the engine in this process, an endpoint, a
mock, an API model. What it is asked is in `requests`, what it answers in `results`. This module
knows no backend and no program.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

from boughs.lang.requests import EncodeRequest, GenerateRequest, PinRequest, ScoreRequest
from boughs.lang.results import Chunk, Embedding, LeaseState, Scores


@runtime_checkable
class Backend(Protocol):
    """Who runs the requests of programs. All methods run on `boughs.lang.loop`'s event loop."""

    def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """The chunks of the answer. Closing the iterator before its end aborts the request."""
        ...

    async def score(self, request: ScoreRequest) -> Scores:
        """The logprobs of each choice."""
        ...

    async def flush_cache(self, seconds: float = 0.0) -> None:
        """Forget every cached prefix.

        While requests run this raises `BoughsError`; given `seconds` it waits for them that long,
        and others that come meanwhile wait for it.
        """
        ...

    async def get_server_info(self) -> dict[str, Any]:
        """What the backend is and how it does, with at least `model_path`."""
        ...


@runtime_checkable
class Pinning(Protocol):
    """A backend that has a cache of its own, in which prompts can be pinned."""

    def pin(self, request: PinRequest) -> AsyncIterator[LeaseState]:
        """Keep a prompt cached: its first state once it is, its last when that has ended.

        The lease lives as long as the iterator; closing it gives the lease back.
        """
        ...


@runtime_checkable
class Encoding(Protocol):
    """A backend that turns prompts into vectors."""

    async def encode(self, request: EncodeRequest) -> Embedding:
        """The pooled hidden state of a prompt."""
        ...


@runtime_checkable
class Host(Protocol):
    """What has a backend, and can be given in its place: an engine, a server of one's own."""

    @property
    def endpoint(self) -> Backend:
        """The backend."""
        ...
