"""A server's life as a process: its port, its start, its signals, its end."""

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from boughs.lang.errors import InvalidRequest
from boughs.runtime.server.run import open_socket

SCRIPT = Path(__file__).parents[1] / "fixtures" / "serve_fake.py"


class Process:
    """`serve_fake.py`, and what it printed."""

    def __init__(self, wait="ready", **settings):
        settings = {"port": 0, **settings}
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, json.dumps(settings)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines = []
        self.url = None
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"ready: (\S+)  model (\S+)", line)
            if found:
                self.url = found[1]
            if wait in line:
                break

    def post(self, body):
        request = urllib.request.Request(self.url + "/generate", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read()

    def post_behind(self, body):
        """A thread that waits for an answer, and a list for it."""
        answers = []
        thread = threading.Thread(target=lambda: answers.append(self.post(body)))
        thread.start()
        time.sleep(0.3)
        return thread, answers

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        """(exit status, everything printed)."""
        try:
            rest, _ = self.process.communicate(timeout=20)
        finally:
            self.process.kill()
        return self.process.returncode, "".join(self.lines) + rest


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_idle_server_ends(number, status):
    server = Process()
    assert json.loads(server.post({"text": "a", "sampling_params": {"max_tokens": 1}}))
    server.signal(number)
    code, printed = server.end()
    assert code == status
    assert printed.count("closed") == 1
    assert "Traceback" not in printed


def test_what_runs_may_finish():
    server = Process()
    body = {"text": "a", "sampling_params": {"max_tokens": 20}}
    plain = server.post_behind(body)
    stream = server.post_behind({**body, "stream": True})
    server.signal(signal.SIGTERM)
    time.sleep(0.2)
    with pytest.raises(urllib.error.URLError):  # nothing new is accepted
        server.post(body)
    for thread, _ in (plain, stream):
        thread.join(10)
    assert json.loads(plain[1][0])["meta_info"]["completion_tokens"] == 20
    assert stream[1][0].endswith(b"data: [DONE]\n\n")
    assert server.end()[0] == 0


def test_what_does_not_finish_is_told():
    server = Process(shutdown_timeout=0.3)
    body = {"text": "a", "sampling_params": {"max_tokens": 3000}}
    plain = server.post_behind(body)
    stream = server.post_behind({**body, "stream": True})
    server.signal(signal.SIGTERM)
    code, printed = server.end()
    for thread, _ in (plain, stream):
        thread.join(10)
    assert json.loads(plain[1][0])["meta_info"]["finish_reason"]["type"] == "abort"
    assert stream[1][0].endswith(b"data: [DONE]\n\n")
    assert b'"abort"' in stream[1][0]
    assert code == 0
    assert "closed" in printed


def test_second_signal_ends_at_once():
    server = Process(shutdown_timeout=600)
    body = {"text": "a", "stream": True, "sampling_params": {"max_tokens": 3000}}
    request = urllib.request.Request(server.url + "/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        answer.read(10)
        server.signal(signal.SIGINT)
        time.sleep(0.3)
        assert server.process.poll() is None
        server.signal(signal.SIGINT)
        code, printed = server.end()
    assert code == 130
    assert "closed" in printed
    assert "Traceback" not in printed


def test_signal_while_starting():
    server = Process(wait="starting", slow_start=600)
    server.signal(signal.SIGINT)
    code, printed = server.end()
    assert code == 130
    assert "closed" in printed
    assert "ready" not in printed
    assert "Traceback" not in printed


def test_engine_that_does_not_start():
    code, printed = Process(wait="error", bad_start=True).end()
    assert code == 1
    assert "error: there is no memory" in printed
    assert "closed" in printed


def test_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidRequest, match=f"port {port} is in use on 127.0.0.1"):
            open_socket("127.0.0.1", port)


def test_port_taken_while_starting():
    """Two that were started at the same time: one of them serves, the other says why not."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        server = Process(wait="starting", slow_start=1, port=port)
        probe.listen()
        code, printed = server.end()
    assert code == 1
    assert f"port {port} is in use" in printed
    assert "closed" in printed


@pytest.mark.parametrize(
    ("host", "words"),
    [("no.such.host.invalid", "is no address"), ("203.0.113.1", "cannot listen on 203.0.113.1")],
)
def test_wrong_hosts(host, words):
    with pytest.raises(InvalidRequest, match=words):
        open_socket(host, 0)


def test_ipv6():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    server = Process(host="::1")
    assert server.url.startswith("http://[::1]:")
    server.signal(signal.SIGTERM)
    assert server.end()[0] == 0
