"""SGLang's `meta_info` dict, made from an answer, and its dict for a vector.

One definition for the language, the Python API and HTTP. This module knows neither programs nor
servers.
"""

from __future__ import annotations

from typing import Any

from boughs.lang.results import Answer, Embedding, TokenLogprob, finite


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
        completion_tokens, cached_tokens`, and `e2e_latency` if given. Of the completion tokens
        `forced_tokens` were forced by a grammar, if any; `forward_steps` of the model computed
        prompt and output, where the backend knows. With `best_of` or
        `beam_width` `cumulative_logprob`, with `best_of` `discarded_tokens` (of the first choice),
        and with `beam_width` `sequence_score`; what only this kind of backend tells (the answer's
        `extra`). Where logprobs were asked for
        `input_token_logprobs, output_token_logprobs`: lists of (logprob, token id, text or None),
        with `input_top_logprobs, output_top_logprobs` (a list of such entries, or None, at each
        position) where top logprobs were asked for, and in the same form
        `input_token_ids_logprobs, output_token_ids_logprobs` where given tokens' were. All are of
        the model's own distribution, before temperature, penalties, bias and masks, and finite.
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
    for name in ("cumulative_logprob", "sequence_score"):
        if (value := getattr(answer, name)) is not None:
            info[name] = value
    for name in ("discarded_tokens", "forced_tokens", "forward_steps"):
        if count := getattr(answer, name):
            info[name] = count
    if answer.extra is not None:
        info.update(answer.extra)
    if answer.logprobs is None and answer.prompt_logprobs is None:
        return info
    given, made = answer.prompt_logprobs or [], answer.logprobs or []
    info["input_token_logprobs"] = _entries(given, return_text)
    info["output_token_logprobs"] = _entries(made, return_text)
    for name in ("top", "given"):
        if any(getattr(item, name) is not None for item in (*given, *made)):
            key = _KEYS[name]
            info[f"input_{key}"] = _lists([getattr(item, name) for item in given], return_text)
            info[f"output_{key}"] = _lists([getattr(item, name) for item in made], return_text)
    return info


def embedding_json(embedding: Embedding, e2e_latency: float) -> dict[str, Any]:
    """SGLang's dict for a vector.

    Args:
        embedding: The vector and its figures.
        e2e_latency: Seconds from the request's arrival to now.
    """
    return {
        "embedding": embedding.vector,
        "meta_info": {
            "id": embedding.rid,
            "prompt_tokens": embedding.prompt_tokens,
            "cached_tokens": embedding.cached_tokens,
            "e2e_latency": e2e_latency,
        },
    }


_KEYS = {"top": "top_logprobs", "given": "token_ids_logprobs"}

Entry = tuple[float | None, int, str | None]


def _entries(items: list[TokenLogprob], return_text: bool) -> list[Entry]:
    return [
        (
            None if item.logprob is None else finite(item.logprob),
            item.token_id,
            item.text if return_text else None,
        )
        for item in items
    ]


def _lists(
    positions: list[list[tuple[float, int, str]] | None], return_text: bool
) -> list[list[Entry] | None]:
    return [
        None
        if entries is None
        else [(finite(lp), token, text if return_text else None) for lp, token, text in entries]
        for entries in positions
    ]
