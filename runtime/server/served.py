"""What the server asks of the engine that it serves.

Implemented by `boughs.runtime.front.front.Front`. Plain declarations; no behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from boughs.lang.abilities import Identified
from boughs.lang.backend import Backend, Encoding, Pinning
from boughs.lang.segments import Segment
from boughs.runtime.messages import Limits


class Chat(Protocol):
    """Renders conversations with the model's own template."""

    def render_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[Segment]:
        """A conversation in OpenAI's form as segments."""
        ...


class Vocabulary(Protocol):
    """The model's tokens."""

    def token_bytes(self, id_: int) -> bytes:
        """The bytes of a token."""
        ...


class Served(Backend, Pinning, Encoding, Identified, Protocol):
    """A backend that can be served. All methods run on one event loop."""

    @property
    def model_path(self) -> str:
        """The model's folder."""
        ...

    @property
    def limits(self) -> Limits:
        """What the core can serve."""
        ...

    @property
    def tokenizer(self) -> Vocabulary:
        """The model's tokenizer."""
        ...

    @property
    def chat(self) -> Chat:
        """The model's chat template."""
        ...

    def abort(self, rid: str) -> bool:
        """End the request with exactly this id; whether it ran."""
        ...

    def abort_all(self) -> int:
        """End every request; how many ran."""
        ...

    async def tree(self, max_segments: int, max_tokens: int) -> dict[str, Any]:
        """The radix tree as plain data, with texts."""
        ...

    async def health(self) -> bool:
        """Whether the core is alive and not stuck; says so at once."""
        ...
