"""The way from a core to the process that tries grammars; starts it, and again when it has died.

This module knows no grammar, and no request.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec

from boughs.lang.constraints import JsonForm

from . import backend
from .json_form import PLAIN
from .worker import Answer, Bounds, Job

ATTEMPTS = 2
"""How often a job is given to a process: one may have died of something else."""


class _Gone(Exception):
    """The process has ended before it answered."""


def worker_command(folder: Path, vocab_size: int, eos: Sequence[int], bounds: Bounds) -> list[str]:
    """The command that starts the process; `-P` for the reason that `core_command` gives."""
    return [
        *(sys.executable, "-P", "-m", "boughs.runtime.constraints"),
        *("--folder", str(folder), "--vocab-size", str(vocab_size), "--backend", backend.MODULE),
        *("--eos", ",".join(map(str, eos))),
        *("--seconds", str(bounds.seconds), "--memory", str(bounds.memory)),
    ]


class Trials:
    """Tries sources, several at a time. Methods may be called from any thread.

    Args:
        command: Starts the process.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, Future[Answer]] = {}
        self._next = 0
        self._closed = False

    def run(self, kind: str, source: str, form: JsonForm = PLAIN) -> Answer:
        """What became of a source; waits for it, and the process bounds how long."""
        for _ in range(ATTEMPTS):
            future = self._send(kind, source, form)
            try:
                return future.result()
            except _Gone:
                continue
        return Answer(0, error=f"{kind}: the process that tries grammars ended", final=False)

    def close(self) -> None:
        """End the process; what waits for it is told so."""
        with self._lock:
            self._closed = True
            process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def _send(self, kind: str, source: str, form: JsonForm) -> Future[Answer]:
        future: Future[Answer] = Future()
        with self._lock:
            if self._closed:
                future.set_exception(_Gone())
                return future
            self._next += 1
            self._waiting[self._next] = future
            process = self._process = self._process or self._start()
            assert process.stdin is not None
            try:
                job = Job(self._next, kind, source, form)
                process.stdin.write(msgspec.json.encode(job) + b"\n")
                process.stdin.flush()
            except OSError:  # it has ended: its reader tells all who wait
                pass
        return future

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        threading.Thread(
            target=self._read, args=(process,), name="boughs-trials", daemon=True
        ).start()
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answer = msgspec.json.decode(line, type=Answer)
            with self._lock:
                future = self._waiting.pop(answer.id)
            future.set_result(answer)
        process.wait()
        with self._lock:
            self._process = None
            lost, self._waiting = self._waiting, {}
        for future in lost.values():
            future.set_exception(_Gone())
