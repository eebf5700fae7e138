"""What is asked of an API and what it answers, and the chunks that this becomes.

This module knows no API.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from boughs.lang.apis import messages
from boughs.lang.apis.stops import Stopper
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import Chunk, Finish, TokenLogprob
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Content, Segment

NO_ID = -1
"""Stands for a token's id in logprobs: APIs tell a token's text only."""


@dataclass
class Call:
    """What an API is asked to do.

    Attributes:
        params: The parameters. Only those that the API takes are set, or are done on this side.
        conversation: What to continue, of an API that takes messages.
        text: What to continue, of an API that takes a text.
        stop: The stop strings that the API itself is to end at.
        top_logprobs: None: no logprobs; else of so many most likely tokens, too.
    """

    params: SamplingParams
    conversation: messages.Conversation = field(default_factory=lambda: messages.Conversation(()))
    text: str = ""
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None


@dataclass(frozen=True)
class Spent:
    """Tokens of a request; `known` is false where it was closed before the API told them."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    known: bool = True

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.prompt + other.prompt,
            self.cached + other.cached,
            self.completion + other.completion,
            self.known and other.known,
        )


@dataclass(frozen=True)
class Piece:
    """What is new of one choice; `spent`, once it is known, is of the whole request."""

    text: str = ""
    index: int = 0
    logprobs: list[TokenLogprob] | None = None
    finish: Finish | None = None
    spent: Spent | None = None


class Choice:
    """One choice, as it comes.

    Args:
        rid: The request.
        index: Which choice.
        marks: The prompt's role marks.
        stopper: What ends it on this side, if the API does not.

    Attributes:
        finish: Why it ended, once it has.
        told: Whether the API has said that it ended.
        pieces: How many pieces with text came: about as many tokens.
    """

    def __init__(self, rid: str, index: int, marks: list[str], stopper: Stopper | None) -> None:
        self._rid = rid
        self._index = index
        self._marks: list[str] | None = marks
        self._stopper = stopper
        self._text = ""
        self._end = ""  # what a stopper held back and the last chunk gives
        self.finish: Finish | None = None
        self.told = False
        self.pieces = 0

    @property
    def stopped(self) -> bool:
        """Whether nothing more of it is wanted."""
        return self.finish is not None

    def take(self, piece: Piece) -> Chunk | None:
        """The chunk that a piece makes, if it holds anything to be told now."""
        self.told |= piece.finish is not None
        if self.stopped:
            return None
        self.pieces += bool(piece.text)
        text = piece.text
        if self._stopper is not None:
            text = self._stopper.feed(text)
            if self._stopper.matched is not None:
                self.finish = Finish("stop", matched=self._stopper.matched)
        if piece.finish is not None and self.finish is None:
            self._finish(piece.finish)
        if not text and not piece.logprobs:
            return None
        self._text += text
        return self._chunk(text, piece.logprobs)

    def _finish(self, finish: Finish) -> None:
        self.finish = finish
        if self._stopper is not None:
            self._end = self._stopper.rest()
            if self._stopper.matched is not None:
                self.finish = Finish("stop", matched=self._stopper.matched)

    def last(self, spent: Spent | None, made: int) -> Chunk:
        """The last chunk.

        Args:
            spent: What the request took, if the API told it.
            made: The pieces of all choices. The API tells the sum of their tokens; a choice's part
                is taken to be that of its pieces.
        """
        assert self.finish is not None, "it has ended"
        known = spent is not None and spent.known
        total = spent or Spent()
        tokens = self.pieces
        if known:
            tokens = round(total.completion * self.pieces / made) if made else 0
        finish = self.finish
        if finish.type == "length":
            finish = Finish("length", length=tokens)
        chunk = self._chunk(self._end, None)
        chunk.prompt_tokens, chunk.cached_tokens = total.prompt, total.cached
        chunk.completion_tokens, chunk.finish = tokens, finish
        text = self._text + self._end
        chunk.segments = [Content(text)] if text else []
        chunk.extra = None if known else {"usage_known": False}
        return chunk

    def _chunk(self, text: str, logprobs: list[TokenLogprob] | None) -> Chunk:
        marks, self._marks = self._marks, None
        return Chunk(
            rid=self._rid,
            text=text,
            output_ids=[],
            index=self._index,
            completion_tokens=self.pieces,
            logprobs=logprobs,
            rendered=marks,
        )


def whole(
    request: GenerateRequest,
    prompt: list[Segment],
    text: str,
    spent: Spent,
    *,
    index: int = 0,
    cut: bool = False,
    matched: str | int | None = None,
    **extra: Any,
) -> Chunk:
    """An answer of one chunk.

    Args:
        request: What it answers.
        prompt: Its prompt's segments.
        text: All of the text.
        spent: What it took.
        index: Which choice.
        cut: Whether it ended because of its length.
        matched: The stop that it ended at.
        extra: For the meta info.
    """
    if not spent.known:
        extra["usage_known"] = False
    return Chunk(
        rid=request.rid or "",
        text=text,
        output_ids=[],
        index=index,
        prompt_tokens=spent.prompt,
        completion_tokens=spent.completion,
        cached_tokens=spent.cached,
        rendered=messages.rendered(prompt),
        segments=[Content(text)] if text else [],
        finish=Finish("length", length=spent.completion) if cut else Finish("stop", matched),
        extra=extra or None,
    )
