"""Errors as HTTP answers, in our own form and in OpenAI's.

Both are `{"error": {"message", "type", "param", "code"}}`. Ours names the error's class as `type`,
so that `boughs.lang.errors.as_error` makes the error of it again, and the status as `code`;
OpenAI's has that API's words. This module knows no request and no engine.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from boughs.lang.errors import (
    BoughsError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unauthorized,
    Unservable,
)

log = logging.getLogger("boughs")


class Fault(NamedTuple):
    """What there is to say about a failed request.

    Attributes:
        status: The HTTP status.
        kind: The name of our error class.
        message: For the user.
        param: The field at fault.
        code: OpenAI's code.
        headers: To be sent with the answer.
    """

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = MappingProxyType({})

    @classmethod
    def of(cls, error: Exception) -> Fault:
        """The fault that `error` is. One that is nobody's input is logged with its traceback."""
        if isinstance(error, BoughsError):
            return cls(
                error.status,
                type(error).__name__,
                str(error),
                error.param if isinstance(error, InvalidRequest) else None,
                _code(error),
                _headers(error),
            )
        if isinstance(error, web.HTTPException):
            return _of_http(error)
        log.error("a request failed for a fault of the server's own", exc_info=error)
        return cls(
            500, "InternalError", f"internal error ({type(error).__name__}); see the server's log"
        )

    def body(self, *, openai: bool) -> dict[str, Any]:
        """The JSON object that is sent."""
        return {
            "error": {
                "message": self.message,
                "type": _openai_type(self.status) if openai else self.kind,
                "param": self.param,
                "code": self.code if openai else self.status,
            }
        }

    def response(self, *, openai: bool) -> web.Response:
        """The whole answer."""
        return json_response(self.body(openai=openai), self.status, self.headers)


def json_response(
    value: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A JSON answer. Numbers that JSON does not have (infinity, NaN) become null."""
    return web.Response(
        body=msgspec.json.encode(value),
        status=status,
        headers=headers,
        content_type="application/json",
    )


def _code(error: BoughsError) -> str | None:
    if isinstance(error, Unauthorized):
        return "invalid_api_key"
    if isinstance(error, NotFound):
        return "model_not_found"
    if isinstance(error, Unservable):
        return "context_length_exceeded"
    return None


def _headers(error: BoughsError) -> dict[str, str]:
    if isinstance(error, Overloaded):
        return {"Retry-After": str(math.ceil(error.retry_after))}
    if isinstance(error, Unauthorized):
        return {"WWW-Authenticate": "Bearer"}
    return {}


def _of_http(error: web.HTTPException) -> Fault:
    kind = "NotFound" if error.status == 404 else "InvalidRequest"
    allow = error.headers.get("Allow")
    headers = {} if allow is None else {"Allow": allow}
    return Fault(error.status, kind, error.text or error.reason, headers=headers)


def _openai_type(status: int) -> str:
    words = {
        401: "authentication_error",
        404: "not_found_error",
        408: "timeout_error",
        429: "rate_limit_error",
    }
    return words.get(status, "invalid_request_error" if status < 500 else "server_error")
