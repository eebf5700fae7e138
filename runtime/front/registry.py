"""The requests that run, under their ids, and how those before them ended.

It refuses what is too much and ends what nobody waits for. This module knows neither text nor
tokens.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from boughs.lang.errors import InvalidRequest, Overloaded, RequestAborted, RequestTimeout

from .running import Latencies, Running
from .supervisor import Supervisor

ENDS = ("finished", "aborted", "disconnected", "timed_out", "shut_down", "failed")
"""How requests end: whole, by `abort`, because their reader left, by their timeout, with the
engine, by an error."""


class Registry:
    """The requests of one front.

    Args:
        core: Runs their submissions.
        most: Submissions that may run or wait.
    """

    def __init__(self, core: Supervisor, most: int) -> None:
        self._core = core
        self._most = most
        self._running: dict[str, Running] = {}
        self._ends: Counter[str] = Counter(dict.fromkeys(ENDS, 0))
        self._latencies = Latencies()

    def __len__(self) -> int:
        return len(self._running)

    @contextmanager
    def request(
        self, rid: str | None, count: int, timeout: float | None = None
    ) -> Iterator[tuple[str, Running]]:
        """A request of `count` submissions while it runs; they end with the block.

        Raises:
            InvalidRequest: A request of this id runs.
            Overloaded: Too many submissions would.
        """
        if rid is None:
            rid = secrets.token_hex(16)
        elif rid in self._running:
            raise InvalidRequest(f"rid: a request {rid!r} runs already", "rid")
        if self._core.in_flight + count > self._most:
            raise Overloaded(
                f"{self._core.in_flight} requests run or wait, and no more than {self._most} may; "
                "try again, or raise max_queued_requests"
            )
        run = self._running[rid] = Running(self._core, self._latencies, timeout)
        end = "finished"
        try:
            yield rid, run
        except BaseException as error:
            end = _end(error)
            raise
        finally:
            self._ends["aborted" if run.stopped else end] += 1
            del self._running[rid]
            run.close()

    def abort(self, rid: str) -> bool:
        """End the request with exactly this id; whether it ran."""
        run = self._running.get(rid)
        if run is not None:
            run.stop()
        return run is not None

    def abort_all(self) -> int:
        """End every request; how many ran."""
        for run in self._running.values():
            run.stop()
        return len(self._running)

    def stats(self) -> dict[str, Any]:
        """How many run, how many ended in which way, and how long things took."""
        return {
            "requests": len(self._running),
            "ended": dict(self._ends),
            "seconds": self._latencies.as_json(),
        }


def _end(error: BaseException) -> str:
    """Which of `ENDS` an error means."""
    if isinstance(error, GeneratorExit | asyncio.CancelledError):
        return "disconnected"
    if isinstance(error, RequestTimeout):
        return "timed_out"
    return "shut_down" if isinstance(error, RequestAborted) else "failed"
