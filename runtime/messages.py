"""What the front and the core say to each other: plain data, msgpack on the wire.

The front owns text and validates; the core owns tokens and KV. A request with `n` choices is `n`
submissions here, which share their prefix through the tree; a beam search is one. `key` is a number
that the front draws, unique in the engine's life, so that no two submissions meet whatever their
users call them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from boughs.lang.sampling import SamplingParams

Plain = tuple[str, str, str | None]
"""An error as `boughs.lang.errors.as_plain` gives it."""


class Limits(msgspec.Struct, frozen=True):
    """What the core can serve; the front validates against it.

    `context_length` and `pool_tokens` bound prompt and output together, in tokens; the reasons
    say why this device and these kernels; `weights` says what the matrices are held in, and
    `attention_costs` where what attention takes on this machine was read.
    """

    model_path: str
    vocab_size: int
    context_length: int
    pool_tokens: int
    page_size: int
    num_pages: int
    eos_token_ids: tuple[int, ...]
    attention_backend: str
    dtype: str
    device: str = "cpu"
    device_why: str = ""
    attention_why: str = ""
    max_batched_tokens: int = 256
    weights: str = ""
    attention_costs: str = ""
    kv_cache_dtype: str = ""


# ---- front to core ----


class Submit(msgspec.Struct, kw_only=True, tag="submit"):
    """Run one choice of a request.

    Attributes:
        key: The submission.
        prompt_ids: The whole prompt.
        output_ids: Tokens already produced, on replay. They count as output.
        params: With `seed` and `max_new_tokens` set; with the text's stops for a beam search alone.
        choice: The choice's index, for its random numbers.
        namespace: Requests of different namespaces share no cached prefix.
        logprobs: Whether output logprobs are wanted.
        top_logprobs: How many alternatives at each position.
        token_ids_logprob: Tokens whose logprobs are wanted at each position.
        prompt_logprobs_from: Positions from this one on get logprobs; None is none.
        bad_ids: Token sequences of which none may be produced whole.
        family: The key of the request's first submission, if this is a later one. Those of one
            request share their prefix while they run, also where no prefix is kept.
        targets: Tokens whose logprobs are wanted at each of as many positions, of which the last is
            the one after the prompt. Where a position has none, its row is computed, not read.
        pooling: `last` or `mean` where the prompt's hidden state is wanted.
        confirm: The front reads the text for stops: it sends `Finish` at the end of every such
            submission, and the core keeps the pages until it came.
        given_back: The prompt's last tokens, which the output spells anew or goes beyond.
        heal: Their text, which the output spells before anything else. Tokens that spell nothing
            else count as the prompt's.
        healed: How many of `output_ids` are such tokens.
    """

    key: int
    prompt_ids: list[int]
    output_ids: list[int] = []
    params: SamplingParams
    choice: int = 0
    namespace: str = ""
    logprobs: bool = False
    top_logprobs: int = 0
    token_ids_logprob: list[int] = []
    prompt_logprobs_from: int | None = None
    bad_ids: list[list[int]] = []
    family: int = 0
    targets: list[list[int]] = []
    pooling: str | None = None
    confirm: bool = False
    given_back: list[int] = []
    heal: str = ""
    healed: int = 0


class Finish(msgspec.Struct, tag="finish"):
    """The text ended: the output has `length` tokens; what the core made beyond is dropped."""

    key: int
    length: int


class Abort(msgspec.Struct, tag="abort"):
    """Nobody reads this submission any more. No answer follows."""

    key: int


class Call(msgspec.Struct, tag="call"):
    """Run a method of `boughs.runtime.core.calls` between two steps; a `Reply` follows."""

    id: int
    method: str
    args: dict[str, Any] = {}


class Shutdown(msgspec.Struct, tag="shutdown"):
    """End now."""


ToCore = Submit | Finish | Abort | Call | Shutdown


# ---- core to front ----


class Ready(msgspec.Struct, tag="ready"):
    """The model is loaded."""

    limits: Limits


class Hypothesis(msgspec.Struct, omit_defaults=True):
    """A finished output of a beam search.

    Attributes:
        ids: Its tokens.
        sum_logprob: The sum of their logprobs, penalties and biases included.
        score: What it is ranked by: the sum over the length to the power `length_penalty`.
        finish: `stop` or `length`.
        matched: The token that ended it, for `stop`.
        logprobs: The model's own, one a token, where they are asked for.
        top: As `Output.top`.
        given: As `Output.given`.
        incomplete, weaker: As those of `Output`.
    """

    ids: list[int]
    sum_logprob: float
    score: float
    finish: str
    matched: int | None = None
    logprobs: list[float] | None = None
    top: list[list[tuple[int, float]]] | None = None
    given: list[list[float]] | None = None
    incomplete: bool = False
    weaker: bool = False


class Output(msgspec.Struct, omit_defaults=True):
    """What a step made for one submission.

    Attributes:
        ids: New tokens.
        logprobs: One per new token.
        top: Per new token, (token id, logprob) of the most likely ones, best first.
        given: Per new token, the logprobs of the `token_ids_logprob`, in their order.
        cached_tokens: Prompt tokens that were not computed when it was first admitted.
        forward_steps: Steps so far that computed tokens of it.
        prompt_logprobs: Once, with or before the first token: from `prompt_logprobs_from` on.
        prompt_top: Beside `prompt_logprobs`.
        prompt_given: Beside `prompt_logprobs`.
        scores: The logprobs of `targets`, with the last output.
        embedding: The pooled hidden state, as float32 in this machine's byte order.
        finish: `stop`, `length` or None; the last output of a submission has one.
        matched: The token that ended it, for `stop`.
        forced: How many of the new tokens, the last ones, no step chose: the grammar forced them.
        healed: How many of the new tokens, the first ones, only spell what was given back.
        incomplete: Whether it was cut, for `length`, where its grammar goes on.
        weaker: Whether it ended, by `stop`, under a grammar that allows more than its schema.
        error: (class name, message, field) when it failed; nothing follows.
        hypotheses: What a beam search found, best first; it has only this one output.
    """

    key: int
    ids: list[int] = []
    logprobs: list[float] | None = None
    top: list[list[tuple[int, float]]] | None = None
    given: list[list[float]] | None = None
    cached_tokens: int = 0
    forward_steps: int = 0
    prompt_logprobs: list[float | None] | None = None
    prompt_top: list[list[tuple[int, float]]] | None = None
    prompt_given: list[list[float]] | None = None
    scores: list[list[float]] | None = None
    embedding: bytes | None = None
    finish: str | None = None
    matched: int | None = None
    forced: int = 0
    healed: int = 0
    incomplete: bool = False
    weaker: bool = False
    error: Plain | None = None
    hypotheses: list[Hypothesis] | None = None


class Outputs(msgspec.Struct, tag="outputs"):
    """All that one step made."""

    outputs: list[Output]


class Reply(msgspec.Struct, tag="reply"):
    """The result of a `Call`, or the error (class name, message, field) that it raised."""

    id: int
    result: Any = None
    error: Plain | None = None


class LeaseEnded(msgspec.Struct, tag="lease_ended"):
    """A lease ended by itself: it is `expired` or `broken`."""

    lease: int
    state: str


class Failed(msgspec.Struct, tag="failed"):
    """The core cannot start, or met a fault of its own and ends. (class name, message, field)."""

    error: Plain


FromCore = Ready | Outputs | Reply | LeaseEnded | Failed

to_core = msgspec.msgpack.Decoder(ToCore)
from_core = msgspec.msgpack.Decoder(FromCore)
encode = msgspec.msgpack.Encoder().encode
