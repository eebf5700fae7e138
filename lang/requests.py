"""What is asked of a backend: plain data.

This module knows no backend and no program.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from boughs.lang.errors import InvalidRequest
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Segment

Prompt = str | list[int] | list[Segment]
"""A text (special tokens are parsed), token ids, or a state's segments."""

POOLINGS = ("last", "mean")
"""How hidden states become one vector."""

MAX_PIN_SECONDS = 7 * 86400.0
"""The longest lease."""


def _check_queueing(request: EncodeRequest | PinRequest | ScoreRequest) -> None:
    """Raise `InvalidRequest` where what says how a request is queued is of a wrong kind."""
    given: dict[str, Any] = {
        name: getattr(request, name)
        for name in ("cache_salt", "priority", "timeout")
        if name in request.__struct_fields__
    }
    if given["priority"] is None:  # the default of a parameter, and here no number
        raise InvalidRequest("priority: expected a whole number, got None", "priority")
    SamplingParams.from_mapping(given)


class GenerateRequest(msgspec.Struct, kw_only=True):
    """One prompt to be continued.

    Attributes:
        prompt: What to continue.
        params: How. `max_new_tokens=0` only prefills.
        rid: The request's id, to abort it by; drawn when None. No two running requests share one.
        return_logprob: Whether chunks carry logprobs (of the model's own distribution, before
            temperature, penalties and masks).
        logprob_start_len: Prompt tokens from this position on get logprobs too; -1 is none.
        top_logprobs_num: This many most likely tokens at each position.
        token_ids_logprob: These tokens' logprobs at each position, too.
        heal: Whether the output may spell the end of the prompt's text anew, in tokens that go
            beyond it (token healing). What it spells of the prompt is no part of the answer.
    """

    prompt: Prompt
    params: SamplingParams = SamplingParams()
    rid: str | None = None
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: tuple[int, ...] = ()
    heal: bool = False


class ScoreRequest(msgspec.Struct, kw_only=True):
    """Choices to be scored as continuations of a prompt.

    The prompt and a choice are tokenized as one text, so that the border is what it would be in
    a text; all choices are scored from the first position at which any of them differs from the
    prompt alone. With `unconditional`, each choice is also scored without the prompt.
    """

    prompt: Prompt
    choices: list[str]
    unconditional: bool = False
    rid: str | None = None
    cache_salt: str | None = None
    priority: int = 0

    def check(self) -> None:
        """Raise `InvalidRequest` for a field of a wrong kind or out of range."""
        if not isinstance(self.choices, list) or not self.choices:
            raise InvalidRequest(
                f"choices: expected a list of at least one string, got {self.choices!r:.40}",
                "choices",
            )
        for at, choice in enumerate(self.choices):
            if not isinstance(choice, str):
                raise InvalidRequest(
                    f"choices[{at}]: expected a string, got {choice!r:.40}", "choices"
                )
        if not isinstance(self.unconditional, bool):
            raise InvalidRequest(
                f"unconditional: expected a bool, got {self.unconditional!r:.40}", "unconditional"
            )
        _check_queueing(self)


class EncodeRequest(msgspec.Struct, kw_only=True):
    """A prompt to be turned into a vector.

    Attributes:
        prompt: What to encode. It may be as long as the context, as nothing is generated.
        pooling: `last` takes the hidden state of the last token after the model's last norm, which
            has seen all others; `mean` the mean of all tokens' and so computes all of them anew.
        normalize: Whether the vector is scaled to length 1.
        rid: The request's id, to abort it by; drawn when None.
        cache_salt: Requests of different salts share no cached prefix.
        priority: Higher goes first.
        timeout: Seconds after which it fails.
    """

    prompt: Prompt
    pooling: Literal["last", "mean"] = "last"
    normalize: bool = True
    rid: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    timeout: float | None = None

    def check(self) -> None:
        """Raise `InvalidRequest` for a field of a wrong kind or out of range."""
        if self.pooling not in POOLINGS:
            raise InvalidRequest(
                f"pooling must be one of {', '.join(POOLINGS)}, got {self.pooling!r:.40}", "pooling"
            )
        if not isinstance(self.normalize, bool):
            raise InvalidRequest(
                f"normalize: expected a bool, got {self.normalize!r:.40}", "normalize"
            )
        _check_queueing(self)


class PinRequest(msgspec.Struct, kw_only=True):
    """A prompt whose KV cache is to be kept although nobody uses it.

    A lease is a hint about the cache and never changes an answer: where requests need the pages
    it is broken, the one with the oldest deadline first, and the prompt is computed again when it
    is wanted again.

    Attributes:
        prompt: What to keep. It is computed if it is not cached.
        seconds: For how long at most.
        cache_salt: As of the requests that are to find it.
        priority: Of the request that computes it.
    """

    prompt: Prompt
    seconds: float
    cache_salt: str | None = None
    priority: int = 0

    def check(self) -> None:
        """Raise `InvalidRequest` for a field whose value is out of range."""
        seconds = self.seconds
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise InvalidRequest(f"seconds: expected a number, got {seconds!r:.40}", "seconds")
        if not 0 < seconds <= MAX_PIN_SECONDS:
            raise InvalidRequest(
                f"seconds must be above 0 and at most {MAX_PIN_SECONDS:g}, got {seconds!r:.40}",
                "seconds",
            )
        _check_queueing(self)
