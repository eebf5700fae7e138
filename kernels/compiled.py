"""How this folder uses numba: what is compiled, and what is kept on disk.

Functions marked `compiled` are compiled into the ones that call them. Entry points, which Python
calls, are kept on disk, beside their file or in the user's cache folder, so that a second start
compiles nothing. numba looks at an entry point's own file only to see whether what it kept is
still right; `sources` lets it see the others too. This module knows no kernel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit

P = ParamSpec("P")
T = TypeVar("T")

# No `fastmath`: numba would put its flags on the arithmetic of `simd` too, which rounds by adding
# and subtracting a number.
_OPTIONS = {"nogil": True, "error_model": "numpy"}


def compiled(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function that compiled functions call."""
    return cast("Callable[P, T]", njit(**_OPTIONS)(function))


def entry_point(function: Callable[..., None], *signature: Any) -> Callable[..., None]:
    """Compile what Python calls, or load it from disk, for one signature of numba types.

    `function` must read a variable of an enclosing function that holds `sources()`.
    """
    assert function.__closure__ is not None
    try:
        dispatcher = njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:
        # There is no folder to write to; numba says so here and not when it writes.
        dispatcher = njit(**_OPTIONS)(function)
    dispatcher.compile(signature)
    dispatcher.disable_compile()
    return cast("Callable[..., None]", dispatcher)


def sources() -> str:
    """A digest of the source of this folder."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
