"""A program's own parameters: all of its function's but the first, which is the state.

This module knows no parameters of a run and no states.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from boughs.lang.errors import InvalidRequest

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Arguments:
    """What a program's function takes.

    Args:
        func: The function.

    Raises:
        InvalidRequest: It cannot be a program.
    """

    def __init__(self, func: Callable[..., Any]) -> None:
        if not callable(func):
            raise InvalidRequest(f"function: expected a function, got {func!r:.60}", "func")
        self.name = str(getattr(func, "__name__", type(func).__name__))
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise InvalidRequest(
                f"{self.name}: a program's body cannot yield; it would never run", "func"
            )
        signature = inspect.signature(func)
        parameters = list(signature.parameters.values())
        if not parameters or parameters[0].kind not in _POSITIONAL:
            raise InvalidRequest(f"{self.name}: a program's first parameter is its state", "func")
        self._signature = signature.replace(parameters=parameters[1:])
        self._parameters = self._signature.parameters
        self._takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)

    def owns(self, name: str) -> bool:
        """Whether a keyword of this name is a parameter of the function."""
        parameter = self._parameters.get(name)
        return parameter is not None and parameter.kind in _BY_KEYWORD

    def takes(self, name: str) -> bool:
        """Whether the function can be called with a keyword of this name."""
        return self._takes_any or self.owns(name)

    def bind(
        self, bound: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> inspect.BoundArguments:
        """The arguments of a call; those given go before those bound.

        Raises:
            TypeError: They do not fit.
        """
        by_position = list(self._parameters)[: len(args)]
        rest = {name: value for name, value in bound.items() if name not in by_position}
        try:
            return self._signature.bind(*args, **{**rest, **kwargs})
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None

    def bind_placeholders(
        self,
        bound: Mapping[str, Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        placeholder: Callable[[str], str] = "{{{}}}".format,
    ) -> inspect.BoundArguments:
        """The same, where what is missing is its `placeholder`: its own name in braces."""
        given = dict(kwargs)
        for name, parameter in list(self._parameters.items())[len(args) :]:
            if name not in bound and parameter.default is inspect.Parameter.empty:
                if self.owns(name):
                    given.setdefault(name, placeholder(name))
                elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                    args = (*args, placeholder(name))
        return self.bind(bound, args, given)
