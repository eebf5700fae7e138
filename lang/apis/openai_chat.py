"""OpenAI's chat completions: a call as a request, its stream as pieces.

Azure's, and any server's that speaks it. This module knows no state and no backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, NoReturn

from boughs.lang.apis.answers import NO_ID, Call, Piece, Spent
from boughs.lang.apis.messages import Message
from boughs.lang.apis.strict import narrowed
from boughs.lang.apis.supported import Features
from boughs.lang.errors import Unsupported
from boughs.lang.results import Finish, TokenLogprob
from boughs.lang.segments import Image

SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "logit_bias": "logit_bias",
    "seed": "seed",
}

_FINISHES = {"stop": "stop", "length": "length", "tool_calls": "stop", "function_call": "stop"}


class OpenAIChat:
    """Chat completions.

    Args:
        client: An `AsyncOpenAI`, or the like.
        model: The model's name.
    """

    features = Features(
        fields=SAMPLING,
        json_schema=True,
        json_object=True,
        chat=True,
        many=True,
        top_logprobs=20,
        stops=4,
        images=True,
    )

    def __init__(self, client: Any, model: str) -> None:
        self._client = client
        self.model = model
        self.name = f"OpenAI chat ({model})"
        self.place = str(getattr(client, "base_url", ""))

    async def stream(self, call: Call) -> AsyncGenerator[Piece, None]:
        """The answer in pieces."""
        request = chat_request(call, self.features)
        stream = await self._client.chat.completions.create(model=self.model, **request)
        async with stream:
            async for chunk in stream:
                for piece in chat_pieces(chunk):
                    yield piece

    async def score(self, prompt: str, choices: list[str]) -> NoReturn:
        """Refuse: the API has no logprobs of a given text."""
        raise Unsupported(f"{self.name} cannot score {len(choices)} choices after {prompt!r:.20}")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def chat_request(call: Call, features: Features) -> dict[str, Any]:
    """The fields of a request, but for the model."""
    params = call.params
    request: dict[str, Any] = {
        "messages": [_message(message) for message in call.conversation.to_json()],
        "stream": True,
        "stream_options": {"include_usage": True},
        **features.sent(params),
    }
    if params.max_new_tokens is not None:
        request["max_completion_tokens"] = params.max_new_tokens
    if params.n > 1:
        request["n"] = params.n
    if call.stop:
        request["stop"] = list(call.stop)
    if params.json_schema is not None:
        schema = {"name": "answer", "schema": narrowed(params.json_schema), "strict": True}
        request["response_format"] = {"type": "json_schema", "json_schema": schema}
    if params.json_object:
        request["response_format"] = {"type": "json_object"}
    if call.top_logprobs is not None:
        request["logprobs"] = True
        if call.top_logprobs:
            request["top_logprobs"] = call.top_logprobs
    return request


def _message(message: Message) -> Message:
    """A message with its images in OpenAI's form."""
    content = message["content"]
    if isinstance(content, str):
        return message
    parts = [
        {"type": "image_url", "image_url": {"url": part.url}}
        if isinstance(part, Image)
        else {"type": "text", "text": part}
        for part in content
    ]
    return {**message, "content": parts}


def chat_pieces(chunk: Any) -> list[Piece]:
    """What an event of the stream says: of each choice that it holds, and what was spent."""
    found = [
        Piece(
            text=choice.delta.content or "",
            index=choice.index,
            logprobs=_logprobs(getattr(choice, "logprobs", None)),
            finish=finish(
                choice.finish_reason, refused=bool(getattr(choice.delta, "refusal", None))
            ),
        )
        for choice in chunk.choices
    ]
    usage = getattr(chunk, "usage", None)
    if usage is not None:
        found.append(Piece(spent=spent(usage)))
    return found


def finish(reason: str | None, *, refused: bool = False) -> Finish | None:
    """Why a choice ended, of OpenAI's `finish_reason`; a refusal is told in place of a text."""
    if refused:
        return Finish("abort", message="the model refused")
    if reason is None:
        return None
    kind = _FINISHES.get(reason)
    if kind is None:
        return Finish("abort", message=f"the API ended the answer: {reason}")
    return Finish(kind)


def spent(usage: Any) -> Spent:
    """What OpenAI's `usage` says."""
    details = getattr(usage, "prompt_tokens_details", None)
    cached = getattr(details, "cached_tokens", None) or 0
    return Spent(usage.prompt_tokens or 0, cached, usage.completion_tokens or 0)


def _logprobs(logprobs: Any) -> list[TokenLogprob] | None:
    """One entry a token; an API tells no ids."""
    content = getattr(logprobs, "content", None)
    if not content:
        return None
    return [
        TokenLogprob(
            logprob=token.logprob,
            token_id=NO_ID,
            text=token.token,
            top=[(other.logprob, NO_ID, other.token) for other in token.top_logprobs] or None,
        )
        for token in content
    ]
