"""What comes back from a backend: plain data.

An answer arrives as `Chunk`s; `collect` puts them together. This module knows no backend and no
program.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any, Literal

import msgspec

from boughs.lang.segments import Segment

LOWEST = -9999.0
"""The logprob of what a model rules out, in place of minus infinity, as in OpenAI's answers: JSON
has no infinity, and a sum with this one is still a number."""


def finite(logprob: float) -> float:
    """`logprob`, or `LOWEST` where it is minus infinity or, from a broken model, no number."""
    return max(LOWEST, logprob)  # in this order NaN loses


class Finish(msgspec.Struct, frozen=True):
    """Why an output ended.

    `type` is `stop`, `length` or `abort`; `matched` the stop string or token id; `length` the
    number of tokens of an output that was cut; `message` says why it was aborted. `incomplete`
    tells of one that was cut where its grammar goes on; `violation` how one that a grammar could
    not hold to its whole schema violates it.
    """

    type: str
    matched: str | int | None = None
    length: int | None = None
    message: str | None = None
    incomplete: bool = False
    violation: str | None = None

    def as_json(self) -> dict[str, Any]:
        """SGLang's `finish_reason`, with what it lacks where there is something to tell."""
        if self.type == "stop":
            told = {} if self.violation is None else {"violation": self.violation}
            return {"type": "stop", "matched": self.matched, **told}
        if self.type == "length":
            cut = {"incomplete": True} if self.incomplete else {}
            return {"type": "length", "length": self.length, **cut}
        return {"type": "abort", "message": self.message}


class TokenLogprob(msgspec.Struct, frozen=True):
    """A token and its natural logprob.

    All are of the model's own distribution, before temperature, penalties, bias and masks, and
    finite: `LOWEST` stands where the model rules a token out. `logprob` is None for a prompt's
    first token, which nothing predicts. `top` holds the most likely tokens at the position, best
    first, as (logprob, token id, text); `given` those of `token_ids_logprob`, in its order.
    """

    logprob: float | None
    token_id: int
    text: str
    top: list[tuple[float, int, str]] | None = None
    given: list[tuple[float, int, str]] | None = None


class Chunk(msgspec.Struct, kw_only=True):
    """What is new of one choice of an answer.

    A character once in a `text` never changes. Every choice ends with exactly one chunk that has
    a `finish`; a request that fails raises from the iterator instead.

    Attributes:
        rid: The request.
        text: The characters that are new (may be empty).
        output_ids: The tokens that are new. In the last chunk a trimmed stop's tokens are counted
            in `completion_tokens` and are part of `output_ids`, but not of `segments`.
        index: Which of the `n` choices.
        prompt_tokens: Of the whole prompt.
        completion_tokens: So far, of this choice.
        cached_tokens: Prompt tokens that were not computed for this choice.
        logprobs: One per token in `output_ids`, when asked for.
        prompt_logprobs: In a choice's first chunk, when asked for: the entries from
            `logprob_start_len` on, the one at position 0 being None.
        rendered: In a choice's first chunk: the text of each role mark of the prompt, in order.
        segments: In the last chunk: what was produced, to be appended to the state: ids, and text
            for the rest of a token that a trimmed stop cut.
        finish: In the last chunk: why it ended.
        cumulative_logprob: In the last chunk, with `best_of` or `beam_width`: the sum of the
            output's logprobs; in a beam search, penalties and biases included.
        sequence_score: In the last chunk of a beam search: what the outputs are ranked by.
        discarded_tokens: In the last chunk of the first choice, with `best_of`: tokens of the
            choices that were made and are not among the `n`.
        extra: In the last chunk: what only this kind of backend tells, for the meta info.
        forced_tokens: How many of the completion tokens a grammar forced, without a step each.
        forward_steps: Steps of the model so far that computed tokens of this choice: of its prompt
            and of its output. The first choice of a beam search has all of the search's, that of a
            `best_of` those of the discarded choices too.
        token_chars: In the last chunk, where the backend knows: how many characters of the text
            each of the output's tokens completed, those of a trimmed stop (beyond the text) too.
        forced_at: Beside `token_chars`: which of the tokens a grammar forced.
    """

    rid: str
    text: str
    output_ids: list[int]
    index: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    rendered: list[str] | None = None
    segments: list[Segment] | None = None
    finish: Finish | None = None
    cumulative_logprob: float | None = None
    sequence_score: float | None = None
    discarded_tokens: int = 0
    extra: dict[str, Any] | None = None
    forced_tokens: int = 0
    forward_steps: int = 0
    token_chars: list[int] | None = None
    forced_at: list[int] | None = None


