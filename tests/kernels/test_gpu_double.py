"""The tests of the real kernels over FlashInfer's stand-in, so that they themselves are tested."""

import importlib.util
from pathlib import Path

import pytest

from boughs.kernels import flashinfer


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TESTS = Path(__file__).parents[1]
fakes = load(TESTS / "fixtures" / "fake_flashinfer.py")
real = load(TESTS / "kernels" / "test_gpu.py")
globals().update({name: test for name, test in vars(real).items() if name.startswith("test_")})


@pytest.fixture(autouse=True)
def _small_workspace(monkeypatch):
    monkeypatch.setattr(flashinfer, "WORKSPACE", 1 << 16)


@pytest.fixture
def cuda():
    return fakes.FakeCuda()


@pytest.fixture
def module(cuda):
    return fakes.FakeFlashInfer(cuda)
