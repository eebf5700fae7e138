"""The core as a process of its own: `python -m boughs.runtime.core`.

Started by the front, with which it speaks over one ZeroMQ PAIR socket. It ends when it is told
to, and when its parent is gone. This module knows sockets and the process, and no requests.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import threading
import time

import msgspec
import zmq

from boughs.lang.errors import BoughsError, as_plain
from boughs.runtime.config import EngineConfig
from boughs.runtime.messages import Failed, FromCore, ToCore, encode, to_core

PARENT_POLL_SECONDS = 0.5


def main() -> int:
    """Run a core until its front ends it. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="boughs.runtime.core")
    parser.add_argument("--address", required=True, help="the front's socket")
    parser.add_argument("--config", required=True, help="an EngineConfig as JSON")
    parser.add_argument("--parent-pid", type=int, required=True, help="ends with this process")
    args = parser.parse_args()
    # OpenMP's threads must not spin at a barrier: where another process takes a core, a step then
    # costs ten times its time. Read when torch is loaded, which is later.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    # What takes long at a start, as compiling kernels, is said on the standard error.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("boughs").setLevel(logging.INFO)
    # Ctrl-C reaches the whole terminal; how the core ends is for the front to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with(args.parent_pid)
    context = zmq.Context()
    socket = context.socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.connect(args.address)
    try:
        return _serve(msgspec.json.decode(args.config, type=EngineConfig), socket)
    finally:
        socket.close()
        context.term()


def _serve(config: EngineConfig, socket: zmq.Socket[bytes]) -> int:
    def send(message: FromCore) -> None:
        socket.send(encode(message))

    def receive(timeout: float | None) -> list[ToCore]:
        messages: list[ToCore] = []
        if socket.poll(None if timeout is None else int(timeout * 1000)):
            messages += map(to_core.decode, socket.recv_multipart())
            while socket.poll(0):
                messages += map(to_core.decode, socket.recv_multipart())
        return messages

    try:
        # Late, so that a wrong command line is answered before torch is loaded.
        from boughs.runtime.core.core import Core

        core = Core(config)
        # Half a million objects of libraries live as long as the process: to look through them all
        # for garbage would hold every stream up for a tenth of a second and more.
        gc.collect()
        gc.freeze()
        core.run(receive, send)
    except Exception as error:
        if isinstance(error, BoughsError):
            send(Failed(as_plain(error)))
            return 1
        send(Failed(("EngineDied", f"{type(error).__name__}: {error}", None)))
        raise
    return 0


def _end_with(parent: int) -> None:
    """End this process when `parent` is gone: nobody could read what it makes."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