class ChoiceScore(msgspec.Struct, kw_only=True):
    """The tokens of one choice, from the border on, and their logprobs.

    `unconditional` has as many entries; the first is 0.0 where nothing stands before it. All are
    finite, as in `TokenLogprob`.
    """

    token_ids: list[int]
    logprobs: list[float]
    unconditional: list[float] | None = None


class Scores(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The answer to a `ScoreRequest`: one entry a choice, in order.

    A backend that could not score but asked (`Choosing`) gives no entry, the index of the choice
    in `chosen`, and what the answers to its question took. `forward_steps` are the model's, a step
    counting once for each branch of the choices' tree that it computed tokens of.
    """

    choices: list[ChoiceScore]
    prompt_tokens: int
    cached_tokens: int
    rendered: list[str] | None = None
    chosen: int | None = None
    completion_tokens: int = 0
    extra: dict[str, Any] | None = None
    forward_steps: int = 0


class Embedding(msgspec.Struct, kw_only=True):
    """The answer to an `EncodeRequest`.

    Attributes:
        rid: The request.
        vector: As many numbers as the model's hidden states have.
        prompt_tokens: Of the whole prompt.
        cached_tokens: Prompt tokens that were not computed.
    """

    rid: str
    vector: list[float]
    prompt_tokens: int
    cached_tokens: int


class LeaseState(msgspec.Struct, frozen=True, kw_only=True):
    """How a lease does: `held`, and at last `expired` or `broken`.

    `tokens` is how much of the prompt is kept; it may grow again to all of it after an engine core
    has died and another has taken its place.
    """

    state: Literal["held", "expired", "broken"]
    tokens: int


class Answer(msgspec.Struct, kw_only=True):
    """One choice of an answer, whole."""

    rid: str
    text: str
    output_ids: list[int]
    finish: Finish | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    logprobs: list[TokenLogprob] | None
    prompt_logprobs: list[TokenLogprob] | None
    rendered: list[str]
    segments: list[Segment]
    index: int = 0
    cumulative_logprob: float | None = None
    sequence_score: float | None = None
    discarded_tokens: int = 0
    extra: dict[str, Any] | None = None
    forced_tokens: int = 0
    forward_steps: int = 0
    token_chars: list[int] | None = None
    forced_at: list[int] | None = None

    def add(self, chunk: Chunk) -> None:
        """Append what is new in `chunk`."""
        self.text += chunk.text
        self.output_ids += chunk.output_ids
        self.finish = chunk.finish
        self.prompt_tokens = chunk.prompt_tokens
        self.completion_tokens = chunk.completion_tokens
        self.cached_tokens = chunk.cached_tokens
        if chunk.logprobs is not None:
            self.logprobs = (self.logprobs or []) + chunk.logprobs
        if chunk.prompt_logprobs is not None:
            self.prompt_logprobs = chunk.prompt_logprobs
        if chunk.rendered is not None:
            self.rendered = chunk.rendered
        if chunk.segments is not None:
            self.segments = chunk.segments
        self.cumulative_logprob = chunk.cumulative_logprob
        self.sequence_score = chunk.sequence_score
        self.discarded_tokens = chunk.discarded_tokens
        if chunk.extra is not None:
            self.extra = chunk.extra
        self.forced_tokens = chunk.forced_tokens
        self.forward_steps = chunk.forward_steps
        if chunk.token_chars is not None:
            self.token_chars, self.forced_at = chunk.token_chars, chunk.forced_at

    def as_chunk(self) -> Chunk:
        """The whole answer as one chunk."""
        return Chunk(**{name: getattr(self, name) for name in self.__struct_fields__})

    @classmethod
    def empty(cls, rid: str, index: int = 0) -> Answer:
        """An answer of which nothing has arrived."""
        return cls(
            rid=rid,
            text="",
            output_ids=[],
            finish=None,
            prompt_tokens=0,
            completion_tokens=0,
            cached_tokens=0,
            logprobs=None,
            prompt_logprobs=None,
            rendered=[],
            segments=[],
            index=index,
        )


async def collect(chunks: AsyncIterable[Chunk]) -> list[Answer]:
    """The answers that the chunks make up, one a choice, in the order of their index."""
    answers: dict[int, Answer] = {}
    async for chunk in chunks:
        if chunk.index not in answers:
            answers[chunk.index] = Answer.empty(chunk.rid, chunk.index)
        answers[chunk.index].add(chunk)
    return [answers[index] for index in sorted(answers)]
