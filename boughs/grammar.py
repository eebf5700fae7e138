"""Grammars from parts, as small functions: `gen("x", grammar=seq("<", star(alt("a", "b")), ">"))`.

This module only hands on what `boughs.lang.grammar` has.
"""

from boughs.lang.grammar import (
    Grammar,
    alt,
    gen,
    json,
    lit,
    opt,
    plus,
    recursive,
    regex,
    repeat,
    seq,
    star,
)

__all__ = [
    "Grammar",
    "alt",
    "gen",
    "json",
    "lit",
    "opt",
    "plus",
    "recursive",
    "regex",
    "repeat",
    "seq",
    "star",
]
