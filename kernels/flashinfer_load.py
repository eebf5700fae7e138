"""The `flashinfer` package, where it can run.

Its import takes seconds, writes under the user's home, and has crashed on machines without a GPU,
so it is tried last, after all else that could be missing. This module calls nothing of it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
from typing import Any

import torch

LEAST_CAPABILITY = (8, 0)
RELEASES = (0, 7)
INSTALL = "pip install 'boughs[cuda]'"


class NoFlashInfer(RuntimeError):
    """FlashInfer cannot run here; says why, and what to do about it."""


def load_flashinfer() -> Any:
    """The package.

    Raises:
        NoFlashInfer: No GPU, one that is too old, no package, or not of the release that we know.
    """
    if not torch.cuda.is_available():
        why = "" if torch.version.cuda else ", and this torch is built without CUDA"
        raise NoFlashInfer(f"FlashInfer needs an NVIDIA GPU and torch sees none{why}")
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        raise NoFlashInfer(
            f"FlashInfer needs a GPU of compute capability 8.0 (Ampere) or later, "
            f"{torch.cuda.get_device_name()} has {capability[0]}.{capability[1]}"
        )
    if importlib.util.find_spec("flashinfer") is None:
        raise NoFlashInfer(f"the package flashinfer-python is not installed: {INSTALL}")
    release = importlib.metadata.version("flashinfer-python")
    if tuple(int(part) for part in release.split(".")[:2]) != RELEASES:
        raise NoFlashInfer(
            f"flashinfer-python {release} is installed, and 0.7 is what Boughs calls: {INSTALL}"
        )
    # Of two implementations of its norms the one that is compiled as all else is; read at import.
    os.environ.setdefault("FLASHINFER_USE_CUDA_NORM", "1")
    try:
        return importlib.import_module("flashinfer")
    except Exception as error:
        raise NoFlashInfer(f"flashinfer-python {release} cannot be imported: {error!r}") from error
