"""Images in a program: what a user shows to a model that has eyes.

This module knows no backend; which ones can see is theirs to say.
"""

from __future__ import annotations

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any, NoReturn

from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.expression import Expression
from boughs.lang.ir import Image

_KINDS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
)
_COLOURS = {1: 0, 3: 2, 4: 6}
"""Channels to PNG's colour type: grey, colour, colour and alpha."""


def image(expr: Any) -> Expression:
    """An image, in a user's turn.

    Args:
        expr: A path, the bytes of a PNG, JPEG, GIF or WebP file, a PIL image, or a tensor of bytes
            of shape [channels, height, width].

    Raises:
        InvalidRequest: It is none of these. That the model has no eyes is `Unsupported`, at the
            next read.
    """
    if isinstance(expr, bytes | bytearray):
        return _made(bytes(expr), "these bytes")
    if isinstance(expr, str | os.PathLike):
        path = Path(expr)
        try:
            return _made(path.read_bytes(), str(path))
        except OSError as error:
            raise InvalidRequest(f"image: {path}: {error.strerror or error}", "expr") from None
    package = type(expr).__module__.partition(".")[0]
    if package == "PIL":
        return Image("image/png", _saved(expr))
    if package in ("torch", "numpy"):
        return Image("image/png", _drawn(expr))
    raise InvalidRequest(
        "image: expected a path, the bytes of a file, a PIL image or a tensor, got "
        f"{type(expr).__name__} {expr!r:.60}",
        "expr",
    )


def video(path: str | os.PathLike[str], num_frames: int) -> NoReturn:
    """Refuse a film: no model and no API here takes one.

    Raises:
        Unsupported: Always.
    """
    raise Unsupported(
        f"video: nothing here takes a film; read {num_frames} frames of {os.fspath(path)!r:.80} "
        "yourself and add each with image(…)",
        "video",
    )


def _made(raw: bytes, what: str) -> Image:
    """The node of a file, known by how it begins."""
    for begin, kind in _KINDS:
        if raw.startswith(begin):
            return Image(kind, raw)
    if raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        return Image("image/webp", raw)
    raise InvalidRequest(f"image: {what:.80} is no PNG, JPEG, GIF or WebP file", "expr")


def _saved(picture: Any) -> bytes:
    """A PIL image as a file."""
    file = io.BytesIO()
    picture.save(file, format="PNG")
    return file.getvalue()


def _drawn(tensor: Any) -> bytes:
    """A tensor as a PNG file (ISO/IEC 15948), its rows unfiltered."""
    shape, kind = tuple(tensor.shape), str(tensor.dtype).rpartition(".")[2]
    if len(shape) != 3 or shape[0] not in _COLOURS or 0 in shape or kind != "uint8":
        raise InvalidRequest(
            "image: a tensor has the shape [1, 3 or 4, height, width] and bytes (uint8), got "
            f"{list(shape)} and {kind}",
            "expr",
        )
    channels = tensor.tolist()
    rows = bytearray()
    for row in zip(*channels, strict=True):
        rows.append(0)
        for pixel in zip(*row, strict=True):
            rows += bytes(pixel)
    head = struct.pack(">IIBBBBB", shape[2], shape[1], 8, _COLOURS[shape[0]], 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(bytes(rows))), (b"IEND", b""))
    return _KINDS[0][0] + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in parts
    )
