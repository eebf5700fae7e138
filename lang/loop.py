"""The event loop on which programs and in-process backends run.

One daemon thread a process, started at first use. Everything that the language awaits is awaited
there; plain code of the user never runs on it, so it is never held up. This module knows neither
programs nor backends.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

WAKE_SECONDS = 0.5
"""How often a thread that waits looks up. A signal that comes just before the main thread begins to
wait, or to another thread, does not wake it, and Python would see the interrupt only at the end."""

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""By process id: a forked child has no thread that would run its parent's loop."""


def background_loop() -> asyncio.AbstractEventLoop:
    """The process's loop; starts it where there is none."""
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="boughs-loop", daemon=True).start()
            _loops.clear()
            _loops[os.getpid()] = loop
        return loop


def on_loop() -> bool:
    """Whether the caller runs on the background loop (where it must await and never block)."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return False
    return running is _loops.get(os.getpid())


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start `coroutine` on the loop from any thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, background_loop())


def call(function: Callable[[], T]) -> T:
    """What `function`, which must not block, returns on the loop: nothing there changes meanwhile.

    From any thread, the loop's own too.
    """
    if on_loop():
        return function()

    async def called() -> T:
        return function()

    return run(called())


def run(coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run `coroutine` on the loop and wait for its result. An interrupt cancels it.

    Raises:
        RuntimeError: Called on the loop itself, which would wait for ever.
    """
    if on_loop():
        coroutine.close()
        raise RuntimeError("this call waits; on Boughs's own loop use the async form")
    future = submit(coroutine)
    until = math.inf if timeout is None else time.monotonic() + timeout
    try:
        while True:
            try:
                return future.result(max(0.0, min(WAKE_SECONDS, until - time.monotonic())))
            except TimeoutError:
                if future.done() or time.monotonic() >= until:
                    raise
    except BaseException:
        future.cancel()
        raise
