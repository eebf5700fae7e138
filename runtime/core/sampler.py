"""From logits to the next token.

Every row is treated by itself, so that what shares its batch cannot change it. One uniform number
is drawn per (seed, choice, index in the output) and inverts the CDF of the tokens that are kept:
a request that is replayed, retracted or batched otherwise draws the same numbers. This module
knows no request and no cache.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from boughs.kernels.bitmask import Bits, best_allowed, expand, forbid
from boughs.kernels.filters import TORCH, Filters
from boughs.lang.errors import BoughsError, InvalidRequest
from boughs.lang.sampling import SamplingParams
from boughs.runtime.core.forbidden import Forbidden


def uniform(seed: int, choice: int, index: int) -> float:
    """The random number in [0, 1) of the output token at `index`."""
    digest = hashlib.blake2b(struct.pack("<QQQ", seed, choice, index), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


@dataclass(slots=True)
class RowState:
    """What the sampler keeps for one request.

    Attributes:
        params: The request's parameters, `seed` set.
        choice: Its index among the `n` choices.
        ends: Tokens that end it (its EOS and `stop_token_ids`).
        counts: How often each token stands in the output; kept where a penalty needs it.
        seen: Tokens of prompt and output; kept where `repetition_penalty` needs it.
        forbidden: What its own lists forbid, if it has any.
        bare: Whether its parameters ask for nothing but the most likely token.
    """

    params: SamplingParams
    choice: int
    ends: frozenset[int]
    counts: dict[int, int] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    forbidden: Forbidden | None = None
    bare: bool = field(init=False)

    def __post_init__(self) -> None:
        params = self.params
        penalties = params.frequency_penalty or params.presence_penalty
        moved = penalties or params.repetition_penalty != 1.0 or params.logit_bias
        self.bare = params.greedy and not moved

    def is_plain(self, index: int) -> bool:
        """Whether the output token at `index` is the most likely one, whatever that is."""
        if not self.bare or self.forbidden is not None:
            return False
        return index >= self.params.min_new_tokens or not self.ends

    def fork(self) -> RowState:
        """The same, for an output that goes on another way."""
        forbidden = None if self.forbidden is None else self.forbidden.fork()
        return replace(self, counts=dict(self.counts), seen=set(self.seen), forbidden=forbidden)

    def note_prompt(self, ids: list[int]) -> None:
        """Take the prompt into account."""
        if self.params.repetition_penalty != 1.0:
            self.seen.update(ids)

    def note_output(self, token: int) -> None:
        """Take one output token into account."""
        if self.bare and self.forbidden is None:
            return
        if self.params.repetition_penalty != 1.0:
            self.seen.add(token)
        if self.params.frequency_penalty or self.params.presence_penalty:
            self.counts[token] = self.counts.get(token, 0) + 1
        if self.forbidden is not None:
            self.forbidden.note(token)


def most_likely(
    logits: Tensor, plain: Sequence[bool], masks: Sequence[Bits | None]
) -> list[int | None]:
    """The tokens of the rows that need nothing but the most likely one, all at once.

    It is bitwise what `sample` gives for each; None stands for the rows that `sample` is to treat.
    Ties go to the lower token id.

    Args:
        logits: float32 [rows, vocab].
        plain: Which rows are so (`RowState.is_plain`).
        masks: Of each row, the tokens that its grammar allows, if it has one.
    """
    made: list[int | None] = [None] * len(plain)
    rows = [at for at, is_plain in enumerate(plain) if is_plain and masks[at] is None]
    masked = [at for at, is_plain in enumerate(plain) if is_plain and masks[at] is not None]
    if not rows and not masked:
        return made
    if masked:
        bits = [mask for at in masked if (mask := masks[at]) is not None]
        found = _best_under(logits, masked, bits).tolist()
        for at, token in zip(masked, found, strict=True):
            made[at] = None if token < 0 else token  # else `sample` says what is wrong
    if not rows:
        return made
    tokens, best = _best(logits if len(rows) == len(plain) else logits[rows])
    for at, token, good in zip(rows, tokens.tolist(), np.isfinite(best).tolist(), strict=True):
        if good:  # else `sample` says what is wrong
            made[at] = token
    return made


def _best(logits: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The token of the highest logit of each row [rows, vocab], and that logit."""
    if logits.device.type == "cpu":
        table = logits.numpy(force=True)  # whose argmax takes a tenth of torch's time
        tokens = table.argmax(-1)
        return tokens, table[np.arange(len(tokens)), tokens]
    best = logits.max(-1)
    return best.indices.numpy(force=True), best.values.numpy(force=True)


def _best_under(logits: Tensor, rows: list[int], masks: list[Bits]) -> np.ndarray:
    """The best allowed token of some rows of [rows, vocab]; -1 where it is for `sample` to find."""
    if logits.device.type != "cpu":
        allowed = expand(np.stack(masks), logits.shape[-1], logits.device)
        tokens, best = _best(logits[rows].masked_fill(~allowed, -torch.inf))
        return np.where(np.isfinite(best), tokens, -1)
    found = np.empty(len(rows), dtype=np.int64)
    table = np.ascontiguousarray(logits.numpy(force=True))
    best_allowed()(table, np.array(rows), np.stack(masks), found)
    return found


