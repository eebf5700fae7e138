"""A server of one's own: `boughs serve` as a process that lives as long as it is needed.

This module knows no models and no requests; what it starts does.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from types import TracebackType
from typing import IO, Any, NoReturn, Self, TypeVar

from boughs.lang import loop
from boughs.lang.endpoint import RuntimeEndpoint
from boughs.lang.errors import BackendError, InvalidRequest, RequestTimeout, Unsupported
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import Chunk
from boughs.lang.sampling import SamplingParams

T = TypeVar("T")

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

    # ---- SGLang's methods ----

    def generate(  # noqa: PLR0917 - SGLang's signature
        self,
        prompt: str | list[str],
        sampling_params: Mapping[str, Any] | None = None,
        return_logprob: bool | list[bool] = False,
        logprob_start_len: int | list[int] | None = None,
        top_logprobs_num: int | list[int] | None = None,
        lora_path: object = None,
        session_id: object = None,
    ) -> str:
        """The answer of `POST /generate` to one prompt or a list, as JSON.

        Raises:
            InvalidRequest: An argument is wrong; names it.
            Unsupported: `lora_path` or `session_id` was given.
        """
        _refuse(lora_path=lora_path, session_id=session_id)
        body = {
            "text": prompt,
            "sampling_params": dict(sampling_params or {}),
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
        }
        given = {name: value for name, value in body.items() if value is not None}
        return json.dumps(loop.run(self.endpoint.post("/generate", given)))

    async def async_generate(
        self,
        prompt: str,
        sampling_params: Mapping[str, Any] | None = None,
        session_id: object = None,
    ) -> AsyncIterator[str]:
        """The text of an answer piece by piece, on any event loop."""
        _refuse(session_id=session_id)
        params = SamplingParams.from_mapping(sampling_params or {}, "sampling_params.")
        chunks = self.endpoint.generate(GenerateRequest(prompt=prompt, params=params))
        try:
            while (chunk := await _elsewhere(_next(chunks))) is not None:
                if chunk.text:
                    yield chunk.text
        finally:
            await _elsewhere(_close(chunks))

    add_request = async_generate

    def encode(self, prompt: str | list[str]) -> str:
        """The answer of `POST /encode`, as JSON."""
        return json.dumps(loop.run(self.endpoint.post("/encode", {"text": prompt})))

    def cache_prefix(self, prefix: str) -> None:
        """Compute a text, so that what begins with it finds it cached."""
        params = {"max_new_tokens": 0}
        loop.run(self.endpoint.post("/generate", {"text": prefix, "sampling_params": params}))

    async def get_server_info(self) -> dict[str, Any]:
        """What the server is and how it does, on any event loop."""
        return await _elsewhere(self.endpoint.get_server_info())

    def start_profile(self) -> NoReturn:
        """Refuse: the server has no profiler.

        Raises:
            Unsupported: Always; says what to use instead.
        """
        raise Unsupported(
            "start_profile, stop_profile: the server has no profiler; get_server_info() tells in "
            f"'stats' how long steps and their stages took, and process {self.pid} may be profiled "
            "from outside"
        )

    stop_profile = start_profile

    # ---- its end ----

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


async def _elsewhere(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that runs on Boughs's own loop."""
    return await asyncio.wrap_future(loop.submit(coroutine))


async def _next(chunks: AsyncIterator[Chunk]) -> Chunk | None:
    return await anext(chunks, None)


async def _close(chunks: AsyncIterator[Chunk]) -> None:
    assert isinstance(chunks, AsyncGenerator), "it was made by a generator function"
    await chunks.aclose()


def _refuse(**given: object) -> None:
    """Raise `Unsupported` for the first that was given."""
    for name, value in given.items():
        if value is not None:
            raise Unsupported(f"{name}: is not supported; leave it out", name)


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
