"""Where Boughs keeps what outlives a process: models, verdicts on grammars, answers to calls.

This module knows none of these.
"""

from __future__ import annotations

import os
from pathlib import Path


def default_home() -> Path:
    """`$BOUGHS_HOME`, or `boughs` in the user's cache folder."""
    own = os.environ.get("BOUGHS_HOME")
    if own:
        return Path(own).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "boughs"
