"""What a backend may be able to do beside what `Backend` asks of all of them.

This module knows no backend.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from boughs.lang.backend import Backend
from boughs.lang.requests import ScoreRequest
from boughs.lang.results import Scores


@runtime_checkable
class Choosing(Protocol):
    """A backend that may be unable to score, and then lets its model choose."""

    async def choose(self, request: ScoreRequest) -> Scores:
        """The logprobs of each choice, or what the model chose when it was asked."""
        ...


@runtime_checkable
class Identified(Protocol):
    """A backend that says which model answers, so that its answers can be kept."""

    async def identity(self) -> str:
        """A text that changes with all that answers depend on beside the request.

        These are the weights, the tokenizer and its template, and how they are computed with.
        """
        ...


@runtime_checkable
class Seeing(Protocol):
    """A backend whose model may have eyes."""

    @property
    def sees(self) -> bool:
        """Whether a user's turn may hold images."""
        ...


@runtime_checkable
class Speculating(Protocol):
    """A backend of which each request costs, so that one had better make several `gen`s."""

    def ahead(self, tokens: int) -> Backend:
        """The backend for one state, whose requests go on past a stop, up to so many tokens.

        What comes after the stop is kept, and the state's next requests are answered from it as
        far as it is what they would continue.
        """
        ...
