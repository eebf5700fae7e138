"""A text that stands for one that a model would write, and tells when a program looks at it.

To put it into another text is not to look; to compare it, search it, measure it or convert it is:
what the program does then may depend on it. This module knows no programs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

_ASKING = (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"),
    *("__contains__", "__len__", "__iter__"),
    *("startswith", "endswith", "find", "rfind", "index", "rindex", "count", "encode"),
    *("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"),
    *("isnumeric", "isprintable", "isspace", "istitle", "isupper"),
    *("split", "rsplit", "splitlines", "partition", "rpartition"),
)
"""Methods whose result is about the text."""

_MAKING = (
    *("capitalize", "casefold", "lower", "swapcase", "title", "upper", "__getitem__"),
    *("strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "replace", "translate"),
)
"""Methods whose result is a text that stands for the model's as well."""


class Placeholder(str):
    """A placeholder.

    Args:
        text: What it is as a text.
        looked: Called when the program looks at it.
    """

    _looked: Callable[[], None]

    def __new__(cls, text: str, looked: Callable[[], None]) -> Self:
        """A string cannot be changed, so it is made here."""
        made = super().__new__(cls, text)
        made._looked = looked
        return made

    def __bool__(self) -> bool:
        self._looked()
        return str.__len__(self) > 0

    def __int__(self) -> int:
        self._looked()
        return int(str(self))

    def __float__(self) -> float:
        self._looked()
        return float(str(self))


def _asking(name: str) -> Callable[..., Any]:
    plain = getattr(str, name)

    def method(self: Placeholder, *args: Any, **kwargs: Any) -> Any:
        self._looked()
        return plain(self, *args, **kwargs)

    return method


def _making(name: str) -> Callable[..., Any]:
    plain = getattr(str, name)

    def method(self: Placeholder, *args: Any, **kwargs: Any) -> Any:
        return Placeholder(plain(self, *args, **kwargs), self._looked)

    return method


for _name in _ASKING:
    setattr(Placeholder, _name, _asking(_name))
for _name in _MAKING:
    setattr(Placeholder, _name, _making(_name))
