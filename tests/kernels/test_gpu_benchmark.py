"""The GPU's benchmark over FlashInfer's stand-in: it makes the calls that the real module takes."""

import importlib.util
from pathlib import Path

import pytest
import torch

from boughs.kernels import flashinfer


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ROOT = Path(__file__).parents[2]
fakes = load(ROOT / "tests" / "fixtures" / "fake_flashinfer.py")


@pytest.fixture
def bench(monkeypatch):
    """Small batches, run once; no time passes."""
    made = load(ROOT / "benchmarks" / "gpu.py")

    def once(run):
        run(0)
        run(1)
        return 1e-6

    monkeypatch.setattr(made, "device_seconds", once)
    monkeypatch.setattr(made, "SHAPES", [(2, 1, 64), (4, 1, 128)])
    monkeypatch.setattr(made, "DECODES", [(1, 1, 7), (3, 1, 33)])
    monkeypatch.setattr(made, "CHUNKS", [(2, 5, 40)])
    monkeypatch.setattr(made, "SHARED", [(3, 32), (5, 64)])
    monkeypatch.setattr(made, "OWN", 16)
    monkeypatch.setattr(flashinfer, "WORKSPACE", 1 << 16)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 30, 1 << 30))
    return made


@pytest.fixture
def module():
    return fakes.FakeFlashInfer(fakes.FakeCuda())


def plans(module):
    return [given for name, given in module.calls if "plan" in name.rpartition(".")[2]]


def test_attention(bench, module):
    table = bench.attention_table(module, module.gpu, 1e12, 1e14)
    assert table.row_count == 2 * 3
    assert {given["kv_data_type"] for given in plans(module)} == {bench.DTYPE}
    assert sum("causal" in given for given in plans(module)) == 2


def test_caches_in_float8(bench, module):
    table = bench.float8_table(module, module.gpu, 1e12)
    assert table.row_count == 2 * 3
    assert {given["kv_data_type"] for given in plans(module)} == {bench.DTYPE, *bench.FLOAT8}
    assert {given["q_data_type"] for given in plans(module)} == {bench.DTYPE}


def test_shared_prefixes(bench, module):
    table = bench.cascade_table(module, module.gpu)
    assert table.row_count == 2 * 2
    pieces = [given for given in plans(module) if "causal" in given]
    assert [len(given["qo_indptr"]) - 1 for given in pieces] == [4, 6] * 2  # a node, and the tails
    assert sum(name == "merge_states" for name, _ in module.calls) == 2 * len(pieces)


def test_what_does_not_fit_is_left_out(bench, module, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 17, 1 << 30))
    assert 0 < bench.attention_table(module, module.gpu, 1e12, 1e14).row_count < 6


def test_without_a_gpu_it_says_so(bench, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["gpu.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    bench.main()
    assert capsys.readouterr().out == "no GPU\n"
