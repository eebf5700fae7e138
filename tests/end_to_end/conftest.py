"""Servers for end-to-end tests: started on a free loopback port, ended with their module."""

import os
import re
import subprocess
import sys
import threading
import time
from collections import deque

import pytest

DEATH = "the engine core died"
"""What is logged then."""


class Server:
    """A `boughs serve` process."""

    def __init__(self, *args):
        env = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "boughs", "serve", *map(str, args), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
        )
        self.lines = deque(maxlen=200)
        self.url = None
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"http://127\.0\.0\.1:\d+", line)
            if found and "ready" in line:
                self.url = found[0]
                break
        assert self.url, "the server did not start:\n" + "".join(self.lines)
        threading.Thread(target=self._drain, daemon=True).start()

    def _drain(self):
        self.lines.extend(self.process.stdout)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        assert DEATH not in "".join(self.lines), "".join(self.lines)


@pytest.fixture(autouse=True)
def no_core_dies(request, caplog):
    """A core that dies is replaced, and nobody who reads can tell: but here it is a fault."""
    yield
    if request.node.get_closest_marker("kills_core") is None:
        records = [*caplog.get_records("setup"), *caplog.get_records("call")]
        deaths = [record.getMessage() for record in records if DEATH in record.getMessage()]
        assert not deaths, deaths[0]


@pytest.fixture(scope="module")
def tiny_server(tiny_model):
    """A server with the tiny model."""
    server = Server(tiny_model, "--kv-memory", "64M")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def demo_server(demo_model):
    """A server with the demo model."""
    server = Server(demo_model)
    yield server
    server.stop()


@pytest.fixture
def wait_until():
    """Poll until a condition is true, for at most so many seconds."""

    def wait(condition, seconds=10.0):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "the condition did not become true"
            time.sleep(0.05)

    return wait
