"""The parameters of `run`: which there are, what may be given for them, and the runs they make.

This module knows not how arguments are told from parameters.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from boughs.lang.backend import Backend
from boughs.lang.current import resolve_cached
from boughs.lang.errors import InvalidRequest
from boughs.lang.execution import Execution
from boughs.lang.executor import Executor
from boughs.lang.parameters import RUN_PARAMETERS, Defaults, Given
from boughs.lang.running import Run

OPTIONS = RUN_PARAMETERS | {"backend", "cache", "max_seconds", "stream", "use_thread"}
"""The names of all."""


@dataclass(frozen=True)
class RunOptions:
    """What runs of a program have in common.

    Attributes:
        program: Its name.
        backend: Who runs their requests.
        defaults: Of every `gen` that does not give its own.
        eager: Whether each statement is to end before the next begins.
        max_seconds: How long one may take; None is without a limit.
        spec_tokens: As `num_api_spec_tokens` of `function`.
    """

    program: str
    backend: Backend
    defaults: Defaults
    eager: bool
    max_seconds: float | None
    spec_tokens: int | None

    @classmethod
    def parse(cls, program: str, options: Mapping[str, Any], spec_tokens: int | None) -> Self:
        """Those of one call, `stream` apart.

        Raises:
            InvalidRequest: One is wrong, or there is none of its name.
        """
        rest = dict(options)
        backend = resolve_cached(rest.pop("backend", None), rest.pop("cache", None))
        use_thread = rest.pop("use_thread", True)
        if not isinstance(use_thread, bool):
            raise InvalidRequest(
                f"use_thread: expected a bool, got {use_thread!r:.40}", "use_thread"
            )
        max_seconds = _seconds(rest.pop("max_seconds", None))
        unknown = [name for name in rest if name not in RUN_PARAMETERS]
        if unknown:
            raise InvalidRequest(f"{program}: {unknown[0]} is not a parameter of a run", unknown[0])
        defaults = Defaults(Given.parse(rest, f"{program}: "))
        return cls(program, backend, defaults, not use_thread, max_seconds, spec_tokens)

    def execution(self, body: Callable[..., Any], arguments: inspect.BoundArguments) -> Execution:
        """A run of a program that is about to begin."""
        run = Run(self.program, self.backend, self.defaults, self.spec_tokens, eager=self.eager)
        return Execution(Executor(run), body, arguments.args, arguments.kwargs, self.max_seconds)


def check_defaults(program: str, options: Mapping[str, Any]) -> None:
    """Refuse what cannot be a gen's default; `options` may hold other parameters beside those.

    Raises:
        InvalidRequest: One is wrong.
    """
    defaults = {name: value for name, value in options.items() if name in RUN_PARAMETERS}
    Given.parse(defaults, f"{program}: ")


def check_spec_tokens(tokens: object) -> None:
    """Raise `InvalidRequest` if `tokens` is neither None nor a number above 0."""
    if tokens is None:
        return
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise InvalidRequest(
            f"num_api_spec_tokens: expected at least 1, got {tokens!r:.40}", "num_api_spec_tokens"
        )


def _seconds(given: Any) -> float | None:
    """How long a program may run, as a user gave it."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given < math.inf:
        raise InvalidRequest(
            f"max_seconds: expected seconds, above 0 and finite, got {given!r:.40}", "max_seconds"
        )
    return float(given)
