"""A request's body, read within bounds. This module knows no fields."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from boughs.lang.errors import InvalidRequest, RequestTimeout

T = TypeVar("T")


async def read_json(request: web.Request, seconds: float) -> dict[str, Any]:
    """The JSON object that the body is.

    Args:
        request: Of at most the application's `client_max_size` bytes.
        seconds: That the client may take to send it.

    Raises:
        InvalidRequest: It is no JSON object.
        RequestTimeout: It did not come in time.
    """
    try:
        async with asyncio.timeout(seconds):
            raw = await request.read()
    except TimeoutError:
        raise RequestTimeout(f"the body did not arrive within {seconds:g} seconds") from None
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


def converted(value: Any, kind: type[T], name: str) -> T:
    """`value` as a `kind`, in msgspec's strict sense.

    Args:
        value: Decoded JSON.
        kind: Any type that msgspec knows.
        name: What the value is called in an error; empty for the body itself.

    Raises:
        InvalidRequest: Names the place (`input_ids[3]`) and what is expected there.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        where = (name + place.rstrip("`")).removeprefix(".") or "body"
        raise InvalidRequest(f"{where}: {what[0].lower()}{what[1:]}", where) from None
