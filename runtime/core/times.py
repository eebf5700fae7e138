"""How long steps take, stage by stage, and how long requests wait for their first.

This module knows no model and decides nothing.
"""

from __future__ import annotations

import time
from typing import Any

from boughs.runtime.core.step import Step
from boughs.runtime.metrics import Histogram

STAGES = ("schedule", "model", "sample", "send")
"""Of a step, in order: what is computed next, the forward pass, logits and next tokens, the way to
the front."""


class StepTimes:
    """The durations of one core's steps, in seconds."""

    def __init__(self) -> None:
        self._stages = {stage: Histogram() for stage in STAGES}
        self._step = Histogram()
        self._queue = Histogram()
        self._began: float | None = None
        self._last = 0.0

    def begin(self) -> None:
        """A step begins."""
        self._began = self._last = time.perf_counter()

    def drop(self) -> None:
        """There was nothing to do."""
        self._began = None

    def end(self, stage: str) -> None:
        """A stage has ended; the last one ends the step."""
        if self._began is None:
            return
        now = time.perf_counter()
        self._stages[stage].add(now - self._last)
        self._last = now
        if stage == STAGES[-1]:
            self._step.add(now - self._began)

    def admitted(self, step: Step) -> None:
        """Note how long the requests waited that have their first part in this step."""
        for work in step.works:
            if work.request.queued is not None:
                self._queue.add(time.monotonic() - work.request.queued)
                work.request.queued = None

    def as_json(self) -> dict[str, Any]:
        """All of them: of whole steps, of each stage, and of waiting."""
        stages = {stage: times.as_json() for stage, times in self._stages.items()}
        return {"step": self._step.as_json(), **stages, "queue": self._queue.as_json()}
