"""What is kept on disk: a second process compiles nothing, unless any source has changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import boughs.kernels

SCRIPT = """
import torch
KINDS = ("cache_hits", "cache_misses")
from boughs.kernels.backend import AttentionConfig
from boughs.kernels.choice import make_backend
from boughs.kernels.attend import attend
from boughs.kernels.linear import linear_call, multiply_rows
from boughs.kernels.merge import merge_parts
from boughs.kernels.paged import run_pieces
from boughs.kernels.row_calls import norm
make_backend("cpu", AttentionConfig(2, 1, 64, 16))
stats = [f.stats for f in (run_pieces(torch.float32), merge_parts(), multiply_rows("int4"))]
calls = [f.cache_hits for f in (norm(), attend(torch.float32), linear_call("int4", whole=False))]
print(*(sum(sum(getattr(s, kind).values()) for s in stats) for kind in KINDS), sum(calls))
"""


def start(root, **environment):
    """Of a process that sees the package in `root`: cache hits and misses, and hits of calls."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return tuple(map(int, result.stdout.split()))


@pytest.fixture
def package(tmp_path):
    """A copy of the kernels, as a package `boughs` of their own."""
    source = Path(boughs.kernels.__file__).parent
    folder = tmp_path / "boughs" / "kernels"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "boughs" / "__init__.py").touch()
    return tmp_path


def test_what_is_compiled_is_said(tmp_path):
    script = (
        "import logging; logging.basicConfig(level=logging.INFO)\n"
        "from boughs.kernels.bitmask import forbid\nforbid()"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
        ).stderr
        for _ in range(2)
    ]
    assert "compiling forbid for this CPU" in said[0]
    assert said[1] == ""


@pytest.mark.slow
def test_a_second_start_compiles_nothing_until_a_source_changes(package):
    assert start(package) == (0, 3, 0)
    assert start(package) == (3, 0, 3)
    with (package / "boughs" / "kernels" / "simd.py").open("a") as file:
        file.write("# changed\n")
    assert start(package) == (0, 3, 0)


@pytest.mark.slow
def test_a_package_that_cannot_be_written_is_kept_elsewhere(package):
    # A file where the folder would be: what even a privileged user cannot write to.
    (package / "boughs" / "kernels" / "__pycache__").touch()
    home = package / "home"
    home.mkdir()
    where = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
    assert start(package, **where) == (0, 3, 0)
    assert start(package, **where) == (3, 0, 3)


@pytest.mark.slow
def test_works_where_nothing_can_be_written(package):
    (package / "boughs" / "kernels" / "__pycache__").touch()
    nowhere = package / "file"
    nowhere.touch()
    where = {"HOME": str(nowhere), "XDG_CACHE_HOME": str(nowhere)}
    assert start(package, **where) == (0, 3, 0)
    assert start(package, **where) == (0, 3, 0)
