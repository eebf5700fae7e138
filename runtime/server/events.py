"""Server-sent events: a stream of JSON lines to one client, within bounds.

A client that reads slowly holds up its own answer only, and one that does not read at all is cut
off after a while. This module knows nothing of what the lines say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from aiohttp import web

from .errors import Fault

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold lines back
}


async def send_events(
    request: web.Request,
    lines: AsyncGenerator[bytes | None, None],
    *,
    openai: bool,
    seconds: float,
) -> web.StreamResponse:
    """Send each line as it comes, and `[DONE]` behind the last.

    An error before the first line is raised, to be an ordinary answer with its status; a later
    one is sent as a line in the form of `Fault.body`.

    Args:
        request: To be answered.
        lines: JSON; None sends a comment, which keeps proxies from cutting a silent connection.
        openai: The form of an error.
        seconds: That the client may take to read what it was sent.
    """
    response = web.StreamResponse(headers=HEADERS)
    async with aclosing(lines):
        line = await anext(lines, None)
        await response.prepare(request)
        try:
            while True:
                await _write(request, response, _event(line), seconds)
                line = await anext(lines)
        except StopAsyncIteration:
            pass
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 -- told to the client, and logged by Fault
            body = msgspec.json.encode(Fault.of(error).body(openai=openai))
            await _write(request, response, _event(body), seconds)
    await _write(request, response, b"data: [DONE]\n\n", seconds)
    await response.write_eof()
    return response


def _event(line: bytes | None) -> bytes:
    return b": keep-alive\n\n" if line is None else b"data: " + line + b"\n\n"


async def _write(
    request: web.Request, response: web.StreamResponse, data: bytes, seconds: float
) -> None:
    """Write, and wait until the client has read enough of what was written before.

    Raises:
        ConnectionError: It has gone, or does not read; the connection is closed.
    """
    try:
        async with asyncio.timeout(seconds):
            await response.write(data)
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionAbortedError(f"the client read nothing for {seconds:g} seconds") from None
