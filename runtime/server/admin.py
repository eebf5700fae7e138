"""What a server says about itself: its model, its health, its state.

This module knows no prompts.
"""

from __future__ import annotations

import asyncio
import math
import time

from aiohttp import web

from boughs import __version__
from boughs.lang.errors import BoughsError, InvalidRequest, NotFound, Unsupported
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams

from .errors import json_response
from .served import Served

QUERY = {
    "/flush_cache": ("timeout",),
    "/get_model_info": ("identity",),
    "/model_info": ("identity",),
    "/tree": ("max_segments", "max_tokens"),
}
"""The keys that a path takes in its query; no other path takes any."""

PROBE_SECONDS = 20.0
"""How long a probe waits for its token."""


class Admin:
    """The handlers.

    Args:
        served: The engine.
        model_name: What OpenAI clients call the model.
    """

    def __init__(self, served: Served, model_name: str) -> None:
        self._served = served
        self._model_name = model_name
        self._created = int(time.time())
        self._probe: asyncio.Task[str | None] | None = None

    def routes(self) -> list[web.RouteDef]:
        """What to add to the application."""
        return [
            web.get("/health", self.health),
            web.get("/health_generate", self.ready),
            web.get("/ready", self.ready),
            web.get("/model_info", self.model_info),
            web.get("/get_model_info", self.model_info),
            web.get("/server_info", self.server_info),
            web.get("/get_server_info", self.server_info),
            web.get("/flush_cache", self.flush_cache),
            web.post("/flush_cache", self.flush_cache),
            web.get("/tree", self.tree),
            web.post("/concate_and_append_request", self.concate_and_append),
            *(web.route("*", path, self.lacked) for path in _LACKED),
            web.get("/v1/models", self.models),
            web.get("/v1/models/{model:.+}", self.model),
        ]

    async def health(self, _: web.Request) -> web.Response:
        """200 while the core is alive and not stuck, else 503; at once."""
        healthy = await self._served.health()
        return json_response({"healthy": healthy}, 200 if healthy else 503)

    async def ready(self, _: web.Request) -> web.Response:
        """200 when a token can be made now, else 503 and why. Callers at once share one probe."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._make_token())
        fault = await asyncio.shield(self._probe)
        if fault is None:
            return json_response({"ready": True})
        return json_response({"ready": False, "message": fault}, 503)

    async def _make_token(self) -> str | None:
        """Make a token; what went wrong, if anything did."""
        params = SamplingParams(max_new_tokens=1, temperature=0.0, timeout=PROBE_SECONDS)
        request = GenerateRequest(prompt=[self._served.limits.vocab_size - 1], params=params)
        try:
            await collect(self._served.generate(request))
        except BoughsError as error:
            return f"{type(error).__name__}: {error}"
        return None

    async def model_info(self, request: web.Request) -> web.Response:
        """SGLang's description of the model; its identity, too, if asked: that reads the files."""
        info = {
            "model_path": self._served.model_path,
            "tokenizer_path": self._served.model_path,
            "served_model_name": self._model_name,
            "is_generation": True,
            "context_length": self._served.limits.context_length,
        }
        identity = _whole(request, "identity", 0)
        if identity not in (0, 1):
            raise InvalidRequest(f"identity: expected 0 or 1, got {identity}", "identity")
        if identity:
            info["identity"] = await self._served.identity()
        return json_response(info)

    async def server_info(self, _: web.Request) -> web.Response:
        """What the engine is and how it does."""
        info = await self._served.get_server_info()
        return json_response(
            {**info, "served_model_name": self._model_name, "version": __version__}
        )

    async def flush_cache(self, request: web.Request) -> web.Response:
        """Forget every cached prefix; an error while requests run (still, after `timeout`)."""
        seconds = _number(request, "timeout", 0.0)
        await self._served.flush_cache(seconds)
        return json_response({"flushed": True})

    async def tree(self, request: web.Request) -> web.Response:
        """The radix tree as plain data."""
        return json_response(
            await self._served.tree(
                _whole(request, "max_segments", 1000), _whole(request, "max_tokens", 32)
            )
        )

    async def concate_and_append(self, _: web.Request) -> web.Response:
        """Nothing is to be done: SGLang's client has joined the texts itself."""
        return json_response({})

    async def lacked(self, request: web.Request) -> web.Response:
        """What SGLang's clients may call and we do not have."""
        raise Unsupported(f"{request.path}: {_LACKED[request.path]} is not supported")

    async def models(self, _: web.Request) -> web.Response:
        """OpenAI's list of models."""
        return json_response({"object": "list", "data": [self._as_json()]})

    async def model(self, request: web.Request) -> web.Response:
        """OpenAI's description of a model."""
        name = request.match_info["model"]
        if name != self._model_name:
            raise NotFound(f"there is no model {name!r}; this server has {self._model_name!r}")
        return json_response(self._as_json())

    def _as_json(self) -> dict[str, object]:
        return {
            "id": self._model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "boughs",
            "root": self._served.model_path,
            "max_model_len": self._served.limits.context_length,
        }


def _number(request: web.Request, name: str, default: float) -> float:
    """A number in the query.

    Raises:
        InvalidRequest: It is none, or no finite one.
    """
    given = request.query.get(name)
    if given is None:
        return default
    try:
        number = float(given)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequest(f"{name}: expected a number, got {given!r:.40}", name)
    return number


def _whole(request: web.Request, name: str, default: int) -> int:
    """A whole number in the query.

    Raises:
        InvalidRequest: It is none.
    """
    number = _number(request, name, default)
    if number != int(number):
        raise InvalidRequest(f"{name}: expected a whole number, got {number}", name)
    return int(number)


_LACKED = {
    "/start_profile": "profiling",
    "/stop_profile": "profiling",
}
