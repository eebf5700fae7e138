"""What beam search and `best_of` make of the other sampling parameters.

Beam search is transformers' `generate(num_beams=..., do_sample=False)`: nothing is drawn, and what
is not here is not honoured, so it is refused. This module knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from boughs.lang.constraints import CONSTRAINTS
from boughs.lang.errors import InvalidRequest, Unsupported

if TYPE_CHECKING:
    from boughs.lang.sampling import SamplingParams

HONOURED = frozenset(
    (
        *("beam_width", "length_penalty", "early_stopping", "n"),
        *("max_new_tokens", "min_new_tokens", "stop_token_ids", "ignore_eos"),
        *("stop", "stop_regex", *CONSTRAINTS, "strict", "json_whitespace", "json_separators"),
        *("repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias"),
        *("allowed_token_ids", "bad_words"),
        *("no_stop_trim", "skip_special_tokens", "spaces_between_special_tokens"),
        *("priority", "cache_salt", "timeout"),
        "seed",  # of nothing: as in greedy decoding, no number is drawn
    )
)
"""Fields that beam search honours, beside a `temperature` of 0 or 1."""

_NEED_BEAMS = ("length_penalty", "early_stopping")


def check_search(params: SamplingParams, where: str, spelled: Mapping[str, str]) -> None:
    """Refuse what cannot stand together.

    Args:
        params: In range, each by itself.
        where: What stands before a field's name in the error.
        spelled: The names that the user wrote for fields, where they are aliases.

    Raises:
        InvalidRequest: Names the field.
        Unsupported: Names the field that beam search does not honour.
    """
    if params.best_of is not None and params.best_of < params.n:
        raise InvalidRequest(
            f"{where}best_of must be at least n ({params.n}), got {params.best_of}",
            f"{where}best_of",
        )
    if params.beam_width is None:
        return
    if params.n > params.beam_width:
        raise InvalidRequest(
            f"{where}n must be at most beam_width ({params.beam_width}), got {params.n}",
            f"{where}n",
        )
    if params.max_new_tokens == 0:
        written = where + spelled.get("max_new_tokens", "max_new_tokens")
        raise InvalidRequest(f"{written} must be at least 1 with beam_width, got 0", written)
    for field in msgspec.structs.fields(params):
        value = getattr(params, field.name)
        if field.name in HONOURED or value == field.default:
            continue
        if field.name == "temperature" and params.greedy:
            continue
        raise Unsupported(
            f"{where}{field.name}: beam search does not honour it (got {value!r:.40}); leave it "
            "out, or leave out beam_width",
            f"{where}{field.name}",
        )


def check_whole(params: SamplingParams) -> None:
    """Refuse what means nothing without beams, once all parameters of a request are known.

    Raises:
        InvalidRequest: Names the field.
    """
    if params.beam_width is not None:
        return
    for field in msgspec.structs.fields(params):
        if field.name in _NEED_BEAMS and getattr(params, field.name) != field.default:
            raise InvalidRequest(f"{field.name} needs beam_width", field.name)


def check_stream(params: SamplingParams, where: str = "") -> None:
    """Refuse to stream choices of which some will be dropped when all are made.

    Raises:
        InvalidRequest: Names the field.
    """
    if params.best_of is not None and params.best_of > params.n:
        raise InvalidRequest(
            f"{where}best_of: choices that are ranked when all are made cannot be streamed; leave "
            f"out stream, or make it n ({params.n})",
            f"{where}best_of",
        )
