"""`boughs.Anthropic`: a model behind Anthropic's messages API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any, NoReturn

from boughs.lang.apis.answers import Call, Piece, Spent
from boughs.lang.apis.faults import package
from boughs.lang.apis.messages import Message
from boughs.lang.apis.model import ApiModel
from boughs.lang.apis.openai_model import check_name
from boughs.lang.apis.strict import narrowed
from boughs.lang.apis.supported import Features
from boughs.lang.errors import Unauthorized, Unsupported
from boughs.lang.results import Finish
from boughs.lang.sampling import MAX_STOPS
from boughs.lang.segments import Image


class Anthropic(ApiModel):
    """A model behind Anthropic's API; needs `pip install 'boughs[anthropic]'`.

    Text before a `gen` in the assistant's turn is sent as its begin (prefill), which newer models
    refuse; so are `temperature`, `top_p` and `top_k`, where a program sets them.

    Args:
        model_name: The API's name of it.
        tries: How often an answer is asked for at most until it matches a regex, or is a choice.
        client: Arguments of `anthropic.AsyncAnthropic`: `api_key`, `base_url`, `timeout`,
            `max_retries`, …

    Raises:
        Unsupported: The package is not installed.
        Unauthorized: There is no key.
    """

    def __init__(self, model_name: str, *, tries: int = 5, **client: Any) -> None:
        check_name(model_name)
        anthropic = package("anthropic", "Anthropic")
        try:
            made = anthropic.AsyncAnthropic(**client)
        except anthropic.AnthropicError as error:
            raise Unauthorized(f"Anthropic: {error}") from None
        super().__init__(AnthropicMessages(made, model_name), tries)


class AnthropicMessages:
    """The messages API.

    Args:
        client: An `AsyncAnthropic`, or the like.
        model: The model's name.
    """

    features = Features(
        fields={"temperature": "temperature", "top_p": "top_p", "top_k": "top_k"},
        json_schema=True,
        chat=True,
        continues=True,
        stops=MAX_STOPS,
        blank_stops=False,
        needs_limit=True,
        images=True,
    )

    def __init__(self, client: Any, model: str) -> None:
        self._client = client
        self.model = model
        self.name = f"Anthropic ({model})"
        self.place = str(getattr(client, "base_url", ""))

    async def stream(self, call: Call) -> AsyncGenerator[Piece, None]:
        """The answer in pieces."""
        said = call.conversation.said
        space = said[len(said.rstrip()) :]
        total = Spent()
        stream = await self._client.messages.create(**self._request(call), stream=True)
        async with stream:
            async for event in stream:
                if event.type == "message_start":
                    total = _spent(event.message.usage, total)
                    yield Piece(spent=replace(total, completion=0, known=False))
                elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                    text = event.delta.text
                    if space and text:  # it was not sent, so the model may write it
                        text = text.removeprefix(space)
                        space = ""
                    yield Piece(text=text)
                elif event.type == "message_delta":
                    total = _spent(event.usage, total)
                    yield Piece(finish=_finish(event.delta), spent=total)

    def _request(self, call: Call) -> dict[str, Any]:
        """The request. An open turn must not end with white space."""
        params = call.params
        system, turns = self._split(call.conversation.to_json())
        if call.conversation.said:
            turns[-1]["content"] = turns[-1]["content"].rstrip()
            if not turns[-1]["content"]:
                turns.pop()
        request: dict[str, Any] = {
            "model": self.model,
            "messages": turns,
            "max_tokens": params.max_new_tokens,
        }
        if system:
            request["system"] = system
        if call.stop:
            request["stop_sequences"] = list(call.stop)
        if params.json_schema is not None:
            schema = narrowed(params.json_schema)
            request["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        sampling = self.features.sent(params)
        if sampling:  # the package has no arguments for what only older models take
            request["extra_body"] = sampling
        return request

    def _split(self, messages: Sequence[Message]) -> tuple[str, list[Message]]:
        """The system prompt and the turns.

        Raises:
            Unsupported: A system message comes after a turn, or a role is unknown to the API.
        """
        system: list[str] = []
        turns: list[Message] = []
        for message in messages:
            role = message["role"]
            if role == "system" and not turns:
                system.append(message["content"])
            elif role in ("user", "assistant"):
                turns.append({"role": role, "content": _content(message["content"])})
            else:
                raise Unsupported(
                    f"role {role!r}: {self.name} has user and assistant, and system before them",
                    "role",
                )
        return "\n\n".join(system), turns

    async def score(self, prompt: str, choices: list[str]) -> NoReturn:
        """Refuse: the API has no logprobs."""
        raise Unsupported(f"{self.name} cannot score {len(choices)} choices after {prompt!r:.20}")

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _content(content: Any) -> Any:
    """A content with its images in Anthropic's form."""
    if isinstance(content, str):
        return content
    return [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": part.kind, "data": part.data},
        }
        if isinstance(part, Image)
        else {"type": "text", "text": part}
        for part in content
    ]


def _finish(delta: Any) -> Finish:
    """Why the answer ended."""
    reason = delta.stop_reason
    if reason in ("end_turn", "tool_use"):
        return Finish("stop")
    if reason == "stop_sequence":
        return Finish("stop", matched=delta.stop_sequence)
    if reason in ("max_tokens", "model_context_window_exceeded"):
        return Finish("length")
    return Finish("abort", message=f"the API ended the answer: {reason}")


def _spent(usage: Any, before: Spent) -> Spent:
    """Tokens so far; the prompt is what was read, written to the cache, and read from it.

    The last event repeats the prompt's numbers or leaves them out.
    """
    parts = [
        getattr(usage, name, None)
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    ]
    if parts[0] is None:
        return Spent(before.prompt, before.cached, usage.output_tokens or 0)
    return Spent(sum(part or 0 for part in parts), parts[1] or 0, usage.output_tokens or 0)
