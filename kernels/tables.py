"""Tables of what was measured on this machine, kept on disk so that every process reads the same.

A table is a frozen dataclass of floats. Its file is named by what it depends on (the CPU, the cores
that are seen, the source of the kernels) and says so inside, too; one that is broken, of another
machine or out of bounds is measured anew. This module knows nothing of what is measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from . import host
from .compiled import sources

log = logging.getLogger(__name__)

PATIENCE = 30.0
"""Seconds to wait for another process that measures."""


class Table(Protocol):
    """A frozen dataclass whose fields are floats.

    Attributes:
        bounds: The least and the greatest value of each field that can be true.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    bounds: ClassVar[Mapping[str, tuple[float, float]]]


T = TypeVar("T", bound=Table)


def keep(name: str, kind: type[T], measure: Callable[[], T], folder: Path | None) -> tuple[T, str]:
    """The table of a name, from disk or measured and put there, and where it is from, in words.

    Who measures first has measured for all: others wait for it, and read what it wrote.

    Args:
        name: What the table is of, fit for the name of a file.
        kind: Its class.
        measure: Takes the measurements.
        folder: Where tables are kept; None keeps none.
    """
    if folder is None:
        return measure(), "measured for this process alone"
    path, key = _place(name, folder)
    found = _read(path, kind, key)
    if found is not None:
        return found, str(path)
    made = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder / "lock"):
            found = _read(path, kind, key)
            if found is not None:
                return found, str(path)
            log.info("measuring %s on this machine, once; it is kept in %s", name, path)
            made = measure()
            _write(path, made, key)
            return made, f"{path}, measured by this start"
    except OSError as error:
        log.warning("%s is measured for this process alone: %s", name, error)
        return made or measure(), f"measured for this process alone: {error}"


def clamp(kind: type[T], values: Mapping[str, float]) -> T:
    """A table of values that were measured; what is out of bounds is put at the nearer one.

    Values that are missing or no numbers are the class's own.
    """
    made = {}
    for name, value in values.items():
        low, high = kind.bounds[name]
        if value == value:  # noqa: PLR0124 -- NaN is not
            made[name] = min(max(value, low), high)
    return kind(**made)


def _place(name: str, folder: Path) -> tuple[Path, dict[str, str | int]]:
    """Where the table of a name is kept, and all that it depends on."""
    key: dict[str, str | int] = {**host.describe(), "sources": sources(), "name": name}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return folder / f"{name}-{digest[:16]}.json", key


def _read(path: Path, kind: type[T], key: Mapping[str, str | int]) -> T | None:
    """The table of a file, if it is there, whole and of this key."""
    try:
        content = json.loads(path.read_bytes())
        if content["key"] != key:
            return None
        values = content["table"]
        if set(values) != {field.name for field in fields(kind)}:
            return None
        inside = (
            isinstance(value, int | float) and kind.bounds[name][0] <= value <= kind.bounds[name][1]
            for name, value in values.items()
        )
        return (
            kind(**{name: float(value) for name, value in values.items()}) if all(inside) else None
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(path: Path, table: Table, key: Mapping[str, str | int]) -> None:
    """Put a whole table in the place of what may be there."""
    content = json.dumps({"key": key, "table": asdict(table)}, indent=1)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock that one process of the machine has at a time.

    Raises:
        OSError: It cannot be had, or not within PATIENCE.
    """
    end = time.monotonic() + PATIENCE
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise TimeoutError(f"another process holds {path}") from None
                time.sleep(0.05)
        yield
