"""What becomes of a command's output where nobody takes it: a closed pipe, a full disk.

This module knows no command.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

READER_GONE = 128 + signal.SIGPIPE
"""The exit status behind `| head`, as a shell has it."""


def console(**options: Any) -> Console:
    """A console of rich, whose own way with a closed pipe is to end the process."""
    from rich.console import Console

    class Raising(Console):
        def on_broken_pipe(self) -> None:
            error = sys.exception()
            assert error is not None, "it is called for one"
            raise error

    return Raising(**options)


def flush() -> None:
    """Write out what was printed; raises OSError where that is impossible."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def is_lost(error: OSError) -> bool:
    """Whether an error is of the output: what was printed cannot be written."""
    try:
        flush()
    except OSError:
        return True
    # What was dropped is not there to be tried again.
    if error.errno == errno.ENOSPC:
        return error.filename is None
    if error.errno != errno.EPIPE:
        return False
    poll = select.poll()
    poll.register(sys.stdout.fileno())
    return any(event & select.POLLERR for _, event in poll.poll(0))


def give_up(error: OSError) -> int:
    """Drop what was printed, and say why where somebody may read it; the exit status."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:  # else Python tries at its exit
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return READER_GONE
    print(f"boughs: error: the output cannot be written: {error.strerror}", file=sys.stderr)
    return 1
