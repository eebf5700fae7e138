"""What attention takes is measured at a machine's first start, and read by all others."""

import json
import logging
from dataclasses import asdict

import pytest

import boughs
from boughs.runtime.config import EngineConfig
from boughs.runtime.core.runner import ModelRunner


@pytest.fixture
def start(tiny_model, tmp_path, monkeypatch):
    """Start a runner whose home is a fresh folder."""
    monkeypatch.setenv("BOUGHS_HOME", str(tmp_path))
    return lambda **more: ModelRunner(
        EngineConfig(model_path=str(tiny_model), kv_memory="8M", threads=1, **more), tiny_model
    )


def test_a_second_start_reads_what_the_first_measured(start, tmp_path, caplog):
    caplog.set_level(logging.INFO, "boughs")
    first = start()
    (path,) = (tmp_path / "costs").glob("attention-*.json")
    assert len(list((tmp_path / "costs").glob("linear-float32-*.json"))) == 1
    assert first.costs_from == f"{path}, measured by this start"
    assert "measuring attention-float32" in caplog.text
    content = json.loads(path.read_text())
    assert content["table"] == asdict(first.attention.costs)
    content["table"]["read"] = 77.0
    path.write_text(json.dumps(content))
    caplog.clear()
    second = start()
    assert second.attention.costs.read == 77.0
    assert second.costs_from == str(path)
    assert not caplog.text  # a start that has nothing to do says nothing


def test_other_backends_are_not_measured(start, tmp_path):
    assert start(attention_backend="reference").costs_from == ""
    assert not list((tmp_path / "costs").glob("attention-*"))


def test_an_engine_says_where_costs_are_from(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setenv("BOUGHS_HOME", str(tmp_path))
    with boughs.Engine(str(tiny_model), in_process=True, kv_memory="8M") as engine:
        info = engine.get_server_info()
    (path,) = (tmp_path / "costs").glob("attention-*.json")
    assert info["attention_costs"] == f"{path}, measured by this start"
