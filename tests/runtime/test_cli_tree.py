"""`boughs tree`: what it draws, and what it says where it cannot."""

import importlib.util
import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from boughs.runtime.cli import main
from boughs.runtime.cli.tree import draw

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)


@pytest.fixture(scope="module")
def site():
    with fake.served() as site:
        yield site


def test_what_is_drawn(site, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["tree", site.url]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("1,000 tokens in 1,001 segments, 1,002 of 1,003 pages of 16:")
    # What looks like markup is text; a cut text says so.
    assert out[1] == (
        "├── 'Hi [b]you[/b]'…  40 tokens, 3 pages, 2 running, 1 lease, 7 hits, used 2 ago"
    )
    assert out[2].startswith("│   └── 'Hi [b]you[/b]'  1 token,")
    assert out[3] == "└── cache salt 5a17…"
    assert out[4].startswith("    └── 'secret\\n'…  40 tokens, 3 pages, 1 hit")
    assert len(out) == 5


def test_a_terminal_of_ascii(site, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["tree", site.url]) == 0
    sys.stdout.flush()
    assert b"'Hi [b]you[/b]'\\u2026  40 tokens" in raw.getvalue()


def test_what_is_left_out(site, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["tree", site.url, "--max-segments", "1", "--max-tokens", "4"]) == 0
    assert "2 more segments not shown" in capsys.readouterr().out


def test_an_empty_tree():
    names = ("tokens", "nodes", "cached", "evictable", "leased", "private")
    cache = dict.fromkeys(names, 0) | {"pages": 63, "free": 63}
    shown = {"tick": 0, "segments": [], "omitted": 0, "page_size": 16, "cache": cache}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(draw(shown))
    assert captured.get().startswith("0 tokens in 0 segments, 0 of 63 pages of 16:")


@pytest.mark.parametrize("key", ["k\n", "k\r", "\x00", "k\u2028"])
def test_a_key_that_no_header_can_carry_is_named_and_not_shown(site, capsys, key):
    assert main(["tree", site.url, "--api-key", key]) == 1
    error = capsys.readouterr().err
    assert error.startswith("boughs: error: api_key: expected a string without line breaks")
    assert key not in error.rstrip("\n")


def test_mistakes(capsys):
    assert main(["tree", "http://127.0.0.1:1"]) == 1
    assert "cannot reach http://127.0.0.1:1" in capsys.readouterr().err
    assert main(["tree", "127.0.0.1:30000"]) == 1
    assert "base_url: expected http://" in capsys.readouterr().err
    with fake.served(api_key="k") as site:
        assert main(["tree", site.url]) == 1
        assert "API key" in capsys.readouterr().err
        assert main(["tree", site.url, "--api-key", "k"]) == 0
