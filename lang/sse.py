"""The answers of `POST /generate` with `stream: true`, back into chunks.

Each event holds all so far of one choice; a chunk holds what is new. This module knows no sockets
and no programs.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from boughs.lang.errors import BackendError, as_answered
from boughs.lang.results import Chunk, Finish, TokenLogprob
from boughs.lang.segments import from_json

Json = dict[str, Any]


async def read_events(data: AsyncIterable[bytes]) -> AsyncIterator[Json]:
    """The JSON objects of a stream of server-sent events.

    Raises:
        BoughsError: The one that the server sent in place of an event.
        BackendError: What came is no such stream, or it ended before `[DONE]`.
    """
    rest = b""
    done = False
    async for piece in data:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            name, _, value = line.strip().partition(b":")
            if name != b"data" or done:  # blank lines, and comments that keep proxies calm
                continue
            if value.strip() == b"[DONE]":
                done = True
                continue
            yield _event(value)
    if not done:
        raise BackendError("the server's stream ended before the answer was complete")


def _event(value: bytes) -> Json:
    try:
        event = msgspec.json.decode(value, type=Json)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BackendError(f"the server sent what is no JSON object: {value[:200]!r}") from None
    fault = event.get("error")
    if fault is None:
        return event
    if not isinstance(fault, dict):
        raise BackendError(str(fault))
    raise as_answered({"type": None, "message": None, **fault})


@dataclass
class _Seen:
    """What has come of one choice."""

    text: str = ""
    ids: int = 0
    logprobs: int = 0


class Answers:
    """The choices of one answer."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def chunk(self, event: Json) -> Chunk:
        """What is new in an event.

        Raises:
            BackendError: It lacks a field, or takes back text that was sent.
        """
        try:
            return self._chunk(event)
        except (LookupError, TypeError, ValueError) as error:
            raise BackendError(
                f"the server's answer is not of the form expected ({type(error).__name__}: "
                f"{error}): {event!r:.200}"
            ) from error

    def _chunk(self, event: Json) -> Chunk:
        index = event.get("index", 0)
        first = index not in self._seen
        seen = self._seen.setdefault(index, _Seen())
        text, ids, meta = event["text"], event["output_ids"], event["meta_info"]
        if not text.startswith(seen.text) or len(ids) < seen.ids:
            raise BackendError("the server's stream took back text that it had sent")
        reason = meta["finish_reason"]
        chunk = Chunk(
            rid=meta["id"],
            text=text[len(seen.text) :],
            output_ids=ids[seen.ids :],
            index=index,
            prompt_tokens=meta["prompt_tokens"],
            completion_tokens=meta["completion_tokens"],
            cached_tokens=meta["cached_tokens"],
            rendered=event["rendered"] if first else None,
            finish=None if reason is None else Finish(**reason),
            segments=None if reason is None else from_json(event["segments"]),
            cumulative_logprob=meta.get("cumulative_logprob"),
            sequence_score=meta.get("sequence_score"),
            discarded_tokens=meta.get("discarded_tokens", 0),
            forced_tokens=meta.get("forced_tokens", 0),
            forward_steps=meta.get("forward_steps", 0),
            token_chars=event.get("token_chars"),
            forced_at=event.get("forced_at"),
        )
        made = meta.get("output_token_logprobs")
        if made is not None:
            chunk.logprobs = _logprobs(meta, "output", seen.logprobs)
            seen.logprobs = len(made)
        given = meta.get("input_token_logprobs")
        if first and given:
            chunk.prompt_logprobs = _logprobs(meta, "input", 0)
        seen.text, seen.ids = text, len(ids)
        return chunk


def _logprobs(meta: Json, side: str, start: int) -> list[TokenLogprob]:
    """The entries of `input` or `output` from position `start` on."""
    tops, given = meta.get(f"{side}_top_logprobs"), meta.get(f"{side}_token_ids_logprobs")
    return [
        TokenLogprob(logprob, token, text, _entries(tops, at), _entries(given, at))
        for at, (logprob, token, text) in enumerate(meta[f"{side}_token_logprobs"][start:], start)
    ]


def _entries(positions: list[Any] | None, at: int) -> list[Any] | None:
    if not positions or positions[at] is None:
        return None
    return [tuple(entry) for entry in positions[at]]
