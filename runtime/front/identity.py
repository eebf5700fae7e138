"""What tells the answers of one engine from another's: its model, its numbers, its versions.

This module knows no requests and no core.
"""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

import msgspec

from boughs import __version__
from boughs.runtime.config import EngineConfig
from boughs.runtime.messages import Limits

WHOLE_BYTES = 64 << 20
"""Files up to this size are read wholly."""

SAMPLES, SAMPLE_BYTES = 64, 1 << 18
"""Of larger ones so many parts of this size are read, evenly spread from first to last."""

_SUFFIXES = {".json", ".jinja", ".txt", ".model", ".gguf", ".safetensors"}
_SETTINGS = ("device", "dtype", "kv_cache_dtype", "quantize", "attention_backend")
_PACKAGES = ("torch", "transformers", "tokenizers", "llguidance")


def identity(config: EngineConfig, limits: Limits) -> str:
    """A digest of all that an engine's answers depend on beside the request.

    These are the files of the model (weights, tokenizer, template), the settings and limits that
    change numbers or ends, and the versions of what computes. Weights above 64 MiB are told apart
    by their size, the time of their last change, and samples of their bytes.
    """
    digest = hashlib.blake2b(digest_size=20)
    about = {
        **{name: getattr(config, name) for name in _SETTINGS},
        "context_length": limits.context_length,
        "attention": limits.attention_backend,
        "numbers": (limits.device, limits.dtype, limits.weights),
        "boughs": __version__,
        **{name: _version(name) for name in _PACKAGES},
    }
    digest.update(msgspec.json.encode(about, order="sorted"))
    for path in sorted(Path(config.model_path).iterdir()):
        if path.suffix in _SUFFIXES and path.is_file():
            digest.update(fingerprint(path))
    return digest.hexdigest()


def fingerprint(path: Path) -> bytes:
    """A digest of a file's name and content; of a large one's size, time and samples."""
    stat = path.stat()
    digest = hashlib.blake2b(f"{path.name} {stat.st_size}\n".encode(), digest_size=20)
    with path.open("rb") as file:
        if stat.st_size <= WHOLE_BYTES:
            while part := file.read(1 << 20):
                digest.update(part)
            return digest.digest()
        digest.update(str(stat.st_mtime_ns).encode())
        for at in range(SAMPLES):
            file.seek((stat.st_size - SAMPLE_BYTES) * at // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.digest()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
