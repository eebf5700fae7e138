"""SGLang's `meta_info` dict, made from an answer.

One definition for the language, the Python API and HTTP. This module knows neither programs nor
servers.
"""

from __future__ import annotations

from typing import Any

from boughs.lang.backend import Answer, TokenLogprob


def meta_info(
    answer: Answer, *, return_text: bool = False, e2e_latency: float | None = None
) -> dict[str, Any]:
    """What SGLang tells about an answer beside its text.

    Args:
        answer: One choice, whole or so far.
        return_text: Whether logprob entries carry their token's text (else None in its slot).
        e2e_latency: Seconds from the request's arrival to now, if known.

    Returns:
        `id, finish_reason` (None while the answer is unfinished), `prompt_tokens,
        completion_tokens, cached_tokens`, `e2e_latency` if given, and where logprobs were asked
        for `input_token_logprobs, output_token_logprobs`: lists of (logprob, token id, text or
        None), with `input_top_logprobs, output_top_logprobs` (a list of such entries, or None, at
        each position) where top logprobs were asked for.
    """
    info: dict[str, Any] = {
        "id": answer.rid,
        "finish_reason": None if answer.finish is None else answer.finish.as_json(),
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "cached_tokens": answer.cached_tokens,
    }
    if e2e_latency is not None:
        info["e2e_latency"] = e2e_latency
    if answer.logprobs is None and answer.prompt_logprobs is None:
        return info
    given, made = answer.prompt_logprobs or [], answer.logprobs or []
    info["input_token_logprobs"] = _entries(given, return_text)
    info["output_token_logprobs"] = _entries(made, return_text)
    if any(item.top is not None for item in (*given, *made)):
        info["input_top_logprobs"] = _tops(given, return_text)
        info["output_top_logprobs"] = _tops(made, return_text)
    return info


Entry = tuple[float | None, int, str | None]


def _entries(items: list[TokenLogprob], return_text: bool) -> list[Entry]:
    return [(item.logprob, item.token_id, item.text if return_text else None) for item in items]


def _tops(items: list[TokenLogprob], return_text: bool) -> list[list[Entry] | None]:
    return [
        None
        if item.top is None
        else [(lp, token, text if return_text else None) for lp, token, text in item.top]
        for item in items
    ]
