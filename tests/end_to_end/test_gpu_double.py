"""Tests of the engine on a GPU, of tiny models, over FlashInfer's stand-in in this process."""

import importlib.util
from pathlib import Path

import pytest

from boughs.kernels import flashinfer
from boughs.kernels.choice import Gpu
from boughs.runtime.core import runner
from boughs.runtime.core.placement import DTYPES, GPU_KV_DTYPES, Placement


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TESTS = Path(__file__).parents[1]
fakes = load(TESTS / "fixtures" / "fake_flashinfer.py")
real = load(TESTS / "end_to_end" / "test_gpu.py")
test_architectures = real.test_architectures
test_prefixes_that_are_read_once = real.test_prefixes_that_are_read_once


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(flashinfer, "WORKSPACE", 1 << 16)

    def place(config):
        cuda, dtype = fakes.FakeCuda(), DTYPES[config.dtype]
        kv_dtype = GPU_KV_DTYPES.get(config.kv_cache_dtype, dtype)
        gpu = Gpu(cuda, fakes.FakeFlashInfer(cuda), "", dtype, kv_dtype)
        tokens = config.max_batched_tokens or 64
        return Placement(cuda.device, dtype, kv_dtype, tokens, "a test", gpu)

    monkeypatch.setattr(runner, "place", place)
    return {"device": "cuda", "in_process": True}, "cpu"


@pytest.mark.parametrize(
    ("dtype", "page_size", "head_dim", "group"),
    [("float16", 1, 64, 3), ("bfloat16", 16, 128, 8), ("bfloat16", 1, 128, 1)],
)
def test_some_heads_and_pages(tmp_path, device, dtype, page_size, head_dim, group):
    real.test_heads_and_pages_of_all_sizes(tmp_path, device, dtype, page_size, head_dim, group)
