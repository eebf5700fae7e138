"""The HTTP application: routes, keys, limits, and errors as JSON.

This module knows how requests are let in and how failures go out, and nothing of what they mean.
"""

from __future__ import annotations

import hmac
import logging
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from boughs.lang.errors import InvalidRequest, Unauthorized
from boughs.runtime.config import parse_bytes

from .admin import QUERY, Admin
from .config import ServerConfig
from .errors import Fault
from .native import Native
from .openai import OpenAI
from .served import Served

OPEN_PATHS = frozenset({"/health", "/health_generate", "/ready"})
"""Paths that need no key: whoever watches the server has none."""

log = logging.getLogger("boughs")


def make_app(served: Served, config: ServerConfig) -> web.Application:
    """The application that serves an engine. It is run with handler cancellation.

    Args:
        served: The engine, started. The application neither starts nor closes it.
        config: Host and port are not looked at.
    """
    guard = _Guard(config)
    app = web.Application(
        middlewares=[_errors, guard.middleware, _known_query],
        client_max_size=parse_bytes(config.max_body_size, "max_body_size"),
    )
    app.on_response_prepare.append(guard.allow_origin)
    name = config.served_model_name or Path(served.model_path).name
    native = Native(served, config)
    app.add_routes(native.routes())
    app.on_shutdown.append(native.shutdown)
    app.add_routes(OpenAI(served, config, name).routes())
    app.add_routes(Admin(served, name).routes())
    return app


class _Guard:
    """Who may call: API keys, and web pages of other origins."""

    def __init__(self, config: ServerConfig) -> None:
        self._key = None if config.api_key is None else f"Bearer {config.api_key}".encode()
        self._origins = config.cors_origins

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer a browser's question before its request, and check the key."""
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return web.Response(status=204)
        if self._key is not None and request.path not in OPEN_PATHS:
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, self._key):
                raise Unauthorized(
                    "the API key is missing or wrong; send it as `Authorization: Bearer KEY`"
                )
        return await handler(request)

    async def allow_origin(self, request: web.Request, response: web.StreamResponse) -> None:
        """Let a browser show the answer to a page of an allowed origin; never with cookies."""
        origin = request.headers.get("Origin")
        if origin is None or not {origin, "*"}.intersection(self._origins):
            return
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Vary"] = "Origin"
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = "GET, POST, PUT"
            response.headers["Access-Control-Allow-Headers"] = "Authorization, Content-Type"
            response.headers["Access-Control-Max-Age"] = "600"


@web.middleware
async def _known_query(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse keys in the query that the path does not take."""
    known = QUERY.get(request.path, ())
    unknown = next((key for key in request.query if key not in known), None)
    if unknown is None or request.match_info.http_exception is not None:
        return await handler(request)
    there = f"there are {', '.join(known)}" if known else f"{request.path} takes none"
    raise InvalidRequest(f"{unknown}: unknown key in the query; {there}", unknown)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every failure as JSON."""
    try:
        return await handler(request)
    except ConnectionError as error:  # the client has gone, or does not read
        log.info("%s %s: %s", request.method, request.path, error)
        raise
    except web.HTTPException as error:
        if error.status == 404:
            error.text = f"there is no path {request.path}"
        fault = Fault.of(error)
    except Exception as error:  # noqa: BLE001 -- told to the client, and logged by Fault
        fault = Fault.of(error)
    return fault.response(openai=request.path.startswith("/v1/"))
