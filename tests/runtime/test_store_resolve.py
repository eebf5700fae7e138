"""A name becomes a folder, or an error that says what there is."""

import argparse
import importlib.util
import os
import shutil
import time
from pathlib import Path

import pytest

from boughs.lang.errors import BoughsError, InvalidRequest, NotFound
from boughs.lang.home import default_home
from boughs.runtime.cli import pull as pull_command
from boughs.runtime.models import progress, store

FIXTURES = Path(__file__).parents[1] / "fixtures"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


write_gguf = load("tiny_gguf").write_gguf


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def tiny_gguf(tiny_model, tmp_path):
    """A GGUF file, alone in its folder."""
    (tmp_path / "files").mkdir()
    return write_gguf(tiny_model, tmp_path / "files" / "tiny.gguf")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BOUGHS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_home(monkeypatch, tmp_path):
    monkeypatch.delenv("BOUGHS_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_home() == tmp_path / "boughs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "me"))
    assert default_home() == tmp_path / "me" / ".cache" / "boughs"
    monkeypatch.setenv("BOUGHS_HOME", "~/models")
    assert default_home() == tmp_path / "me" / "models"


def test_a_folder_is_itself(home, tiny_model, monkeypatch):
    assert store.resolve(str(tiny_model)) == tiny_model
    monkeypatch.chdir(tiny_model.parent)
    assert store.resolve(tiny_model.name) == tiny_model
    assert store.resolve(tiny_model) == tiny_model
    assert store.weights(tiny_model) == tiny_model
    assert not home.exists()


def test_a_folder_without_a_model(home, tmp_path):
    with pytest.raises(InvalidRequest, match=r"config\.json"):
        store.resolve(str(tmp_path))


def test_a_gguf_is_converted_once(home, tiny_gguf, monkeypatch):
    folder = store.resolve(str(tiny_gguf))
    assert folder.parent == home / "gguf"
    assert {"config.json", "generation_config.json", "tokenizer.json"} <= names(folder)
    assert (folder / "tiny.gguf").samefile(tiny_gguf)
    weights = store.weights(folder)
    assert weights == folder / "float32"
    stamp = (weights / "model.safetensors").stat().st_mtime_ns
    monkeypatch.setattr(store, "GgufFile", None)  # is not opened again
    assert store.resolve(str(tiny_gguf)) == folder
    assert store.weights(folder) == weights
    assert (weights / "model.safetensors").stat().st_mtime_ns == stamp


def test_a_changed_gguf_is_another_one(home, tiny_gguf):
    first = store.resolve(str(tiny_gguf))
    os.utime(tiny_gguf, ns=(0, time.time_ns()))
    assert store.resolve(str(tiny_gguf)) != first


def test_a_folder_with_a_gguf(home, tiny_gguf):
    folder = tiny_gguf.parent
    assert store.resolve(str(folder)) == store.resolve(str(tiny_gguf))
    assert names(folder) == {"tiny.gguf"}  # the user's folder is left alone
    shutil.copy(tiny_gguf, folder / "other.gguf")
    with pytest.raises(InvalidRequest, match=r"other\.gguf, tiny\.gguf"):
        store.resolve(str(folder))


def test_another_file(home, tmp_path):
    file = tmp_path / "model.bin"
    file.write_bytes(b"x")
    with pytest.raises(InvalidRequest, match="GGUF"):
        store.resolve(str(file))
    broken = tmp_path / "model.gguf"
    broken.write_bytes(b"x" * 100)
    with pytest.raises(InvalidRequest, match=r"model\.gguf"):
        store.resolve(str(broken))


@pytest.mark.parametrize(
    "name",
    [
        "smollm",
        "gpt-5",
        "",
        "./missing",
        "/no/such/folder",
        "x.gguf",
        "~nobody/x",
        "a" * 5000,
        "nul\0",
    ],
)
def test_an_unknown_name_lists_what_there_is(home, name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", None)  # is not asked
    with pytest.raises(NotFound) as caught:
        store.resolve(name)
    message = str(caught.value)
    assert repr(name) in message
    for word in ("smollm2-135m", "Pulled already: none", "folder", "GGUF", "org/name"):
        assert word in message
    assert ("Did you mean smollm2-135m?" in message) is (name == "smollm")


def test_a_hub_name(home, tiny_model, monkeypatch):
    asked = []

    def snapshot(name, allow_patterns, ignore_patterns):
        asked.append((name, "*.safetensors" in allow_patterns))
        return str(tiny_model)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    assert store.resolve("org/some-model_1.5") == tiny_model
    assert asked == [("org/some-model_1.5", True)]


def test_a_hub_that_is_not_there(home, monkeypatch):
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    causes = [LocalEntryNotFoundError("no network"), OSError("disk"), TimeoutError("late")]
    assert issubclass(HfHubHTTPError, OSError)
    for cause in causes:

        def snapshot(name, allow_patterns, ignore_patterns, cause=cause):
            raise cause

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
        with pytest.raises(NotFound, match=r"'org/model'.*the hub could not give it") as caught:
            store.resolve("org/model")
        assert caught.value.__cause__ is cause
        assert str(cause) in str(caught.value)


def test_an_existing_folder_wins_over_a_hub_name(home, tiny_model, tmp_path, monkeypatch):
    shutil.copytree(tiny_model, tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    assert store.resolve("org/model") == tmp_path / "org" / "model"


def test_a_home_that_cannot_be_written(tmp_path, tiny_gguf):
    (tmp_path / "file").write_text("")
    with pytest.raises(BoughsError, match="cannot be written"):
        store.resolve(str(tiny_gguf), home=tmp_path / "file")


def run_command(*words):
    parser = argparse.ArgumentParser(prog="boughs")
    pull_command.add_parser(parser.add_subparsers())
    args = parser.parse_args(["pull", *words])
    return args.func(args)


def test_the_command_prints_the_folder(home, tiny_model, capsys):
    assert run_command(str(tiny_model)) == 0
    assert capsys.readouterr().out == f"{tiny_model}\n"
    with pytest.raises(NotFound):
        run_command("nothing")


def test_the_command_lists_the_aliases(home, capsys):
    assert run_command() == 0
    assert "smollm2-135m" in capsys.readouterr().out
    with pytest.raises(SystemExit) as caught:
        run_command("--help")
    assert caught.value.code == 0
    assert "boughs pull smollm2-135m" in capsys.readouterr().out


def test_no_bar_without_a_terminal(capsys):
    with progress.bar() as report:
        report("working", 0.5)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    import sys

    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with progress.bar() as report:
        report("working", None)
        report("working", 1.0)
    out, err = capsys.readouterr()
    assert out == ""
    assert "working" in err
    assert "100%" in err
