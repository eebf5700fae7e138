"""What goes wrong at an API, as errors of ours; and the packages, loaded when they are wanted.

Clients try again by themselves, a bounded number of times and as `Retry-After` says; what arrives
here is what was left then. This module knows no request.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

from boughs.lang.errors import (
    BackendError,
    BoughsError,
    InvalidRequest,
    NotFound,
    Overloaded,
    RequestTimeout,
    Unauthorized,
    Unsupported,
)

_CLASSES: Mapping[int, type[BoughsError]] = {
    **dict.fromkeys((400, 413, 422), InvalidRequest),
    **dict.fromkeys((401, 403), Unauthorized),
    404: NotFound,
    **dict.fromkeys((408, 504), RequestTimeout),
    **dict.fromkeys((429, 503, 529), Overloaded),
}
"""By HTTP status. 529 is Anthropic's "overloaded"."""

_TIMEOUTS = {"APITimeoutError", "TimeoutException", "TimeoutError", "Timeout"}
"""What timeouts are called by the packages and by the HTTP library beneath them."""


def package(name: str, model: str) -> Any:
    """A client package.

    Raises:
        Unsupported: It is not installed; the message has the command.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != name:
            raise  # the package is there, and something that it needs is not
        raise Unsupported(
            f"{model} needs the package {name}: pip install 'boughs[{name}]'", "backend"
        ) from None


def fault(error: Exception, api: str) -> BoughsError:
    """The error of ours for one that a client package raised.

    Args:
        error: Any exception from a call of the package.
        api: Who was asked, for the message.
    """
    if isinstance(error, BoughsError):
        return error
    message = f"{api}: {_message(error)}"
    status = getattr(error, "status_code", None)
    names = {cls.__name__ for cls in type(error).__mro__}
    if status is None and "authentication method" in message:
        return Unauthorized(message)  # Anthropic's package says at a call that it has no key
    if names & _TIMEOUTS:
        return RequestTimeout(f"{api}: no answer in time ({_message(error)})")
    if "APIConnectionError" in names:
        cause = f" ({error.__cause__})" if error.__cause__ is not None else ""
        return BackendError(f"{message}{cause}")
    placed = _CLASSES.get(status, BackendError)(message) if status else BackendError(message)
    if isinstance(placed, InvalidRequest):
        placed.param = getattr(error, "param", None)
    if isinstance(placed, Overloaded):
        placed.retry_after = _retry_after(error) or placed.retry_after
    return placed


def _message(error: Exception) -> str:
    """What the API itself said, without the wrapping of the package."""
    body = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body)
        if isinstance(inner, dict) and isinstance(inner.get("message"), str):
            return str(inner["message"])
    return str(error) or type(error).__name__


def _retry_after(error: Exception) -> float | None:
    """The seconds of the answer's `Retry-After`."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 < seconds < math.inf else None