def sample(
    logits: Tensor,
    row: RowState,
    index: int,
    mask: Bits | None,
    filters: Filters = TORCH,
) -> int:
    """The next token of one request.

    Args:
        logits: float32 [vocab], the row's own; changed in place.
        row: The request's parameters and counts.
        index: How many output tokens it has.
        mask: uint32 [words], the tokens that its grammar allows (`kernels.bitmask`), or None.
        filters: What top-k and top-p are computed by.

    Raises:
        InvalidRequest: Every token is forbidden.
        BoughsError: The model gave what are no numbers.
    """
    params = row.params
    adjust(logits, row, index, mask)
    tokens, values = _best(logits[None])
    token, best = int(tokens[0]), float(values[0])
    if best == -math.inf:
        raise nothing_left(row, index, constrained=mask is not None)
    if not math.isfinite(best):
        raise BoughsError(f"the model's best logit is {best}: its weights or inputs are broken")
    if params.greedy:
        return token
    probs = kept_probs(logits, params, filters)
    cdf = probs.double().cumsum(0)
    drawn = uniform(params.seed or 0, row.choice, index) * float(cdf[-1])
    at = int(torch.searchsorted(cdf, cdf.new_tensor(drawn), right=True))
    # Rounding may leave the draw at the very end, behind the last token that is kept.
    return at if at < len(probs) and probs[at] > 0 else int(probs.nonzero()[-1])


def adjust(logits: Tensor, row: RowState, index: int, mask: Bits | None) -> None:
    """Apply all that comes before temperature: penalties, then the bias, then what is forbidden.

    Args:
        logits: float32 [vocab]; changed in place. Forbidden tokens get minus infinity.
        row: The request's parameters and counts.
        index: How many output tokens it has.
        mask: uint32 [words], the tokens that its grammar allows (`kernels.bitmask`), or None.
    """
    penalize(logits, row)
    add_bias(logits, row.params)
    forbid_tokens(logits, row, index, mask)


def penalize(logits: Tensor, row: RowState) -> None:
    """Apply the penalties to logits [vocab], in place."""
    params = row.params
    if row.seen:
        ids = torch.tensor(sorted(row.seen), device=logits.device)
        scores = logits[ids]
        penalty = params.repetition_penalty
        logits[ids] = torch.where(scores > 0, scores / penalty, scores * penalty)
    if row.counts:
        ids = torch.tensor(list(row.counts), device=logits.device)
        counts = torch.tensor(list(row.counts.values()), dtype=logits.dtype, device=logits.device)
        logits[ids] -= params.frequency_penalty * counts + params.presence_penalty


def add_bias(logits: Tensor, params: SamplingParams) -> None:
    """Add `logit_bias` to logits [..., vocab], in place."""
    if params.logit_bias:
        ids = torch.tensor(list(params.logit_bias), device=logits.device)
        logits[..., ids] += torch.tensor(
            list(params.logit_bias.values()), dtype=logits.dtype, device=logits.device
        )


def forbid_tokens(logits: Tensor, row: RowState, index: int, mask: Bits | None) -> None:
    """Give minus infinity to what is forbidden. Arguments as of `adjust`."""
    if mask is not None:
        if logits.device.type == "cpu":
            forbid()(logits.numpy(), mask)
        else:
            logits.masked_fill_(~expand(mask, len(logits), logits.device), -torch.inf)
    if row.forbidden is not None:
        if row.forbidden.always is not None:
            logits.masked_fill_(row.forbidden.always.to(logits.device), -torch.inf)
        logits[row.forbidden.next()] = -torch.inf
    if index < row.params.min_new_tokens and row.ends:
        ends = sorted(row.ends)
        # Where the end is all that a grammar leaves, there is no more to come.
        if mask is None or _allows_other(mask, ends):
            logits[ends] = -torch.inf


def _allows_other(mask: Bits, tokens: Sequence[int]) -> bool:
    rest = mask.copy()
    for token in tokens:
        rest[token // 32] &= ~np.uint32(1 << token % 32)
    return bool(rest.any())


def nothing_left(row: RowState, index: int, *, constrained: bool) -> InvalidRequest:
    """The error of an output of `index` tokens that every token is forbidden to."""
    params = row.params
    forbids = {
        "allowed_token_ids": params.allowed_token_ids is not None,
        "bad_words": row.forbidden is not None and row.forbidden.has_words,
        f"min_new_tokens={params.min_new_tokens}": index < params.min_new_tokens,
        "the grammar": constrained,
    }
    names = " and ".join(name for name, given in forbids.items() if given) or "the model itself"
    return InvalidRequest(
        f"no token is left after {index} output tokens: {names} forbid all of them; allow more"
    )


def kept_probs(logits: Tensor, params: SamplingParams, filters: Filters = TORCH) -> Tensor:
    """Probabilities of the tokens that temperature, top-k, top-p and min-p keep; 0 elsewhere.

    The filters are applied in this order, each on the distribution that the one before leaves, as
    transformers' warpers do. Ties at a border are broken as the filters do.

    Args:
        logits: float32 [vocab].
        params: Sampling parameters, not greedy.
        filters: What top-k and top-p are computed by.
    """
    scaled = (logits - logits.max()) / params.temperature
    if 0 < params.top_k < len(scaled):
        scaled = filters.top_k(scaled, params.top_k)
    probs = scaled.softmax(0)
    if params.top_p < 1.0:
        probs = filters.top_p(probs, params.top_p)
    if params.min_p > 0.0:
        probs = probs.masked_fill(probs < params.min_p * probs.max(), 0.0)
    return probs


def top_logprobs(logprobs: Tensor, count: int) -> list[list[tuple[int, float]]]:
    """The `count` most likely tokens of each row, best first, as (token id, logprob).

    Args:
        logprobs: float32 [rows, vocab].
        count: At least 1.
    """
    values, ids = logprobs.topk(min(count, logprobs.shape[-1]))
    rows = zip(ids.tolist(), values.tolist(), strict=True)
    return [list(zip(row_ids, row_values, strict=True)) for row_ids, row_values in rows]
