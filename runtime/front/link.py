"""How the front reaches a core: a process of its own, or a thread of this one.

Both speak `boughs.runtime.messages`, in order and without loss while the core lives. This module
knows no requests: what a core's end means for them is the supervisor's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import shutil
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec
import zmq
import zmq.asyncio

from boughs.lang.errors import BoughsError, as_plain
from boughs.runtime.config import EngineConfig
from boughs.runtime.messages import Failed, FromCore, Shutdown, ToCore, encode, from_core

SHUTDOWN_SECONDS = 5.0
"""How long a core may take to end by itself (it finishes its step) before it is terminated."""

KILL_SECONDS = 2.0
"""How long a terminated core may take to end before it is killed."""

_PREFIX = "boughs-"
"""Of the folders with the sockets; the front's process id follows."""

TAIL_LINES = 40
"""Lines of a core's output that are kept, to tell why it died."""

Receive = Callable[[float | None], list[ToCore]]
Send = Callable[[FromCore], None]


class CoreGone(Exception):
    """The core has ended. The message says how, and what it printed last."""


class Link(Protocol):
    """A way to a core. All methods run on one event loop."""

    async def start(self) -> None:
        """Start the core; it reports by `Ready` or `Failed`."""
        ...

    def send(self, message: ToCore) -> None:
        """Send, without waiting. A message to a core that has ended is lost."""
        ...

    async def receive(self) -> FromCore:
        """The next message. Raises `CoreGone` when the core has ended, and again after that."""
        ...

    @property
    def alive(self) -> bool:
        """Whether the core has been started and has not ended."""
        ...

    async def close(self) -> None:
        """End the core, within a bound. Nothing of it is left behind."""
        ...


T = TypeVar("T")


class _Inbox:
    """Messages of a core, and at last its end."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[FromCore | CoreGone] = asyncio.Queue()

    def put(self, item: FromCore | CoreGone) -> None:
        self._queue.put_nowait(item)

    async def get(self) -> FromCore:
        item = await self._queue.get()
        if isinstance(item, CoreGone):
            self._queue.put_nowait(item)
            raise item
        return item


class _Outbox(Generic[T]):
    """Messages to a core. What is put in one turn of the event loop goes out together.

    So a core that waits wakes to all submissions of a request, and can compute them in one step.

    Args:
        send: Sends messages, at least one.
    """

    def __init__(self, send: Callable[[list[T]], None]) -> None:
        self._send = send
        self._messages: list[T] = []

    def put(self, message: T) -> None:
        if not self._messages:
            asyncio.get_running_loop().call_soon(self._flush)
        self._messages.append(message)

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        self._send(messages)


def core_command(config: EngineConfig, address: str) -> list[str]:
    """The command that starts a core.

    `-P` keeps the working directory from being searched for modules: this project's folder of
    kernels would be taken for the package that transformers looks for.
    """
    return [
        *(sys.executable, "-P", "-m", "boughs.runtime.core"),
        *("--address", address),
        *("--config", msgspec.json.encode(config).decode()),
        *("--parent-pid", str(os.getpid())),
    ]


class ProcessLink:
    """A core in a process of its own, over a ZeroMQ pair in a private folder.

    Args:
        config: The engine's settings, with a resolved model path.
        command: Makes the command line from config and address.
    """

    def __init__(
        self,
        config: EngineConfig,
        command: Callable[[EngineConfig, str], Sequence[str]] = core_command,
    ) -> None:
        self._config = config
        self._command = command
        self._inbox = _Inbox()
        self._outbox = _Outbox(self._send)
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket = self._context.socket(zmq.PAIR)
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._spoke = False

    @property
    def pid(self) -> int | None:
        """The core's process id, once started."""
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Start the process; raises OSError where that is impossible."""
        await asyncio.to_thread(_sweep)
        self._folder = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-")  # mode 0700
        address = f"ipc://{Path(self._folder.name) / 'core'}"
        self._socket.set_hwm(0)
        self._socket.linger = 0
        self._socket.bind(address)
        self._process = await asyncio.create_subprocess_exec(
            *self._command(self._config, address),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        self._tasks = [
            asyncio.create_task(self._read_messages()),
            asyncio.create_task(self._read_output()),
            asyncio.create_task(self._watch()),
        ]

    def send(self, message: ToCore) -> None:
        """Send, without waiting. What cannot be sent raises here, and nothing else is lost."""
        self._outbox.put(encode(message))

    def _send(self, messages: list[bytes]) -> None:
        if self._socket.closed:
            return
        sent = self._socket.send_multipart(messages, zmq.NOBLOCK)
        assert isinstance(sent, asyncio.Future), "zmq.asyncio gives futures"
        error = sent.exception() if sent.done() else None
        # A pair without a peer refuses: the core has ended, which `receive` tells.
        if error is not None and not isinstance(error, zmq.Again):
            raise error

    async def receive(self) -> FromCore:
        """The next message; raises `CoreGone`."""
        return await self._inbox.get()

    async def close(self) -> None:
        """Ask the core to end, terminate it, kill it: within a bound."""
        process = self._process
        if process is not None and process.returncode is None:
            ways: list[tuple[Callable[[], None], float]] = [
                (lambda: self.send(Shutdown()), SHUTDOWN_SECONDS),
                (process.terminate, KILL_SECONDS),
                (process.kill, KILL_SECONDS),
            ]
            # A core that still loads its model does not listen yet.
            for end, seconds in ways if self._spoke else ways[1:]:
                with contextlib.suppress(ProcessLookupError):
                    end()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), seconds)
                    break
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=0)
        if self._folder is not None:
            self._folder.cleanup()

    async def _read_messages(self) -> None:
        try:
            while True:
                message = from_core.decode(await self._socket.recv())
                self._spoke = True
                self._inbox.put(message)
        except msgspec.MsgspecError as error:  # not a core of this version
            self._inbox.put(CoreGone(f"it sent what is no message: {error}"))

    async def _read_output(self) -> None:
        """Show what the core prints, and keep its last lines."""
        assert self._process is not None
        assert self._process.stdout is not None
        line = b""
        while chunk := await self._process.stdout.read(1 << 16):
            if sys.stderr is not None:
                with contextlib.suppress(OSError, ValueError):  # it is closed: nobody looks
                    sys.stderr.write(chunk.decode("utf-8", "replace"))
                    sys.stderr.flush()
            *lines, line = (line + chunk).split(b"\n")
            self._tail.extend(part.decode("utf-8", "replace") for part in lines)
        if line:
            self._tail.append(line.decode("utf-8", "replace"))

    async def _watch(self) -> None:
        """Tell of the core's end, behind all that it sent and printed."""
        assert self._process is not None
        code = await self._process.wait()
        reader, output, _ = self._tasks
        await asyncio.wait([output], timeout=1.0)  # a grandchild may hold the pipe
        reader.cancel()
        with contextlib.suppress(msgspec.MsgspecError):  # the last message, cut
            while await self._socket.poll(100):
                self._inbox.put(from_core.decode(await self._socket.recv()))
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        printed = "\n".join(self._tail)
        self._inbox.put(
            CoreGone(f"it {how}" + (f", after printing:\n{printed}" if printed else ""))
        )


