"""The process in which new grammars are tried: `python -m boughs.runtime.constraints`.

It holds the tokenizer, reads one job a line on its standard input, and forks for each a child that
has bounded memory, stack and processor time. A child that breaks a bound is gone, and nothing else
is. The process has no threads, so that forking is safe; it ends with its input. This module knows
no requests and no models.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from boughs.lang.constraints import JsonForm

from . import backend
from .json_form import PLAIN
from .trial import Verdict, try_source

STACK = 1 << 20
"""Bytes of stack of a trial: less than any thread has that later uses what passed."""

NICE, LAST = 5, 19
"""How far behind the core a trial stands in the queue for a processor: at first, and later."""

GRACE = 0.2
"""Seconds after which it stands last: a usual grammar has long been compiled."""

PATIENCE = 20
"""How many times its seconds a trial may last: where others want the processors, it waits."""

_NO_STACK = "it is nested too deeply or has too many parts: its compiler runs out of stack"
_ENDINGS = {
    signal.SIGSEGV: _NO_STACK,
    signal.SIGBUS: _NO_STACK,
    signal.SIGABRT: "it takes more memory than grammar_memory allows",
}


class Job(msgspec.Struct):
    """One source to try."""

    id: int
    kind: str
    source: str
    form: JsonForm = PLAIN


class Answer(msgspec.Struct):
    """What became of a job: a `Verdict`. Another time, one that is not `final` may be otherwise."""

    id: int
    grammar: str | None = None
    error: str | None = None
    weaker: tuple[str, ...] = ()
    final: bool = True


class Bounds(NamedTuple):
    """What one trial may take: seconds of a processor, and bytes beyond the tokenizer's."""

    seconds: float
    memory: int


Attempt = Callable[[Job], Verdict]


@dataclass
class _Child:
    job: Job
    pid: int
    due: float
    deadline: float
    made: bytearray = field(default_factory=bytearray)


def main() -> int:
    """Try grammars until the input ends. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="boughs.runtime.constraints")
    parser.add_argument("--folder", required=True, type=Path, help="the model's")
    parser.add_argument("--backend", required=True, help="the module that it is from")
    parser.add_argument("--vocab-size", required=True, type=int)
    parser.add_argument("--eos", required=True, help="token ids, comma-separated")
    parser.add_argument("--seconds", required=True, type=float, help="for one grammar")
    parser.add_argument("--memory", required=True, type=int, help="bytes for one grammar")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the whole terminal
    eos = tuple(int(id_) for id_ in args.eos.split(",") if id_)
    loaded = backend.load(args.folder, args.vocab_size, eos, module=args.backend)
    bounds = Bounds(args.seconds, args.memory)

    def attempt(job: Job) -> Verdict:
        return try_source(loaded, args.vocab_size, job.kind, job.source, job.form)

    Server(attempt, bounds).run()
    return 0


class Server:
    """Reads jobs, forks trials, writes answers."""

    def __init__(self, attempt: Attempt, bounds: Bounds) -> None:
        self._attempt = attempt
        self._bounds = bounds
        self._children: dict[int, _Child] = {}  # by the end of the pipe that is read
        self._unread = b""

    def run(self) -> None:
        """Serve until the input ends; trials that run then are killed."""
        while True:
            now = time.monotonic()
            for end, child in list(self._children.items()):
                if child.deadline <= now:
                    self._kill(end, child)
                elif child.due <= now:
                    os.setpriority(os.PRIO_PROCESS, child.pid, LAST)
                    child.due = child.deadline
            soonest = min((c.due for c in self._children.values()), default=None)
            wait = None if soonest is None else max(0.0, soonest - now)
            ready, _, _ = select.select([0, *self._children], [], [], wait)
            for end in ready:
                if end:
                    self._read_child(end)
                elif not self._read_jobs():
                    for child in self._children.values():
                        os.kill(child.pid, signal.SIGKILL)
                    return

    def _read_jobs(self) -> bool:
        """Start what has come; whether more may come."""
        made = os.read(0, 1 << 20)
        *lines, self._unread = (self._unread + made).split(b"\n")
        for line in lines:
            self._start(msgspec.json.decode(line, type=Job))
        return bool(made)

    def _start(self, job: Job) -> None:
        end, to_us = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(end)
            os.close(to_us)
            self._answer(Answer(job.id, error=f"cannot try it: {error}", final=False))
            return
        if pid == 0:
            _run_trial(self._attempt, job, self._bounds, to_us)
        os.close(to_us)
        now = time.monotonic()
        deadline = now + PATIENCE * self._bounds.seconds
        self._children[end] = _Child(job, pid, min(now + GRACE, deadline), deadline)

    def _read_child(self, end: int) -> None:
        child = self._children[end]
        made = os.read(end, 1 << 20)
        if made:
            child.made += made
            return
        del self._children[end]
        os.close(end)
        _, status = os.waitpid(child.pid, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            self._write(bytes(child.made))
            return
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if number == signal.SIGPROF:
            seconds = self._bounds.seconds
            self._fail(
                child, f"it takes more than {seconds:g} seconds to compile (grammar_timeout)"
            )
        elif number in _ENDINGS:
            self._fail(child, _ENDINGS[signal.Signals(number)], final=True)
        else:
            self._fail(child, f"its compiler ended with status {status}")

    def _kill(self, end: int, child: _Child) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        os.waitpid(child.pid, 0)
        del self._children[end]
        os.close(end)
        seconds = PATIENCE * self._bounds.seconds
        self._fail(child, f"no processor was free to compile it within {seconds:g} seconds")

    def _fail(self, child: _Child, why: str, *, final: bool = False) -> None:
        error = f"{child.job.kind}: {why}"
        self._answer(Answer(child.job.id, error=error, final=final))

    def _answer(self, answer: Answer) -> None:
        self._write(msgspec.json.encode(answer))

    def _write(self, line: bytes) -> None:
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()


def _run_trial(attempt: Attempt, job: Job, bounds: Bounds, to_us: int) -> None:
    """In the child: try, write the answer, end."""
    status = 1
    try:
        _bound(bounds)
        try:
            answer = Answer(job.id, *attempt(job))
        except MemoryError:
            answer = Answer(job.id, error=f"{job.kind}: {_ENDINGS[signal.SIGABRT]}")
        with os.fdopen(to_us, "wb") as pipe:
            pipe.write(msgspec.json.encode(answer))
        status = 0
    finally:
        os._exit(status)


def _bound(bounds: Bounds) -> None:
    """Bound this process's memory, stack and time, let it leave no core file, and go last.

    The time is that of processors: what a grammar takes, however busy the machine is.
    """
    os.nice(NICE)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    own = pages * resource.getpagesize()
    signal.setitimer(signal.ITIMER_PROF, bounds.seconds)  # its SIGPROF ends the process
    for what, most in (
        (resource.RLIMIT_AS, own + bounds.memory),
        (resource.RLIMIT_STACK, STACK),
        (resource.RLIMIT_CORE, 0),
    ):
        _, hard = resource.getrlimit(what)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (limit, limit))
