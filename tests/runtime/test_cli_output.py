"""Output that nobody takes: a full disk, a closed pipe. No command ends with a traceback."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)


@pytest.fixture(scope="module")
def site():
    with fake.served() as site:
        yield site


def script(folder, text):
    path = folder / "script.py"
    path.write_text(text)
    return str(path)


COMMANDS = {
    "tree": lambda site, _: ["tree", site.url],
    "help": lambda *_: ["--help"],
    "help of one": lambda *_: ["serve", "--help"],
    "version": lambda *_: ["--version"],
    "aliases": lambda *_: ["pull"],
    "chat": lambda site, _: ["chat", "--endpoint", site.url],
    "script": lambda site, folder: [
        "run", script(folder, "print('x')\n"), "--endpoint", site.url
    ],
    "long script": lambda site, folder: [
        "run", script(folder, "for _ in range(99999): print('x' * 99)\n"), "--endpoint", site.url
    ],
    "broken script": lambda site, folder: [
        "run", script(folder, "print('x', flush=True)\n"), "--endpoint", site.url
    ],
}  # fmt: skip


OURS = ("tree", "aliases", "script", "long script", "broken script")
CASES = [*((name, False) for name in COMMANDS), *((name, True) for name in OURS)]
"""Unbuffered, argparse itself drops what cannot be written."""


def run(arguments, stdout, *, unbuffered=False):
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    if unbuffered:
        env["PYTHONUNBUFFERED"] = "1"
    return subprocess.run(
        [sys.executable, "-P", "-m", "boughs", *arguments],
        input=b"hello\n",
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        env=env,
        check=False,
    )


@pytest.mark.parametrize(("command", "unbuffered"), CASES)
def test_a_full_disk_is_told(site, tmp_path, command, unbuffered):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = run(COMMANDS[command](site, tmp_path), full, unbuffered=unbuffered)
    said = done.stderr.decode()
    assert done.returncode == 1, said
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert "boughs: error:" in said
    assert "No space left on device" in said


@pytest.mark.parametrize(("command", "unbuffered"), CASES)
def test_a_reader_that_has_gone_is_no_error(site, tmp_path, command, unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(COMMANDS[command](site, tmp_path), writer, unbuffered=unbuffered)
    finally:
        os.close(writer)
    said = done.stderr.decode()
    assert "Traceback" not in said
    assert "Exception ignored" not in said
    assert "boughs: error: " not in said
    assert done.returncode == 141


def test_a_broken_pipe_of_a_scripts_own_is_its_error(site, tmp_path):
    text = "def f():\n    raise BrokenPipeError('of a socket')\n\nf()\n"
    done = run(["run", script(tmp_path, text), "--endpoint", site.url], subprocess.PIPE)
    assert done.returncode == 1
    assert "BrokenPipeError: of a socket" in done.stderr.decode()
