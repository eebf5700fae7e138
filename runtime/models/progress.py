"""How far a long step has come, and a bar that shows it on a terminal.

This module knows nothing of what is being done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[str, float | None], None]
"""Is told what is being done and which share of it is done, from 0 to 1; None where unknown."""


def silent(what: str, share: float | None) -> None:
    """Show nothing."""


@contextmanager
def bar() -> Iterator[Report]:
    """A progress bar on standard error, one line a step; nothing where that is no terminal."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, share: float | None) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=None)
            if share is not None:
                progress.update(tasks[what], total=1.0, completed=share)

        yield report
