"""`python -m boughs.lang.kept PID ARGUMENT…`: the command `boughs ARGUMENT…`, kept by a parent.

It ends when the process PID, its parent, has ended in whatever way, so that no server stays
behind. This module knows no command.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

POLL_SECONDS = 0.5


def main() -> None:
    """Watch the parent, and run the command."""
    parent = int(sys.argv[1])
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    sys.argv[1:] = sys.argv[2:]
    runpy.run_module("boughs", run_name="__main__", alter_sys=True)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    for _ in range(2):  # the second one ends what still runs
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