def _sweep() -> None:
    """Remove the folders of fronts that were killed and could not do it themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        with contextlib.suppress(OSError, ValueError):
            if folder.stat().st_uid == os.getuid() and not _is_alive(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


class ThreadLink:
    """A core in a thread of this process, for debugging and tests.

    Args:
        run: Makes the core and runs it until `Shutdown` arrives.
    """

    def __init__(self, run: Callable[[Receive, Send], None]) -> None:
        self._run = run
        self._inbox = _Inbox()
        self._to_core: queue.SimpleQueue[list[ToCore]] = queue.SimpleQueue()
        self._outbox = _Outbox(self._to_core.put)
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._loop is not None and not self._ended.is_set()

    async def start(self) -> None:
        """Start the thread."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._main, name="boughs-core", daemon=True).start()

    def send(self, message: ToCore) -> None:
        """Send, without waiting."""
        self._outbox.put(message)

    async def receive(self) -> FromCore:
        """The next message; raises `CoreGone`."""
        return await self._inbox.get()

    async def close(self) -> None:
        """Ask the core to end and wait, up to a bound: a thread cannot be killed."""
        if self._loop is None:
            return
        self.send(Shutdown())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), SHUTDOWN_SECONDS)

    def _main(self) -> None:
        reason = "its thread ended"
        try:
            self._run(self._receive, self._post)
        except BoughsError as error:
            self._post(Failed(as_plain(error)))
        except BaseException as error:  # noqa: BLE001 -- a thread's last line: it is reported
            reason = "".join(traceback.format_exception(error))
            self._post(Failed(("EngineDied", f"{type(error).__name__}: {error}", None)))
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._inbox.put, CoreGone(reason))
        self._loop.call_soon_threadsafe(self._ended.set)

    def _post(self, message: FromCore) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._inbox.put, message)

    def _receive(self, timeout: float | None) -> list[ToCore]:
        """What waits for the core; blocks up to `timeout` seconds for the first (None: ever)."""
        messages: list[ToCore] = []
        with contextlib.suppress(queue.Empty):
            messages += self._to_core.get(block=timeout != 0, timeout=timeout or None)
            while True:
                messages += self._to_core.get_nowait()
        return messages


def process_link(config: EngineConfig) -> Link:
    """A core process for `config`."""
    return ProcessLink(config)


def thread_link(config: EngineConfig) -> Link:
    """A core thread for `config`."""

    def run(receive: Receive, send: Send) -> None:
        # As the core process does, and for its reason; of no effect where torch is loaded already.
        os.environ.setdefault("GOMP_SPINCOUNT", "0")
        from boughs.runtime.core.core import Core

        Core(config).run(receive, send)

    return ThreadLink(run)
