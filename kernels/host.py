"""The CPU that numba compiles for: the one that this process runs on, or the one it was told of.

`NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` stand for another one, which must have no more than this
one has. This module knows no kernel.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import numba
from llvmlite.binding import get_host_cpu_name  # type: ignore[import-untyped]
from numba.core import config
from numba.core.codegen import get_host_cpu_features

NAME: str = config.CPU_NAME or get_host_cpu_name()
"""As LLVM calls it."""

FEATURES = frozenset(
    feature.removeprefix("+")
    for feature in (config.CPU_FEATURES or get_host_cpu_features()).split(",")
    if feature.startswith("+")
)
"""Instructions that it has, as LLVM calls them."""


def cores() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0))


def describe() -> dict[str, str | int]:
    """All that compiled code and its speed depend on beside its source."""
    return {
        "machine": platform.machine(),
        "model": _model(),
        "cpu": NAME,
        "features": " ".join(sorted(FEATURES)),
        "cores": cores(),
        "numba": numba.__version__,
    }


def _model() -> str:
    """The CPU's own name, where Linux tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor()
