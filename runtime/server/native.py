"""`/generate`, `/encode`, `/score` and `/pin`: SGLang's wire, and our own.

This module knows requests and answers, and no tokens and no sockets.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from boughs.lang.errors import InvalidRequest
from boughs.lang.lease import Lease
from boughs.lang.meta import embedding_json, meta_info
from boughs.lang.requests import EncodeRequest, GenerateRequest, PinRequest, Prompt, ScoreRequest
from boughs.lang.results import Answer
from boughs.lang.segments import to_json
from boughs.runtime.naming import naming

from .body import converted, read_json
from .config import ServerConfig
from .encode import encode_all, read_encode
from .errors import json_response
from .events import send_events
from .generate import PROMPTS, GenerateCall, prompt_name, read_generate, read_prompts
from .merge import add, collect_all, merged
from .served import Served

Body = TypeVar("Body")


class Native:
    """The handlers.

    Args:
        served: The engine.
        config: The server's settings.
    """

    def __init__(self, served: Served, config: ServerConfig) -> None:
        self._served = served
        self._config = config
        self._leases: set[Lease] = set()
        self._groups: dict[str, list[str]] = {}

    def routes(self) -> list[web.RouteDef]:
        """What to add to the application."""
        return [
            web.post("/generate", self.generate),
            web.put("/generate", self.generate),
            web.post("/score", self.score),
            web.post("/encode", self.encode),
            web.put("/encode", self.encode),
            web.post("/pin", self.pin),
            web.post("/abort_request", self.abort),
        ]

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Continue one prompt, or each of a list."""
        began = time.monotonic()
        call = read_generate(await read_json(request, self._config.client_timeout))
        with self._group(call.rid, call.requests):
            if call.stream:
                return await send_events(
                    request,
                    self._lines(call, began),
                    openai=False,
                    seconds=self._config.client_timeout,
                )
            answers = await collect_all(
                self._served, call.requests, names=call.names, is_list=call.is_list
            )
        results = [
            answer_json(call, item, answer, began)
            for item, choices in enumerate(answers)
            for answer in choices
        ]
        return json_response(results if call.gives_list else results[0])

    async def _lines(self, call: GenerateCall, began: float) -> AsyncGenerator[bytes | None, None]:
        """Every answer so far, each time it has grown; None after a while without news."""
        made: list[dict[int, Answer]] = [{} for _ in call.requests]
        first = [0]
        for one in call.requests:
            first.append(first[-1] + one.params.n)
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
                answer = add(made[piece.item], piece.chunk)
                result = answer_json(call, piece.item, answer, began)
                if call.gives_list:
                    result["index"] = first[piece.item] + answer.index
                yield msgspec.json.encode(result)

    async def score(self, request: web.Request) -> web.Response:
        """Score choices as continuations of a prompt."""
        body = await read_json(request, self._config.client_timeout)
        asked = read_score(body)
        with naming({"prompt": prompt_name(body)}):
            scores = await self._served.score(asked)
        return json_response(scores)

    async def encode(self, request: web.Request) -> web.Response:
        """Turn one prompt, or each of a list, into a vector."""
        began = time.monotonic()
        call = read_encode(await read_json(request, self._config.client_timeout))
        with self._group(call.rid, call.requests):
            made = await encode_all(self._served, call)
        results = [embedding_json(one, time.monotonic() - began) for one in made]
        return json_response(results if call.is_list else results[0])

    async def pin(self, request: web.Request) -> web.StreamResponse:
        """Keep a prompt cached as long as this connection stays open."""
        body = await read_json(request, self._config.client_timeout)
        states = self._states(read_pin(body), prompt_name(body))
        return await send_events(request, states, openai=False, seconds=self._config.client_timeout)

    async def _states(self, asked: PinRequest, name: str) -> AsyncGenerator[bytes | None, None]:
        """The states of a lease; None after a while without news."""
        with naming({"prompt": name}):
            lease = await Lease.take(self._served.pin(asked))
        self._leases.add(lease)
        try:
            shown = lease.state
            yield msgspec.json.encode(shown)
            ended = False
            while not ended:
                ended = await lease.ended(self._config.keep_alive)
                changed, shown = lease.state is not shown, lease.state
                yield msgspec.json.encode(shown) if changed else None
        finally:
            self._leases.discard(lease)
            await lease.released()

    async def shutdown(self, _: web.Application) -> None:
        """End all leases: nobody waits for them to run out."""
        for lease in self._leases:
            lease.release()

    async def abort(self, request: web.Request) -> web.Response:
        """End the requests of this id, or all; says how many ran."""
        body = await read_json(request, self._config.client_timeout)
        rid, everything = body.get("rid"), body.get("abort_all")
        if not isinstance(everything, bool | None) or not isinstance(rid, str | None):
            raise InvalidRequest("give rid, a string, or abort_all: true", "rid")
        if everything:
            return json_response({"aborted": self._served.abort_all()})
        if not rid:
            raise InvalidRequest("give rid, a string, or abort_all: true", "rid")
        rids = self._groups.get(rid, [rid])
        return json_response({"aborted": sum(map(self._served.abort, rids))})

    @contextmanager
    def _group(
        self, rid: str | None, requests: Sequence[GenerateRequest | EncodeRequest]
    ) -> Iterator[None]:
        """Remember, while a list runs under one id, which requests that is."""
        if rid is None:
            yield
            return
        if rid in self._groups:
            raise InvalidRequest(f"rid: requests {rid!r} run already", "rid")
        self._groups[rid] = [one.rid for one in requests if one.rid is not None]
        try:
            yield
        finally:
            del self._groups[rid]


