"""Folders that appear whole or not at all, and are made by one process at a time.

A folder is written beside its place, flushed to disk and renamed. A process that is killed leaves
a partial folder, which the next one throws away. This module knows nothing of models.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from boughs.lang.errors import BoughsError, RequestTimeout

from .progress import Report

LONGEST_WAIT = 3600.0
"""Seconds to wait for another process that is making the same folder."""


def make_once(
    target: Path,
    done: Callable[[], bool],
    fill: Callable[[Path], None],
    *,
    needs: int,
    progress: Report,
    longest_wait: float = LONGEST_WAIT,
) -> None:
    """Make the folder `target` unless it is there.

    Args:
        target: The folder.
        done: Whether it is there and whole.
        fill: Writes the content into the folder that it is given.
        needs: Bytes that the content takes.
        progress: Is told while another process is waited for.
        longest_wait: In seconds.

    Raises:
        RequestTimeout: Another process held the lock for `longest_wait`.
        BoughsError: The disk is too full, or the folder cannot be written.
    """
    if done():
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_name(f".{target.name}.lock"), progress, longest_wait):
            if done():
                return
            _make(target, fill, needs)
    except OSError as error:
        if isinstance(error, BoughsError):
            raise
        raise BoughsError(f"{target} cannot be written: {error}") from error


def _make(target: Path, fill: Callable[[Path], None], needs: int) -> None:
    mark = f".{target.name}."
    for stale in target.parent.glob(f"{mark}*.partial"):
        # Of a process that was killed: the lock is ours. What it started may still write there.
        shutil.rmtree(stale, ignore_errors=True)
    free = shutil.disk_usage(target.parent).free
    if free < needs:
        raise BoughsError(
            f"{target}: {needs >> 20} MiB are needed and {free >> 20} MiB are free on the disk"
        )
    partial = Path(tempfile.mkdtemp(prefix=mark, suffix=".partial", dir=target.parent))
    partial.chmod(0o755)
    try:
        fill(partial)
        for path in partial.rglob("*"):
            if path.is_file() and not path.is_symlink():
                _flush(path)
        _flush(partial)
        if target.exists():
            shutil.rmtree(target)  # damaged: it is not `done`
        partial.rename(target)
        _flush(target.parent)
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def _flush(path: Path) -> None:
    """Wait until a file or a folder's entries are on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def _lock(path: Path, progress: Report, longest_wait: float) -> Iterator[None]:
    """Hold the file `path` locked; the kernel frees it when the process ends, however it ends."""
    deadline = time.monotonic() + longest_wait
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RequestTimeout(f"another process has held {path} for too long") from None
                progress("waiting for another process", None)
                time.sleep(0.1)
        yield
