"""GGUF files: their fields and their tensors in float32, under the names that they have there.

What they mean to transformers is said in `gguf_config`, `gguf_tensors` and `gguf_tokenizer`. This
module knows no architecture, and nothing of where models are kept.
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boughs.lang.errors import InvalidRequest, Unsupported

from .gguf_header import Header, read_header

_PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
"""Formats whose rows are numbers that numpy knows."""

_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


class GgufFile:
    """One GGUF model, in one file or in numbered parts of which `path` is the first.

    Attributes:
        path: The file.
        parts: All its files; often just the one.
        architecture: As the file names it, such as `llama`.

    Raises:
        InvalidRequest: The file is no GGUF, is cut short, or a part is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.parts = _parts(path)
        headers = [_read(part) for part in self.parts]
        self._fields = headers[0][0].fields
        self._tensors = {
            name: (data, place)
            for header, data in headers
            for name, place in header.tensors.items()
        }
        self.architecture = str(self.get("general.architecture"))
        for name in self._tensors:
            self.raw(name)  # one that was cut short is found now, and not when it is read

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata field, as Python data, or `default` where there is none."""
        return _decoded(self._fields[key]) if key in self._fields else default

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of a field of this architecture, such as `block_count`."""
        return self.get(f"{self.architecture}.{key}", default)

    def need(self, key: str) -> Any:
        """Like `setting`, for a field without which the model cannot be read."""
        value = self.setting(key)
        if value is None:
            raise InvalidRequest(
                f"{self.path.name}: the field {self.architecture}.{key} is missing", "model_path"
            )
        return value

    @property
    def names(self) -> list[str]:
        """The names of its tensors."""
        return list(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, outermost dimension first."""
        if name not in self._tensors:
            raise InvalidRequest(f"{self.path.name}: the tensor {name} is missing", "model_path")
        return self._tensors[name][1].shape

    def format(self, name: str) -> str:
        """The number format of a tensor, such as `Q4_K`."""
        return str(self._kind(name).name)

    def load(self, name: str, index: int | None = None) -> NDArray[np.float32]:
        """A tensor in float32, or the part of it at `index` of its outermost dimension."""
        import gguf

        shape = self.shape(name)
        flat = gguf.quants.dequantize(self.raw(name, index), self._kind(name))
        return np.asarray(flat, dtype=np.float32).reshape(shape if index is None else shape[1:])

    def raw(self, name: str, index: int | None = None) -> NDArray[Any]:
        """A tensor, or a part of it, as the file holds it: rows of plain numbers, or of bytes."""
        import gguf

        shape, kind = self.shape(name), self._kind(name)
        data, place = self._tensors[name]
        numbers, size = gguf.GGML_QUANT_SIZES[kind]
        dtype = np.dtype(_PLAIN.get(kind.name, np.uint8))
        row = shape[-1] // numbers * size // dtype.itemsize
        count = math.prod(shape[:-1]) * row
        if place.start + count * dtype.itemsize > len(data) or shape[-1] % numbers:
            raise InvalidRequest(
                f"{self.path}: not a complete GGUF file (the tensor {name} does not fit)",
                "model_path",
            )
        found = np.frombuffer(data, dtype, count, place.start).reshape(*shape[:-1], row)
        return found if index is None else found[index]

    def _kind(self, name: str) -> Any:
        import gguf

        number = self._tensors[name][1].kind
        try:
            return gguf.GGMLQuantizationType(number)
        except ValueError as error:
            raise Unsupported(
                f"{self.path.name}: the tensor {name} has a format that we do not know ({number})",
                "model_path",
            ) from error


def _decoded(value: Any) -> Any:
    """A field's value, with strings as text."""
    if isinstance(value, bytes):
        return value.decode()
    return [_decoded(item) for item in value] if isinstance(value, list) else value


def _parts(path: Path) -> list[Path]:
    """All files of the model of which `path` is the only or the first one."""
    name = _PART.fullmatch(path.name)
    if name is None:
        return [path]
    if int(name[2]) != 1:
        raise InvalidRequest(f"{path.name} is a later part; name the first one", "model_path")
    parts = [
        path.with_name(f"{name[1]}-{i:05d}-of-{name[3]}.gguf") for i in range(1, int(name[3]) + 1)
    ]
    for part in parts:
        if not part.is_file():
            raise InvalidRequest(f"{path.name}: the part {part.name} is missing", "model_path")
    return parts


def _read(path: Path) -> tuple[Header, memoryview]:
    """The header of a file, and the file as bytes that are mapped and not read."""
    try:
        with path.open("rb") as file:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        header = read_header(data)
    except (ValueError, KeyError, struct.error, OverflowError, MemoryError) as error:
        raise InvalidRequest(
            f"{path}: not a complete GGUF file ({error or type(error).__name__})", "model_path"
        ) from error
    return header, data
