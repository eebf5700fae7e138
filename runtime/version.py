"""The version of the installed distribution. Knows nothing else."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """`boughs`'s version, or `unknown` where it runs from a folder that was never installed."""
    try:
        return metadata.version("boughs")
    except metadata.PackageNotFoundError:
        return "unknown"
