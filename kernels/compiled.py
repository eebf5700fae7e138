"""How this folder uses numba: what is compiled, and what is kept on disk.

Functions marked `compiled` are compiled into the ones that call them. Entry points, which Python
calls, are kept on disk, beside their file or in the user's cache folder, so that a second start
compiles nothing; where something is compiled, the log says so before it begins. numba looks at an
entry point's own file only to see whether what it kept is still right; `sources` lets it see the
others too. This module knows no kernel.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit, types
from numba.core.event import Event, Listener, install_listener
from numba.core.typing.typeof import typeof_impl

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)

# No `fastmath`: numba would put its flags on the arithmetic of `simd` too, which rounds by adding
# and subtracting a number.
_OPTIONS = {"nogil": True, "error_model": "numpy"}


class _Teller(Listener):  # type: ignore[misc]
    """Says that a function is compiled, which numba reports where the disk does not hold it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told = False

    def on_start(self, event: Event) -> None:  # noqa: ARG002 -- numba's
        """A compilation begins: that of the function, or of one that it calls."""
        if not self._told:
            log.info("compiling %s for this CPU: seconds, once; it is kept on disk", self._name)
            self._told = True

    def on_end(self, event: Event) -> None:
        """One has ended."""


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
    name = function.__qualname__.removesuffix(".<locals>.run")
    with install_listener("numba:compile", _Teller(name)):
        dispatcher.compile(signature)
    dispatcher.disable_compile()
    return cast("Callable[..., None]", dispatcher)


class Callee:
    """A compiled function as what an entry point's enclosing function holds, to be called by it.

    numba knows what it has kept by the pickle of what is held, and that of a dispatcher is another
    one in every process. This one's is its name; what it computes is told by `sources`.
    """

    def __init__(self, function: Callable[..., Any], *name: object) -> None:
        self.dispatcher = function
        self._name = (function.__qualname__, *map(str, name))

    def __reduce__(self) -> tuple[Any, ...]:
        return (tuple, (self._name,))

    def __call__(self, *args: Any) -> Any:
        """Only compiled code calls it; this tells readers of types that it can."""
        raise NotImplementedError


@typeof_impl.register(Callee)  # type: ignore[untyped-decorator]
def _type_of_callee(value: Callee, _: object) -> types.Dispatcher:
    return types.Dispatcher(value.dispatcher)


def sources() -> str:
    """A digest of the source of this folder."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
