"""A server's life: take the port, start the engine, serve, stop.

At the first SIGINT or SIGTERM nothing new is accepted and what runs may finish; at the second it
ends at once. No process stays behind. This module knows no requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from aiohttp import web

from boughs.lang.errors import InvalidRequest

from .app import make_app
from .config import ServerConfig
from .served import Served

LAST_WORDS_SECONDS = 5.0
"""How long aborted requests get to send how they ended."""

HURRY_SECONDS = 2.0
"""How long the engine gets to end after a second signal. Its core ends with this process."""

log = logging.getLogger("boughs")


class Engine(Served, Protocol):
    """An engine that is started and ended here."""

    async def start(self) -> None:
        """Start, and wait until it is ready. Leaves nothing behind where it fails."""
        ...

    async def close(self) -> None:
        """End what runs, then the core."""
        ...


def open_socket(host: str, port: int) -> socket.socket:
    """Take the address that the server will listen on.

    Raises:
        InvalidRequest: It is in use, not allowed, or no address of this machine.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise InvalidRequest(f"host: {host!r} is no address: {error.strerror}", "host") from None
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _address_error(error, host, port) from None
    return sock


def serve(make_engine: Callable[[], Engine], config: ServerConfig, sock: socket.socket) -> int:
    """Serve until a signal ends it.

    Args:
        make_engine: Makes the engine, not started, on the event loop that it will run on.
        config: The server's settings.
        sock: From `open_socket`. It is closed at the end.

    Returns:
        The exit status: 0 after SIGTERM, 130 after SIGINT.

    Raises:
        BoughsError: The engine could not start, or somebody else took the port meanwhile.
    """
    with sock:
        return asyncio.run(_serve(make_engine, config, sock))


async def _serve(
    make_engine: Callable[[], Engine], config: ServerConfig, sock: socket.socket
) -> int:
    signals = _Signals()
    engine = make_engine()
    try:
        if not await _unless(signals.stop, engine.start()):
            return signals.status
        runner = web.AppRunner(
            make_app(engine, config),
            handler_cancellation=True,
            access_log=log if log.isEnabledFor(logging.INFO) else None,
            access_log_format='%a "%r" %s %b bytes in %Tf s',
            shutdown_timeout=config.shutdown_timeout + LAST_WORDS_SECONDS,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, sock).start()
        except OSError as error:
            raise _address_error(error, *sock.getsockname()[:2]) from None
        name = config.served_model_name or engine.model_path
        print(f"Boughs is ready: {_url(sock)}  model {name}", flush=True)
        await signals.stop.wait()
        await _unless(signals.hurry, _drain(runner, engine, config.shutdown_timeout))
        return signals.status
    finally:
        if signals.hurry.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HURRY_SECONDS):
                    await engine.close()
        else:
            await _unless(signals.hurry, engine.close())


async def _drain(runner: web.AppRunner, engine: Engine, seconds: float) -> None:
    """Accept nothing new, let what runs finish; after so many seconds, abort it."""
    ending = asyncio.create_task(runner.cleanup())
    try:
        done, _ = await asyncio.wait({ending}, timeout=seconds)
        if not done:
            log.warning("%d requests did not finish and are aborted", engine.abort_all())
        await ending
    finally:
        ending.cancel()


class _Signals:
    """SIGINT and SIGTERM as two events, and the exit status that they mean."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.status = 0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._take, number)

    def _take(self, number: int) -> None:
        if number == signal.SIGINT:
            self.status = 128 + number
        if self.hurry.is_set():
            os._exit(self.status)
        if self.stop.is_set():
            self.hurry.set()
            return
        log.warning("stopping when what runs is done; once more to stop at once")
        self.stop.set()


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, Any]) -> bool:
    """Do the work; whether it was done before the event, which cancels it."""
    task = asyncio.create_task(work)
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for one in (task, waiting):
            one.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _address_error(error: OSError, host: str, port: int) -> InvalidRequest:
    if error.errno == errno.EADDRINUSE:
        return InvalidRequest(
            f"port {port} is in use on {host}; end what listens there, or choose another --port",
            "port",
        )
    return InvalidRequest(f"cannot listen on {host} port {port}: {error.strerror}", "host")
