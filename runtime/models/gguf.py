"""GGUF files: their fields and their tensors in float32, under the names that they have there.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, read through the `gguf` package.
What they mean to transformers is said in `gguf_config`, `gguf_tensors` and `gguf_tokenizer`. This
module knows no architecture, and nothing of where models are kept.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boughs.lang.errors import InvalidRequest

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
        self._readers = [_reader(part) for part in self.parts]
        self._fields = self._readers[0].fields
        self._tensors = {t.name: t for reader in self._readers for t in reader.tensors}
        self.architecture = str(self.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata field, as Python data, or `default` where there is none."""
        field = self._fields.get(key)
        return default if field is None else field.contents()

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
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def load(self, name: str, index: int | None = None) -> NDArray[np.float32]:
        """A tensor in float32, or the part of it at `index` of its outermost dimension."""
        import gguf

        shape = self.shape(name)
        tensor = self._tensors[name]
        data = tensor.data if index is None else tensor.data[index]
        flat = gguf.quants.dequantize(data, tensor.tensor_type)
        return np.asarray(flat, dtype=np.float32).reshape(shape if index is None else shape[1:])


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


def _reader(path: Path) -> Any:
    import gguf

    try:
        return gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise InvalidRequest(
            f"{path}: not a complete GGUF file ({error or type(error).__name__})", "model_path"
        ) from error
