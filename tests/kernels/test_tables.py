"""What was measured, on disk: read by everybody, and measured anew where it is not what it says."""

import json
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from typing import ClassVar

import pytest

from boughs.kernels import tables
from boughs.kernels.tables import clamp, keep


@dataclass(frozen=True)
class Weights:
    """A table."""

    light: float = 1.0
    heavy: float = 10.0
    bounds: ClassVar = {"light": (0.5, 5.0), "heavy": (5.0, 50.0)}


def counting(*values):
    """What measures these, one after another, and the list of what it has measured."""
    measured = []

    def measure():
        measured.append(Weights(*values[len(measured)]))
        return measured[-1]

    return measure, measured


def stored(folder):
    (path,) = folder.glob("*.json")
    return path


def test_is_measured_once(tmp_path):
    measure, measured = counting((2.0, 20.0), (3.0, 30.0))
    folder = tmp_path / "not" / "there"
    first, where = keep("weights", Weights, measure, folder)
    again, from_ = keep("weights", Weights, measure, folder)
    assert first == again == Weights(2.0, 20.0)
    assert len(measured) == 1
    assert str(stored(folder)) == from_
    assert where.startswith(from_)
    assert "measured" in where


def test_tables_of_two_names_lie_apart(tmp_path):
    measure, measured = counting((2.0, 20.0), (3.0, 30.0))
    assert keep("a", Weights, measure, tmp_path) != keep("b", Weights, measure, tmp_path)
    assert len(measured) == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: "",
        lambda _: "{",
        lambda _: "[1]",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("2.0", "NaN"),
        lambda text: text.replace("2.0", "200.0"),
        lambda text: text.replace("2.0", '"2.0"'),
        lambda text: text.replace("light", "dark"),
        lambda text: text.replace('"sources": "', '"sources": "0'),
        lambda text: text.replace('"cores": ', '"cores": 1'),
        lambda text: text.replace('"model": "', '"model": "another '),
    ],
)
def test_what_is_broken_or_foreign_is_measured_anew(tmp_path, spoil):
    measure, measured = counting((2.0, 20.0), (3.0, 30.0))
    keep("weights", Weights, measure, tmp_path)
    path = stored(tmp_path)
    path.write_text(spoil(path.read_text()))
    assert keep("weights", Weights, measure, tmp_path)[0] == Weights(3.0, 30.0)
    assert keep("weights", Weights, measure, tmp_path)[0] == Weights(3.0, 30.0)
    assert len(measured) == 2


@pytest.mark.parametrize("what", ["sources", "describe"])
def test_another_source_or_machine_has_a_table_of_its_own(tmp_path, monkeypatch, what):
    measure, measured = counting((2.0, 20.0), (3.0, 30.0))
    keep("weights", Weights, measure, tmp_path)
    with monkeypatch.context() as patch:
        if what == "sources":
            patch.setattr(tables, "sources", lambda: "others")
        else:
            patch.setattr(tables.host, "describe", lambda: {"model": "another", "cores": 1})
        assert keep("weights", Weights, measure, tmp_path)[0] == Weights(3.0, 30.0)
    assert keep("weights", Weights, measure, tmp_path)[0] == Weights(2.0, 20.0)
    assert len(measured) == 2


def test_a_folder_that_cannot_be_written_is_said(tmp_path, caplog):
    (tmp_path / "file").touch()
    measure, measured = counting((2.0, 20.0), (3.0, 30.0))
    for expected in (Weights(2.0, 20.0), Weights(3.0, 30.0)):
        found, where = keep("weights", Weights, measure, tmp_path / "file")
        assert found == expected
        assert where.startswith("measured for this process alone: ")
    assert "weights is measured for this process alone" in caplog.text
    assert len(measured) == 2


def test_what_is_kept_nowhere_is_measured(tmp_path):
    measure, _ = counting((2.0, 20.0))
    assert keep("weights", Weights, measure, None)[0] == Weights(2.0, 20.0)


def test_who_comes_while_another_measures_reads_what_that_one_wrote(tmp_path):
    begun, go_on, found = threading.Event(), threading.Event(), []

    def slowly():
        begun.set()
        assert go_on.wait(60)
        return Weights(2.0, 20.0)

    def never():
        raise AssertionError("measured twice")

    first = threading.Thread(target=lambda: keep("weights", Weights, slowly, tmp_path))
    first.start()
    assert begun.wait(60)
    second = threading.Thread(
        target=lambda: found.append(keep("weights", Weights, never, tmp_path))
    )
    second.start()
    go_on.set()
    first.join(60)
    second.join(60)
    assert found[0][0] == Weights(2.0, 20.0)


def test_who_waits_too_long_measures_for_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "PATIENCE", 0.0)
    measure, _ = counting((2.0, 20.0))
    with tables._lock(tmp_path / "lock"):
        found, where = keep("weights", Weights, measure, tmp_path)
    assert found == Weights(2.0, 20.0)
    assert "another process holds" in where
    assert not list(tmp_path.glob("*.json"))


def test_processes_read_the_same(tmp_path):
    script = (
        "import random, sys\nfrom pathlib import Path\n"
        "from boughs.kernels import costs, tables\n"
        "measure = lambda: costs.Costs(read=random.uniform(10, 90))\n"
        "print(tables.keep('some', costs.Costs, measure, Path(sys.argv[1]))[0])"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    said = {process.communicate(timeout=120)[0] for process in started}
    assert len(said) == 1
    assert b"Costs(read=" in said.pop()
    assert len(list(tmp_path.iterdir())) == 2  # the table, and the lock


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    measure, _ = counting((2.0, 20.0))
    monkeypatch.setattr(tables.os, "fdopen", lambda *_: (_ for _ in ()).throw(OSError("full")))
    found, where = keep("weights", Weights, measure, tmp_path)
    assert (found, "full" in where) == (Weights(2.0, 20.0), True)
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_values_are_put_within_bounds():
    assert clamp(Weights, {"light": 100.0, "heavy": -1.0}) == Weights(5.0, 5.0)
    assert clamp(Weights, {"light": float("nan"), "heavy": float("inf")}) == Weights(1.0, 50.0)
    assert asdict(clamp(Weights, {})) == asdict(Weights())


def test_the_file_says_what_it_is_of(tmp_path):
    measure, _ = counting((2.0, 20.0))
    keep("weights", Weights, measure, tmp_path)
    content = json.loads(stored(tmp_path).read_text())
    assert content["table"] == {"light": 2.0, "heavy": 20.0}
    assert {"machine", "model", "cpu", "features", "cores", "sources"} <= set(content["key"])
