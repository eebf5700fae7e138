"""The progress bar of `run_batch`: items, generated tokens a second, what the cache had.

On a terminal it is drawn with rich, which keeps it below what the program prints meanwhile, and
gives the cursor back however the batch ends. Anywhere else it is one line at the end. This module
knows no threads and no programs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Self

from rich import progress as rich
from rich.console import Console
from rich.text import Text

from boughs.lang.usage import Usage


class Progress:
    """A context in which items are counted and shown on standard error.

    Args:
        name: The program's.
        total: How many items there are.
        usage: What they have cost so far, those that run among them; from any thread.
    """

    def __init__(self, name: str, total: int, usage: Callable[[], Usage]) -> None:
        self._name = name
        self._total = total
        self._usage = usage
        self._began = time.perf_counter()
        self._done = self._failed = 0
        self._console = Console(stderr=True)
        self._bar: rich.Progress | None = None
        if self._console.is_interactive:  # a terminal, and no dumb one
            self._bar = rich.Progress(
                rich.TextColumn("{task.description}", markup=False),
                rich.BarColumn(),
                rich.MofNCompleteColumn(),
                rich.TimeElapsedColumn(),
                _Rates(self.rates),
                console=self._console,
            )
            self._task = self._bar.add_task(name, total=total)

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
        else:
            line = f"{self._name}: {self._done}/{self._total}, {self.rates()}"
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def add(self, *, failed: bool) -> None:
        """Count an item that has ended."""
        self._done += 1
        self._failed += failed
        if self._bar is not None:
            self._bar.update(self._task, advance=1)

    def rates(self) -> str:
        """Generated tokens a second, the share of prompt tokens that a cache had, failures."""
        usage, seconds = self._usage(), time.perf_counter() - self._began
        shown = f"{usage.completion_tokens / max(seconds, 1e-9):.0f} tokens/s"
        if usage.prompt_tokens:
            shown += f", {usage.hit_rate:.0%} cached"
        if self._failed:
            shown += f", {self._failed} failed"
        return shown


class _Rates(rich.ProgressColumn):
    """A column that asks for its text each time it is drawn."""

    def __init__(self, rates: Callable[[], str]) -> None:
        super().__init__()
        self._rates = rates

    def render(self, task: rich.Task) -> Text:  # noqa: ARG002 - the interface
        return Text(self._rates())
