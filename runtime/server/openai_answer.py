"""Answers in OpenAI's shapes: choices, logprobs, usage, whole and in pieces.

This module knows answers and chunks, and nothing of how they are sent.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from boughs.lang.results import LOWEST, Answer, Chunk, Finish, TokenLogprob, finite

from .openai_request import Call

Json = dict[str, Any]

TokenBytes = Callable[[int], bytes]
"""The bytes of a token."""


def usage(answers: Sequence[Sequence[Answer]]) -> Json:
    """OpenAI's usage of one call: a prompt counts once, however many choices it has.

    Choices that `best_of` made and did not return count, as OpenAI counts them.

    Args:
        answers: Of each prompt, of each of its choices.
    """
    prompt = sum(choices[0].prompt_tokens for choices in answers)
    made = sum(
        answer.completion_tokens + answer.discarded_tokens
        for choices in answers
        for answer in choices
    )
    cached = sum(min(answer.cached_tokens for answer in choices) for choices in answers)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class ChatShape:
    """The choices of a chat completion.

    Args:
        call: What is answered.
        token_bytes: The bytes of a token.
    """

    prefix, whole_kind, piece_kind = "chatcmpl-", "chat.completion", "chat.completion.chunk"

    def __init__(self, call: Call, token_bytes: TokenBytes) -> None:
        self._call = call
        self._token_bytes = token_bytes

    def whole(self, _: int, answer: Answer) -> Json:
        """A choice of a whole answer, without its index."""
        return {
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._logprobs(answer.logprobs),
            **_ended(answer.finish),
        }

    def pieces(self, _: int, chunk: Chunk, *, is_first: bool) -> Iterator[Json]:
        """What a stream says of a choice for one chunk: its role, new text, and its end."""
        if is_first:
            yield self._piece({"role": "assistant", "content": ""})
        if chunk.text or chunk.logprobs:
            yield self._piece({"content": chunk.text}, chunk.logprobs)
        if chunk.finish is not None:
            yield self._piece({}, finish=chunk.finish)

    def _piece(
        self,
        delta: Json,
        logprobs: list[TokenLogprob] | None = None,
        finish: Finish | None = None,
    ) -> Json:
        return {
            "delta": delta,
            "logprobs": self._logprobs(logprobs),
            **_ended(finish),
        }

    def _logprobs(self, entries: list[TokenLogprob] | None) -> Json | None:
        if entries is None or not self._call.logprobs:
            return None
        return {
            "content": [
                {
                    **self._token(entry.logprob, entry.token_id, entry.text),
                    "top_logprobs": [self._token(*item) for item in entry.top or ()],
                }
                for entry in entries
            ],
            "refusal": None,
        }

    def _token(self, logprob: float | None, token: int, text: str) -> Json:
        raw = self._token_bytes(token)
        number = LOWEST if logprob is None else finite(logprob)
        return {"token": text, "logprob": number, "bytes": list(raw)}


class CompletionShape:
    """The choices of a completion.

    Args:
        call: What is answered.
        token_bytes: The bytes of a token.
    """

    prefix, whole_kind, piece_kind = "cmpl-", "text_completion", "text_completion"

    def __init__(self, call: Call, token_bytes: TokenBytes) -> None:
        self._call = call
        self._token_bytes = token_bytes
        self._logprobs: dict[tuple[int, int], CompletionLogprobs] = {}

    def whole(self, item: int, answer: Answer) -> Json:
        """A choice of a whole answer, without its index."""
        return self._choice(
            item,
            answer.index,
            answer.text,
            (answer.prompt_logprobs or []) + (answer.logprobs or []),
            answer.finish,
            is_first=True,
        )

    def pieces(self, item: int, chunk: Chunk, *, is_first: bool) -> Iterator[Json]:
        """What a stream says of a choice for one chunk."""
        entries = (chunk.prompt_logprobs or []) + (chunk.logprobs or [])
        echoes = is_first and self._call.echo
        if chunk.text or entries or echoes or chunk.finish is not None:
            yield self._choice(
                item, chunk.index, chunk.text, entries, chunk.finish, is_first=is_first
            )

    def _choice(
        self,
        item: int,
        index: int,
        text: str,
        entries: list[TokenLogprob],
        finish: Finish | None,
        *,
        is_first: bool,
    ) -> Json:
        if is_first and self._call.echo:
            text = self._prompt_text(item) + text
        logprobs = None
        if self._call.logprobs:
            key = (item, index)
            if key not in self._logprobs:
                self._logprobs[key] = CompletionLogprobs(self._token_bytes)
            logprobs = self._logprobs[key].piece(entries)
        return {"text": text, "logprobs": logprobs, **_ended(finish)}

    def _prompt_text(self, item: int) -> str:
        prompt = self._call.requests[item].prompt
        if isinstance(prompt, str):
            return prompt
        ids = [id_ for id_ in prompt if isinstance(id_, int)]
        return b"".join(map(self._token_bytes, ids)).decode("utf-8", "replace")


class CompletionLogprobs:
    """The logprobs of a completion's choice, piece by piece.

    Args:
        token_bytes: The bytes of a token.
    """

    def __init__(self, token_bytes: TokenBytes) -> None:
        self._token_bytes = token_bytes
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def piece(self, entries: Sequence[TokenLogprob]) -> Json:
        """The object for the tokens that follow those of the pieces before."""
        made: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for entry in entries:
            made["tokens"].append(self._name(entry.token_id))
            made["token_logprobs"].append(None if entry.logprob is None else finite(entry.logprob))
            made["top_logprobs"].append(self._tops(entry))
            made["text_offset"].append(self._offset)
            self._offset += len(self._decoder.decode(self._token_bytes(entry.token_id)))
        return made

    def _tops(self, entry: TokenLogprob) -> Json | None:
        """The likeliest tokens, and the one that was chosen."""
        if entry.logprob is None:
            return None
        tops = {self._name(token): finite(lp) for lp, token, _ in entry.top or ()}
        return tops | {self._name(entry.token_id): finite(entry.logprob)}

    def _name(self, token: int) -> str:
        """A token's text; bytes that are no text are spelt out, as OpenAI does."""
        raw = self._token_bytes(token)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _ended(finish: Finish | None) -> Json:
    """OpenAI's `finish_reason`; an output that was aborted says so.

    What OpenAI has no word for is told beside it, where there is something to tell: that a
    constrained output was cut inside its grammar, or how it violates its whole schema.
    """
    if finish is None:
        return {"finish_reason": None}
    told: Json = {"incomplete": True} if finish.incomplete else {}
    if finish.violation is not None:
        told["violation"] = finish.violation
    return {"finish_reason": finish.type, **told}
