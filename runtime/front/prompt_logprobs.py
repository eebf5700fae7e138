"""The logprobs of a prompt, which the first choice has computed and all choices give.

This module knows no core and no text.
"""

from __future__ import annotations

from boughs.lang.results import Chunk, TokenLogprob


class PromptLogprobs:
    """Chunks of several choices on their way out.

    Those of later choices wait until the first has the prompt's logprobs: they may be ahead of it,
    as they take the prompt from the tree, where it had to be computed.

    Args:
        wanted: Whether the first choice brings logprobs that others lack.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._entries: list[TokenLogprob] | None = None
        self._held: list[Chunk] = []
        self._begun: set[int] = set()

    def ready(self, chunk: Chunk) -> list[Chunk]:
        """The chunks that may be sent now that `chunk` has come, in order."""
        if not self._wanted:
            return [chunk]
        if chunk.prompt_logprobs is not None:
            self._entries = chunk.prompt_logprobs
        self._held.append(chunk)
        return [] if self._entries is None else self.rest()

    def rest(self) -> list[Chunk]:
        """What waits, as far as the prompt's logprobs are known."""
        chunks, self._held = self._held, []
        for chunk in chunks:
            if chunk.index not in self._begun:
                self._begun.add(chunk.index)
                chunk.prompt_logprobs = self._entries
        return chunks
