"""How numbers, dates and strings are written in plain text: patterns, and where a number ends.

A number ends where the model writes on: if only digits were allowed, a model that wants to go on
with " apples" would have to write digits up to the limit. So anything may follow that cannot belong
to a number, and is a stop. A comma cannot follow (10,000), nor, after a float, an e. This module
knows no gen and no schema.
"""

from __future__ import annotations

REGEX_INT = r"[-+]?[0-9]+"
REGEX_FLOAT = r"[-+]?([0-9]+(\.[0-9]+)?|\.[0-9]+)"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r'"([^"\\\x00-\x1f\x7f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"'
"""The texts of a `dtype`."""

DTYPES = {int: REGEX_INT, float: REGEX_FLOAT, bool: REGEX_BOOL, str: REGEX_STR}

GOES_ON = {
    int: (r"(([^0-9.,]|\.[^0-9])(?s:.)*)?", r"(?<=[0-9])[^0-9]"),
    float: (r"(([^0-9.,eE]|\.[^0-9])(?s:.)*)?", r"(?<=[0-9])(\.[^0-9]|[^0-9.])"),
}
"""What may follow a number, and the stop that it is."""

MAX_DIGITS = 18
"""Digits of a typed number before its point, and after it: a model that cannot stop is stopped."""

NUMBERS = {
    int: rf"-?(0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})",
    float: rf"-?(0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}})(\.[0-9]{{1,{MAX_DIGITS - 1}}})?",
}
"""The texts of a typed number."""

_LEAP = r"([1-9][0-9](0[48]|[2468][048]|[13579][26])|(1[26]|[2468][048]|[3579][26])00)"
DATE = (
    r"([1-9][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP}-02-29)"
)
"""The days from the year 1000 on, each as long as its month has it."""

_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
_SPAN = r"([0-9]{1,5}H([0-9]{1,2}M)?([0-9]{1,2}S)?|[0-9]{1,5}M([0-9]{1,2}S)?|[0-9]{1,5}S)"
_OFFSET = r"(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])?"

FORMATS = {
    "date": DATE,
    "time": rf"{_CLOCK}{_OFFSET}",
    "date-time": rf"{DATE}T{_CLOCK}{_OFFSET}",
    "duration": rf"P([0-9]{{1,5}}D(T{_SPAN})?|T{_SPAN})",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
}
"""JSON schema's formats of strings that Python has a type for (ISO 8601, RFC 9562)."""

FORMAT_EXAMPLES = {
    "date": "2000-01-01",
    "time": "00:00:00",
    "date-time": "2000-01-01T00:00:00",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "duration": "P1D",
}
