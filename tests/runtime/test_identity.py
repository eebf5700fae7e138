"""What tells engines apart: any change of the model's files, the numbers or the versions."""

import os
import shutil

import pytest

from boughs.runtime.config import EngineConfig
from boughs.runtime.front import identity as module
from boughs.runtime.front.identity import fingerprint, identity
from boughs.runtime.messages import Limits


def limits(**changed):
    return Limits(
        **{
            "model_path": "m",
            "vocab_size": 9,
            "context_length": 64,
            "pool_tokens": 64,
            "page_size": 16,
            "num_pages": 5,
            "eos_token_ids": (0,),
            "attention_backend": "cpu",
            "dtype": "float32",
            **changed,
        }
    )


@pytest.fixture
def model(tiny_model, tmp_path):
    return shutil.copytree(tiny_model, tmp_path / "model")


def identify(model, **settings):
    return identity(EngineConfig(model_path=str(model), **settings), limits())


def test_it_is_the_same_for_the_same_files_elsewhere(model, tmp_path):
    again = shutil.copytree(model, tmp_path / "elsewhere" / "another name")
    for path in again.iterdir():
        os.utime(path, (0, 0))
    assert identify(model) == identify(again)
    assert identify(model) == identify(model, kv_memory="64M", schedule_policy="fcfs")


def test_every_file_of_the_model_counts(model):
    seen = {identify(model)}
    names = [path for path in sorted(model.iterdir()) if path.is_file()]
    for path in names:
        path.write_bytes(path.read_bytes() + b" ")
        seen.add(identify(model))
    (model / "chat_template.jinja").write_text("another")
    seen.add(identify(model))
    assert len(seen) == len(names) + 2


def test_numbers_count(model, monkeypatch):
    seen = {identify(model)}
    for settings in (
        {"quantize": "int8"},
        {"dtype": "bfloat16"},
        {"attention_backend": "reference"},
    ):
        seen.add(identify(model, **settings))
    config = EngineConfig(model_path=str(model))
    for changed in ({"context_length": 32}, {"dtype": "float16"}, {"weights": "int4"}):
        seen.add(identity(config, limits(**changed)))
    monkeypatch.setattr(module, "_version", lambda name: "9" if name == "torch" else None)
    seen.add(identify(model))
    assert len(seen) == 8


def test_large_weights_are_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 10)
    path = tmp_path / "model.gguf"
    content = bytes(range(256)) * 40
    seen = set()
    for at in (None, 0, len(content) - 1, len(content) // 2):
        changed = bytearray(content)
        if at is not None:
            around = slice(max(at - 80, 0), at + 80)  # wider than from one sample to the next
            changed[around] = bytes(len(changed[around]))
        path.write_bytes(changed)
        os.utime(path, (1, 1))
        seen.add(fingerprint(path))
    assert len(seen) == 4
    os.utime(path, (2, 2))
    assert fingerprint(path) not in seen
