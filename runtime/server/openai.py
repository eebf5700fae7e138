"""`/v1/completions`, `/v1/chat/completions` and `/v1/embeddings`, as the `openai` package has them.

This module knows how an answer goes out; its fields are in `openai_request`, its shapes in
`openai_answer`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from aiohttp import web

from boughs.lang.errors import NotFound
from boughs.lang.results import Answer

from .body import read_json
from .config import ServerConfig
from .encode import encode_all, openai_list, read_embeddings
from .errors import json_response
from .events import send_events
from .merge import add, collect_all, merged
from .openai_answer import ChatShape, CompletionShape, Json, usage
from .openai_request import Call, read_chat, read_completion
from .served import Served

Shape = ChatShape | CompletionShape


class OpenAI:
    """The handlers.

    Args:
        served: The engine.
        config: The server's settings.
        model_name: What clients call the model. They may also say its path, or `default`.
    """

    def __init__(self, served: Served, config: ServerConfig, model_name: str) -> None:
        self._served = served
        self._config = config
        self._model_name = model_name

    def routes(self) -> list[web.RouteDef]:
        """What to add to the application."""
        return [
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/embeddings", self.embeddings),
        ]

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """Continue one prompt, or each of a list."""
        body = await read_json(request, self._config.client_timeout)
        call = read_completion(body)
        return await self._answer(
            request, call, CompletionShape(call, self._served.tokenizer.token_bytes)
        )

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer a conversation."""
        body = await read_json(request, self._config.client_timeout)
        call = read_chat(body, self._served.chat)
        return await self._answer(
            request, call, ChatShape(call, self._served.tokenizer.token_bytes)
        )

    async def embeddings(self, request: web.Request) -> web.Response:
        """Turn one prompt, or each of a list, into a vector."""
        call = read_embeddings(await read_json(request, self._config.client_timeout))
        self._check_model(call.model)
        made = await encode_all(self._served, call)
        return json_response(openai_list(made, self._model_name, as_base64=call.as_base64))

    async def _answer(self, request: web.Request, call: Call, shape: Shape) -> web.StreamResponse:
        self._check_model(call.model)
        base = {
            "id": shape.prefix + secrets.token_hex(12),
            "object": shape.piece_kind if call.stream else shape.whole_kind,
            "created": int(time.time()),
            "model": self._model_name,
        }
        for at, one in enumerate(call.requests):
            one.rid = f"{base['id']}-{at}" if call.is_list else str(base["id"])
        if call.stream:
            return await send_events(
                request,
                self._lines(call, shape, base),
                openai=True,
                seconds=self._config.client_timeout,
            )
        answers = await collect_all(
            self._served, call.requests, names=call.names, is_list=call.is_list
        )
        choices = [
            shape.whole(item, answer) for item, made in enumerate(answers) for answer in made
        ]
        return json_response(
            {
                **base,
                "choices": [{"index": at, **choice} for at, choice in enumerate(choices)],
                "usage": usage(answers),
            }
        )

    async def _lines(
        self, call: Call, shape: Shape, base: Json
    ) -> AsyncGenerator[bytes | None, None]:
        """Each piece of each choice; None after a while without news; at last the usage."""
        made: list[dict[int, Answer]] = [{} for _ in call.requests]
        n = call.requests[0].params.n
        blank: Json = {"usage": None} if call.include_usage else {}
        pieces = merged(
            self._served,
            call.requests,
            names=call.names,
            is_list=call.is_list,
            idle=self._config.keep_alive,
        )
        async with aclosing(pieces):
            async for piece in pieces:
                if piece is None:
                    yield None
                    continue
                item, chunk = piece
                is_first = chunk.index not in made[item]
                add(made[item], chunk)
                for choice in shape.pieces(item, chunk, is_first=is_first):
                    choices = [{"index": item * n + chunk.index, **choice}]
                    yield msgspec.json.encode({**base, "choices": choices, **blank})
        if call.include_usage:
            counted = usage([list(choices.values()) for choices in made])
            yield msgspec.json.encode({**base, "choices": [], "usage": counted})

    def _check_model(self, name: str | None) -> None:
        if name not in (None, self._model_name, self._served.model_path, "default"):
            raise NotFound(f"there is no model {name!r}; this server has {self._model_name!r}")
