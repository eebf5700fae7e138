"""One submission on its way through the scheduler.

A request's tokens are its prompt and its output in one array; `computed` of them have rows in the
KV cache. It is waiting (no pages), running (it holds a `Sequence` of pages), or ended and kept
until the front has read its text (`confirm`). A beam search is prefilled as one request; from its
first step on its pages are its beams', each of them a request in no queue. This module knows no
queue and no model.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from boughs.radix import Sequence, Spot
from boughs.runtime.constraints.compiler import Compiled
from boughs.runtime.constraints.matcher import Matcher
from boughs.runtime.core.beam import BeamSearch
from boughs.runtime.core.sampler import RowState
from boughs.runtime.front.tokenizer import Tokenizer
from boughs.runtime.messages import Output, Submit

HEALING = 1 << 63
"""The first index of the random numbers that choose how a prompt's end is spelt anew."""


class Compiling(NamedTuple):
    """What a request waits for before it can run: its grammar, the tokenizer for its beams."""

    grammar: Compiled | None
    tokenizer: Future[Tokenizer] | None

    def done(self) -> bool:
        """Whether all of it is there."""
        return all(part is None or part.done() for part in self)


@dataclass(slots=True, eq=False)
class Request:
    """The state of one submission.

    Attributes:
        submit: What the front asked for.
        arrival: Position in the order of arrival; the last arrived is retracted first.
        limit: Most tokens (prompt and output) that it may have.
        most: What `limit` cannot be raised beyond.
        healed: Tokens after the submitted prompt that are the prompt's, too: its end, spelt anew.
        guessed: Whether the last of these is the very token that the prompt gave back, computed in
            the hope that it is the one that spells it: nothing yet says that it is.
        tokens: Prompt and output, int32.
        computed: How many of them have rows in the cache. Without a sequence: 0.
        sequence: Its pages, while it runs.
        queued: When it came, until it is first admitted.
        since: The step in which it began to wait, for ageing.
        cached_tokens: Prompt tokens found in the cache when it was first admitted.
        prompt_logprobs: Gathered chunk by chunk, where they are asked for.
        untold: Forced tokens, its last, that are told when their logprobs are known.
        row: What the sampler keeps for it.
        matcher: Its grammar, if it has one.
        compiled: Where its grammar and what else it waits for will be, until they are there.
        scope: Requests of another scope share no prefix with it.
        wanted: While it waits, the tokens that may come from the cache, as the tree keys them.
        spot: Where they were found last.
        place: All its tokens in the same form, where the policy orders by them.
        scores: The logprobs of its targets, gathered chunk by chunk.
        pooled: What its embedding is made of, so far.
        finish: Why the core ended it: `stop` or `length`.
        search: The beam search that it is, if it is one.
        beams: Of a search that has taken its first step, best first.
        group: Of a beam, its search.
        heir_of: Of a beam without pages, the one whose committed sequence it is to fork.
        steps: How many steps computed tokens of it. Not of a search's beams, which share steps.
    """

    submit: Submit
    arrival: int
    limit: int
    tokens: array[int]
    row: RowState
    matcher: Matcher | None = None
    compiled: Compiling | None = None
    scope: Hashable = ""
    wanted: bytes = b""
    spot: Spot | None = None
    place: bytes = b""
    most: int = 0
    healed: int = 0
    guessed: bool = False
    computed: int = 0
    sequence: Sequence | None = None
    since: int | None = None
    queued: float | None = field(default_factory=time.monotonic)
    cached_tokens: int | None = None
    prompt_logprobs: list[float | None] = field(default_factory=list)
    prompt_top: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_given: list[list[float]] = field(default_factory=list)
    untold: Output | None = None
    scores: list[list[float]] = field(default_factory=list)
    pooled: Tensor | None = None
    finish: str | None = None
    common: dict[int, int] = field(default_factory=dict)
    search: BeamSearch | None = None
    beams: list[Request] = field(default_factory=list)
    group: Request | None = None
    heir_of: Request | None = None
    steps: int = 0

    @property
    def key(self) -> int:
        """The submission's key."""
        return self.submit.key

    @property
    def family(self) -> int:
        """What the submissions of one request have in common."""
        return self.submit.family or self.submit.key

    @property
    def is_plain(self) -> bool:
        """Whether its next token is the most likely one, of those that its grammar allows."""
        of_search = self.search is not None or self.group is not None
        return not of_search and self.row.is_plain(self.output_len)

    @property
    def reads_rows(self) -> bool:
        """Whether more is wanted of its rows than the token that follows the last of them."""
        submit = self.submit
        return not (
            submit.prompt_logprobs_from is None
            and submit.pooling is None
            and not submit.targets
            and self.untold is None
        )

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return self.submit.params.priority

    @property
    def prompt_len(self) -> int:
        """Tokens of the prompt, as far as it is spelt."""
        return len(self.submit.prompt_ids) + self.healed

    @property
    def draw_index(self) -> int:
        """Which random number is the next token's: its index in the output, if it is in it."""
        if self.matcher is not None and self.matcher.in_prefix:
            return HEALING + self.healed
        return self.output_len

    def heal(self, token: int) -> None:
        """Its last token turned out to spell nothing but the prompt's end."""
        self.healed += 1
        self.limit = min(self.limit + 1, self.most)
        self.row.note_prompt([token])

    def guess(self, token: int) -> None:
        """Take it for granted that this token spells the prompt's end, until `withdraw`."""
        self.tokens.append(token)
        self.healed += 1
        self.limit += 1
        self.guessed = True

    def withdraw(self) -> tuple[int, int]:
        """Forget the guess; what it was, and `computed` with it."""
        guess, computed = self.tokens.pop(), self.computed
        self.healed -= 1
        self.limit -= 1
        self.guessed = False
        self.computed = min(computed, len(self.tokens))
        return guess, computed

    @property
    def settled(self) -> int:
        """How many of the rows it has are of tokens that are sure."""
        return min(self.computed, len(self.tokens) - self.guessed)

    @property
    def output_len(self) -> int:
        """Tokens produced so far, those of a replay included."""
        return len(self.tokens) - self.prompt_len

    @property
    def remaining(self) -> int:
        """Tokens that have no rows yet: 1 in decode, more in prefill."""
        return len(self.tokens) - self.computed

    @property
    def prefilling(self) -> bool:
        """Whether it has more to compute than the token sampled last. Not of a search's beams."""
        return not self.beams and (self.remaining > 1 or not self.begun)

    @property
    def begun(self) -> bool:
        """Whether a token was sampled, be it one that the prompt gave back."""
        return len(self.tokens) > len(self.submit.prompt_ids)

    @property
    def parts(self) -> list[Request]:
        """What holds the pages: its beams, or itself."""
        return self.beams or [self]

    @property
    def holds_pages(self) -> bool:
        """Whether it is running, or ended and kept."""
        return any(part.sequence is not None for part in self.parts)

    @property
    def width(self) -> int:
        """How many tokens it decodes in a step, at most."""
        return 1 if self.search is None else self.search.width

    @property
    def longest(self) -> int:
        """Tokens that it has; of a search, that a beam has."""
        return len(self.parts[0].tokens)

    @property
    def matchable(self) -> int:
        """How many leading tokens may come from the cache.

        At least one is computed, to have logits, and the one before a guess; prompt logprobs need
        the logits of the row before their first position, and so do targets and forced tokens.
        They are gathered once: not again after a retraction. A mean is of all rows, and begins
        anew.
        """
        most = len(self.tokens) - 1 - self.guessed
        if self.submit.pooling == "mean":
            return 0
        if self.untold is not None:
            return min(most, self.first_untold - 1)
        if self.submit.targets:
            return min(most, self.first_target + len(self.scores))
        start = self.submit.prompt_logprobs_from
        if start is not None and not self.prompt_logprobs_complete:
            return max(0, min(most, start + len(self.prompt_logprobs) - 1))
        return most

    @property
    def first_untold(self) -> int:
        """The position of the first token that waits for its logprob."""
        assert self.untold is not None, "one waits"
        known = len(self.untold.logprobs or ())
        return len(self.tokens) - len(self.untold.ids) + known

    @property
    def first_target(self) -> int:
        """The row that predicts the first position with targets."""
        return self.prompt_len - len(self.submit.targets)

    @property
    def prompt_logprobs_complete(self) -> bool:
        """Whether every prompt logprob that was asked for has been gathered."""
        start = self.submit.prompt_logprobs_from
        return start is None or len(self.prompt_logprobs) >= self.prompt_len - start

    def token_bytes(self, length: int | None = None) -> bytes:
        """The first `length` tokens as the int32 bytes that the tree keys by."""
        tokens = self.tokens if length is None else self.tokens[:length]
        return tokens.tobytes()

    def output(self, **fields: object) -> Output:
        """An answer to the front about this request."""
        cached = self.cached_tokens or 0
        return Output(key=self.key, cached_tokens=cached, forward_steps=self.steps, **fields)  # type: ignore[arg-type]
