"""Verdicts on disk: what became of sources that were tried, also by engines before this one.

One file a source, named by the digest of all that the verdict depends on. A folder that cannot be
written to keeps nothing. This module knows no grammar.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
from pathlib import Path

import msgspec

from boughs.lang import constraints
from boughs.lang.constraints import JsonForm

from .json_form import PLAIN
from .worker import Answer

MOST_KEPT = 1024
"""Files in a folder; those used longest ago go first."""


def code() -> list[Path]:
    """The files of ours that decide what becomes of a source."""
    return [*sorted(Path(__file__).parent.rglob("*.py")), Path(constraints.__file__)]


@functools.cache
def _digest(files: tuple[Path, ...]) -> bytes:
    """A digest of files, that are read once."""
    digest = hashlib.blake2b()
    for path in files:
        digest.update(path.read_bytes())
    return digest.digest()


def fingerprint(*parts: str) -> str:
    """A digest of texts, and of our code."""
    digest = hashlib.blake2b(_digest(tuple(code())), digest_size=20)
    for part in parts:
        raw = part.encode("utf-8", "replace")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


class Verdicts:
    """The verdicts on sources for one tokenizer.

    Args:
        folder: Where they are kept; None keeps none.
        about: What tells tokenizers, backends and the limits of trials apart.
    """

    def __init__(self, folder: Path | None, about: str) -> None:
        self._folder = folder
        self._about = about

    def find(self, kind: str, source: str, form: JsonForm = PLAIN) -> Answer | None:
        """What is known of a source."""
        path = self._path(kind, source, form)
        if path is None:
            return None
        try:
            answer = msgspec.json.decode(path.read_bytes(), type=Answer)
            os.utime(path)
        except (OSError, msgspec.MsgspecError):
            return None
        return answer

    def keep(self, kind: str, source: str, answer: Answer, form: JsonForm = PLAIN) -> None:
        """Remember what became of a source, where that is final."""
        path = self._path(kind, source, form)
        if path is None or not answer.final:
            return
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(msgspec.json.encode(answer))
            Path(file.name).replace(path)
            self._prune(path.parent)

    def _path(self, kind: str, source: str, form: JsonForm) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / fingerprint(self._about, kind, source, str(form))

    def _prune(self, folder: Path) -> None:
        files = list(folder.iterdir())
        if len(files) > MOST_KEPT:
            files.sort(key=lambda path: path.stat().st_mtime)
            for path in files[: len(files) - MOST_KEPT * 3 // 4]:
                path.unlink(missing_ok=True)
