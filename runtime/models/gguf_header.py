"""The header of a GGUF file: its fields, and where its tensors lie.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package's reader takes
seconds for a large vocabulary; this one walks over what nobody asks for. This module knows what no
field means.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from boughs.lang.errors import InvalidRequest

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32
"""Of tensors, where the file does not say another."""

_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor lies.

    Attributes:
        shape: Outermost dimension first.
        kind: Number of its format, in ggml.
        start: Its first byte in the file.
    """

    shape: tuple[int, ...]
    kind: int
    start: int


@dataclass
class Header:
    """What a file says before its tensors' bytes.

    Attributes:
        fields: Numbers, bytes of strings, or lists of those.
        tensors: By name.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, TensorPlace] = field(default_factory=dict)


def read_header(data: memoryview) -> Header:
    """The header of the file that `data` is.

    Raises:
        InvalidRequest: It is no GGUF, or one of another version or byte order.
        ValueError, struct.error: It is cut short, or says what cannot be.
    """
    cursor = _Cursor(data)
    if bytes(data[:4]) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    cursor.place = 4
    version = cursor.number("I")
    if version not in VERSIONS:
        raise InvalidRequest(f"a GGUF file of version {version}; we read 2 and 3", "model_path")
    tensors, fields = cursor.number("Q"), cursor.number("Q")
    header = Header()
    for _ in range(fields):
        name = cursor.string().decode()
        header.fields[name] = cursor.value(cursor.number("I"))
    places = [(cursor.string().decode(), *cursor.tensor()) for _ in range(tensors)]
    alignment = int(header.fields.get("general.alignment", ALIGNMENT))
    begin = -(-cursor.place // alignment) * alignment
    for name, shape, kind, offset in places:
        header.tensors[name] = TensorPlace(shape, kind, begin + offset)
    return header


class _Cursor:
    """A place in a file. All numbers are little endian."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.place = 0

    def number(self, letter: str) -> Any:
        (value,) = struct.unpack_from(f"<{letter}", self._data, self.place)
        self.place += struct.calcsize(letter)
        return value

    def string(self) -> bytes:
        return self._take(self.number("Q"))

    def value(self, kind: int) -> Any:
        """A field of a kind: a number, the bytes of a string, or a list."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_NUMBERS[kind])
        kind, count = self.number("I"), self.number("Q")
        if kind in _NUMBERS:
            letter = _NUMBERS[kind]
            size = count * struct.calcsize(letter)
            return list(struct.unpack(f"<{count}{letter}", self._take(size)))
        if count > len(self._data):
            raise ValueError("an array is longer than the file")
        return [self.value(kind) for _ in range(count)]

    def tensor(self) -> tuple[tuple[int, ...], int, int]:
        """Shape, kind and offset."""
        shape = tuple(self.number("Q") for _ in range(self.number("I")))
        return shape[::-1], self.number("I"), self.number("Q")

    def _take(self, size: int) -> bytes:
        end = self.place + size
        if end > len(self._data):
            raise ValueError("it ends early")
        found = bytes(self._data[self.place : end])
        self.place = end
        return found
