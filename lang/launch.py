"""A server of one's own: `boughs serve` as a process that lives as long as it is needed.

This module knows no models and no requests; what it starts does.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import IO, Any, Self

from boughs.lang.endpoint import RuntimeEndpoint
from boughs.lang.errors import BackendError, InvalidRequest, RequestTimeout

STOP_SECONDS = 40.0
"""How long the server may take to end what runs; it is killed after that."""

TAIL_LINES = 20


class Runtime:
    """A server in a process of its own, usable as a backend.

    Args:
        model_path: What `boughs serve` is to serve.
        log_level: What it logs to standard error.
        launch_timeout: Seconds that it may take to be ready.
        settings: Other flags of `boughs serve` as keywords (`page_size=16`, `kv_memory="2G"`,
            `host=…`, `port=…`; by default a free port of this machine).

    Attributes:
        url: Where it listens.
        endpoint: The backend.
        pid: Its process.

    Raises:
        BackendError: It could not start; the message holds the end of what it printed.
        RequestTimeout: It was not ready in time.
    """

    def __init__(
        self,
        model_path: str,
        log_level: str = "error",
        launch_timeout: float = 300.0,
        **settings: Any,
    ) -> None:
        command = _command(model_path, {"port": 0, "log_level": log_level, **settings})
        deadline = time.monotonic() + launch_timeout
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._forward = False  # a failed start tells what was printed in its error
        self._urls: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._readers = [
            threading.Thread(target=self._read_output, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        try:
            self.url = self._wait_for_url(deadline, launch_timeout)
            self.endpoint = RuntimeEndpoint(self.url, api_key=settings.get("api_key"))
        except BaseException:
            self._end(seconds=0.0)
            raise
        self._forward = True
        atexit.register(self.shutdown)

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def shutdown(self) -> None:
        """End the server; what runs may finish, within a bound. May be called twice."""
        self.endpoint.close()
        self._end(STOP_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def _wait_for_url(self, deadline: float, launch_timeout: float) -> str:
        """What the server prints when it is ready."""
        try:
            url = self._urls.get(timeout=max(deadline - time.monotonic(), 0.0))
        except queue.Empty:
            raise RequestTimeout(
                f"the server was not ready within {launch_timeout:g} s{self._printed()}"
            ) from None
        if url is None:
            self._process.wait()
            for reader in self._readers:
                reader.join(1.0)
            raise BackendError(
                f"the server could not start (status {self._process.returncode}){self._printed()}"
            )
        return url

    def _printed(self) -> str:
        return "; it printed:\n" + "".join(self._tail) if self._tail else ""

    def _read_output(self) -> None:
        for line in self._lines(self._process.stdout):
            found = re.search(r"ready: (https?://\S+)", line)
            if found is not None:
                self._urls.put(found[1])
        self._urls.put(None)

    def _read_errors(self) -> None:
        for line in self._lines(self._process.stderr):
            self._tail.append(line)
            if self._forward:
                sys.stderr.write(line)

    @staticmethod
    def _lines(stream: IO[str] | None) -> IO[str]:
        assert stream is not None, "it was opened as a pipe"
        return stream

    def _end(self, seconds: float) -> None:
        atexit.unregister(self.shutdown)
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _command(model_path: str, settings: Mapping[str, Any]) -> list[str]:
    """The command line. `-P`: a folder called `kernels` must not be taken for a package."""
    if not isinstance(model_path, str | os.PathLike):
        raise InvalidRequest(f"model_path: expected a string, got {model_path!r:.60}", "model_path")
    command = [sys.executable, "-P", "-m", "boughs.lang.kept", str(os.getpid())]
    command += ["serve", os.fspath(model_path)]
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif isinstance(value, list | tuple):
            for item in value:
                command += [flag, str(item)]
        elif value is not None and value is not False:
            command += [flag, str(value)]
    return command
