"""Servers to compare, and the clients that ask them: `boughs serve` and llama.cpp's `llama-server`.

Both speak OpenAI's `/v1/completions`, so that one client asks both the same. A server here is the
URL at which it listens for as long as a `with` block runs. This module knows no workloads and
counts no time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import boughs

START_SECONDS = 60.0
"""How long a server may take until it is ready."""

CONTEXT = 4096
"""Tokens that each of llama.cpp's slots may hold; no workload needs more."""


@contextlib.contextmanager
def boughs_server(model: str, threads: int) -> Iterator[str]:
    """`boughs serve`, by the settings that the engine in this process gets."""
    with boughs.Runtime(model_path=model, threads=threads, kv_memory="2G") as server:
        yield server.url


@contextlib.contextmanager
def llama_server(binary: Path, model: Path, threads: int, slots: int) -> Iterator[str]:
    """llama.cpp's server with a slot for each client; it keeps prompts by default."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(binary), "-m", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["-t", str(threads), "-tb", str(threads), "--cache-prompt"]
    command += ["-np", str(slots), "-c", str(slots * CONTEXT)]
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            if not _healthy(url, process):
                log.seek(0)
                raise SystemExit(f"{binary} is not ready; it printed:\n{log.read()[-2000:]}")
            yield url
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _healthy(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a server says that it is ready; false if it ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
        time.sleep(0.1)
    return False


def ask(url: str, chats: Sequence[Sequence[str]], tokens: int, clients: int) -> None:
    """Run chats, as many at a time as there are clients; each turn waits for the one before.

    Args:
        url: A server.
        chats: Of each chat what its user adds at each turn, after the model's last answer.
        tokens: How many tokens the model answers, each time.
        clients: How many chats run at a time, each over a connection of its own.
    """
    with ThreadPoolExecutor(clients) as pool:
        for _ in pool.map(lambda chat: _converse(url, chat, tokens), chats):
            pass


def _converse(url: str, chat: Sequence[str], tokens: int) -> None:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=300)
    text = ""
    with contextlib.closing(connection):
        for turn in chat:
            text += turn
            body = {"prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
            headers = {"Content-Type": "application/json"}
            connection.request("POST", "/v1/completions", json.dumps(body), headers)
            with connection.getresponse() as response:
                answer = response.read()
                if response.status != http.HTTPStatus.OK:
                    raise SystemExit(f"{url} answered {response.status}: {answer[:500]!r}")
            made = json.loads(answer)
            if made["usage"]["completion_tokens"] != tokens:
                raise SystemExit(f"{url} did not answer {tokens} tokens: {made['usage']}")
            text += made["choices"][0]["text"]
