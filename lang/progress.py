"""The progress bar of `run_batch`: items, generated tokens a second, what the cache had.

This module knows no threads and no programs.
"""

from __future__ import annotations

import time
from typing import Any

from rich import progress as rich

from boughs.lang.state import ProgramState


class Progress:
    """A context in which outcomes are counted and shown on standard error."""

    def __init__(self, name: str, total: int) -> None:
        from rich.console import Console

        self._bar = rich.Progress(
            rich.TextColumn("{task.description}"),
            rich.BarColumn(),
            rich.MofNCompleteColumn(),
            rich.TimeElapsedColumn(),
            rich.TextColumn("{task.fields[rates]}"),
            console=Console(stderr=True),
        )
        self._task = self._bar.add_task(name, total=total, rates="")
        self._began = time.perf_counter()
        self._prompt = self._cached = self._generated = self._failed = 0

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def add(self, outcome: ProgramState | BaseException) -> None:
        """Count an item that has ended."""
        if isinstance(outcome, ProgramState):
            usage = outcome.usage
            self._prompt += usage.prompt_tokens
            self._cached += usage.cached_tokens
            self._generated += usage.completion_tokens
        else:
            self._failed += 1
        seconds = max(time.perf_counter() - self._began, 1e-9)
        rates = f"{self._generated / seconds:.0f} tokens/s"
        if self._prompt:
            rates += f", {self._cached / self._prompt:.0%} cached"
        if self._failed:
            rates += f", {self._failed} failed"
        self._bar.update(self._task, advance=1, rates=rates)