def answer_json(call: GenerateCall, item: int, answer: Answer, began: float) -> dict[str, Any]:
    """SGLang's object for one answer, whole or so far."""
    asked = call.requests[item]
    if asked.return_logprob and asked.params.max_new_tokens == 0:
        answer = _for_choices(call, asked.logprob_start_len, answer)
    result: dict[str, Any] = {
        "text": answer.text,
        "output_ids": answer.output_ids,
        "meta_info": meta_info(
            answer, return_text=call.return_text, e2e_latency=time.monotonic() - began
        ),
    }
    if call.name == "segments":
        result["segments"] = [to_json(segment) for segment in answer.segments]
        result["rendered"] = answer.rendered
        if answer.token_chars is not None:
            result["token_chars"], result["forced_at"] = answer.token_chars, answer.forced_at
    return result


def _for_choices(call: GenerateCall, start: int, answer: Answer) -> Answer:
    """Prompt logprobs as the `select` of SGLang's own client counts on.

    It was written for entries that begin one token after `logprob_start_len`, and takes a mean
    over all of them, in which null has no place. It knows no segments.
    """
    entries = answer.prompt_logprobs
    if not entries or call.name == "segments":
        return answer
    if start > 0:
        entries = entries[1:]
    elif start == 0 and call.name == "text" and call.is_list and call.return_text:
        entries = [msgspec.structs.replace(entries[0], logprob=0.0), *entries[1:]]
    return msgspec.structs.replace(answer, prompt_logprobs=entries)


class _PinBody(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of `/pin` beside the prompt."""

    seconds: float
    cache_salt: str | None = None
    priority: int = 0


def read_pin(body: dict[str, Any]) -> PinRequest:
    """The lease that the body of `/pin` asks for.

    Raises:
        InvalidRequest: Names the field.
    """
    prompt, asked = _read_one(body, _PinBody)
    return PinRequest(
        prompt=prompt,
        seconds=asked.seconds,
        cache_salt=asked.cache_salt,
        priority=asked.priority,
    )


class _ScoreBody(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of `/score` beside the prompt."""

    choices: list[str]
    unconditional: bool = False
    cache_salt: str | None = None
    priority: int = 0
    rid: str | None = None


def read_score(body: dict[str, Any]) -> ScoreRequest:
    """The request that the body of `/score` describes.

    Raises:
        InvalidRequest: Names the field.
    """
    prompt, asked = _read_one(body, _ScoreBody)
    return ScoreRequest(
        prompt=prompt,
        choices=asked.choices,
        unconditional=asked.unconditional,
        cache_salt=asked.cache_salt,
        priority=asked.priority,
        rid=asked.rid,
    )


def _read_one(body: dict[str, Any], kind: type[Body]) -> tuple[Prompt, Body]:
    """The one prompt in a body, and the keys beside it."""
    name, prompts, is_list = read_prompts(body)
    if is_list:
        raise InvalidRequest(f"{name}: one prompt a call", name)
    rest = {key: value for key, value in body.items() if key not in PROMPTS}
    return prompts[0], converted(rest, kind, "")
