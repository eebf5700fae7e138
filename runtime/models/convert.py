"""A GGUF file as the folder that transformers reads.

`write_description` writes the small files, `write_weights` the float32 safetensors, one tensor in
memory at a time. This module knows nothing of where folders are kept.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from .gguf import GgufFile
from .gguf_config import config, generation_config
from .gguf_tensors import tensors
from .progress import Report

WEIGHTS = "model.safetensors"


def write_description(file: GgufFile, folder: Path) -> None:
    """Write config, generation config, tokenizer and chat template of `file` into `folder`."""
    from .gguf_tokenizer import build_tokenizer

    _write_configs(file, folder)
    tokenizer, settings = build_tokenizer(file)
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", settings)


def weights_size(file: GgufFile) -> int:
    """The bytes that the float32 weights take."""
    return sum(4 * math.prod(entry.shape) for entry in tensors(file))


def write_weights(file: GgufFile, folder: Path, progress: Report) -> None:
    """Write `file`'s tensors in float32 to `model.safetensors` in `folder`, beside its configs.

    The format is https://github.com/huggingface/safetensors#format: the length of a JSON header
    (8 bytes, little endian), the header, and the tensors' bytes one behind another.
    """
    _write_configs(file, folder)
    entries = list(tensors(file))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in entries:
        start, end = end, end + 4 * math.prod(entry.shape)
        header[entry.name] = {"dtype": "F32", "shape": entry.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / WEIGHTS).open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for entry in entries:
            out.write(np.ascontiguousarray(entry.load()).data)
            progress("converting to float32", header[entry.name]["data_offsets"][1] / end)


def _write_configs(file: GgufFile, folder: Path) -> None:
    _write_json(folder / "config.json", config(file))
    _write_json(folder / "generation_config.json", generation_config(file))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
