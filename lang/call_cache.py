"""Answers of backends on disk: what was asked before needs not be asked again.

One file an answer, named by the digest of all that the answer depends on. Files are written whole
or not at all, so any number of processes may share a folder; a file that is damaged counts as not
there. This module knows neither requests nor answers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import threading
import time
from pathlib import Path

from boughs.lang.errors import InvalidRequest
from boughs.lang.home import default_home

CHECK_BYTES = 16
"""Of each file: the digest of the rest."""

STALE_SECONDS = 3600.0
"""After so long a file that was never finished is nobody's."""

_NAME = re.compile(r"[0-9a-f]{40}")


class CallCache:
    """Answers that are kept in a folder; `run(cache=…)` and `boughs.cached(…)` take one.

    It holds at most `max_bytes`, and a sixteenth of that more for each process that writes; what
    was used longest ago goes first. A folder that cannot be written to keeps nothing.

        import tempfile
        import boughs

        with tempfile.TemporaryDirectory() as folder:
            cache = boughs.CallCache(folder, max_bytes=100_000_000)
            print(cache.folder, cache.size(), cache.clear())

    Args:
        folder: Where; by default `calls` in `$BOUGHS_HOME`, which is `boughs` in the user's cache
            folder.
        max_bytes: How much it may hold.

    Attributes:
        folder: Where it is.
        max_bytes: As given.
        hits: How often this object had an answer.
        misses: How often it had none.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None = None, max_bytes: int = 1 << 30
    ) -> None:
        if not isinstance(max_bytes, int) or isinstance(max_bytes, bool) or max_bytes < 1:
            raise InvalidRequest(
                f"max_bytes: expected a number of at least 1, got {max_bytes!r:.40}", "max_bytes"
            )
        if folder is not None and not isinstance(folder, str | os.PathLike):
            raise InvalidRequest(f"folder: expected a path, got {folder!r:.60}", "folder")
        self.folder = default_home() / "calls" if folder is None else Path(folder).absolute()
        self.max_bytes = max_bytes
        self.hits = self.misses = 0
        self._lock = threading.Lock()
        self._unmeasured = max_bytes  # bytes written since the folder was measured

    def __repr__(self) -> str:
        return f"CallCache({str(self.folder)!r}, {self.hits} hits, {self.misses} misses)"

    def find(self, key: str) -> bytes | None:
        """What is kept under a key, if anything is."""
        path = self._path(key)
        raw = None
        with contextlib.suppress(OSError):
            raw = path.read_bytes()
        kept = None if raw is None else raw[CHECK_BYTES:]
        if raw is not None and kept is not None and _check(kept) != raw[:CHECK_BYTES]:
            kept = None
            with contextlib.suppress(OSError):
                path.unlink()
        with self._lock:
            self.hits += kept is not None
            self.misses += kept is None
        if kept is not None:
            with contextlib.suppress(OSError):
                os.utime(path)
        return kept

    def keep(self, key: str, raw: bytes) -> None:
        """Keep something under a key, in place of what was there."""
        size = len(raw) + CHECK_BYTES
        if size > self.max_bytes:
            return
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(_check(raw) + raw)
                Path(part).replace(path)
            except BaseException:  # of a full disk, which would else be filled further
                Path(part).unlink(missing_ok=True)
                raise
        with self._lock:
            self._unmeasured += size
            due = self._unmeasured > self.max_bytes // 16
            self._unmeasured *= not due
        if due:
            self._prune()

    def size(self) -> int:
        """How many bytes it holds now."""
        return sum(size for _, size, _ in self._files())

    def clear(self) -> int:
        """Forget everything; how many answers that were. Other files in the folder stay."""
        paths = [path for path, _, _ in self._files()]
        for path in paths:
            with contextlib.suppress(OSError):
                path.unlink()
        return len(paths)

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def _files(self) -> list[tuple[Path, int, float]]:
        """Each answer's path, its size in bytes, and when it was last used."""
        found = []
        now = time.time()
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                if _NAME.fullmatch(path.name):
                    found.append((path, stat.st_size, stat.st_mtime))
                elif path.suffix == ".part" and stat.st_mtime < now - STALE_SECONDS:
                    path.unlink()
        return found

    def _prune(self) -> None:
        """Forget what was used longest ago, until a sixteenth is free."""
        files = self._files()
        total = sum(size for _, size, _ in files)
        if total <= self.max_bytes:
            return
        for path, size, _ in sorted(files, key=lambda file: file[2]):
            if total <= self.max_bytes - self.max_bytes // 16:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def _check(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=CHECK_BYTES).digest()
