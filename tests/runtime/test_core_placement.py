"""Where a model runs: the choice, its reason, and refusals that say what to do instead."""

import importlib
import importlib.metadata
import importlib.util
from types import SimpleNamespace

import pytest
import torch

from boughs.kernels import flashinfer_load
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.runtime.config import EngineConfig
from boughs.runtime.core import memory, placement
from boughs.runtime.core.placement import place


def config(**fields):
    return EngineConfig(model_path=".", **fields)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


class Gpu:
    """A machine with a GPU, as far as torch and the package lists are asked."""

    def __init__(self, monkeypatch):
        self.patch = monkeypatch.setattr
        self.module = SimpleNamespace(name="flashinfer")
        for name, value in {
            "is_available": True,
            "current_device": 0,
            "get_device_name": "a GPU",
            "get_device_capability": (9, 0),
        }.items():
            self.patch(torch.cuda, name, lambda *_, value=value: value)
        self.release("0.7.4")
        self.patch(importlib, "import_module", lambda _: self.module)

    def release(self, version):
        self.patch(importlib.util, "find_spec", lambda _: version and object())
        self.patch(importlib.metadata, "version", lambda _: version)

    def capability(self, *numbers):
        self.patch(torch.cuda, "get_device_capability", lambda *_: numbers)

    def broken(self, _):
        raise OSError("libcuda.so.1")


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.delenv("FLASHINFER_USE_CUDA_NORM", raising=False)
    return Gpu(monkeypatch)


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu_it_is_the_cpu_and_says_why():
    where = place(config())
    assert (where.device.type, where.dtype, where.kv_dtype) == ("cpu", torch.float32, torch.float32)
    assert where.max_batched_tokens == 256
    assert where.why == "auto: torch sees no GPU"
    assert where.gpu is None
    assert place(config(device="cpu", max_batched_tokens=7)).max_batched_tokens == 7


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("fields", "param", "mend"),
    [
        ({"device": "cuda"}, "device", "use device=cpu"),
        ({"dtype": "bfloat16"}, "dtype", "use float32"),
        ({"dtype": "float16", "device": "cpu"}, "dtype", "use float32"),
        ({"kv_cache_dtype": "fp8_e4m3"}, "kv_cache_dtype", "use auto or float32, bfloat16, int8"),
        ({"attention_backend": "flashinfer"}, "attention_backend", "attention_backend=auto"),
        ({"attention_backend": "flashinfer", "device": "cpu"}, "attention_backend", "device=cpu"),
    ],
)
def test_what_the_cpu_lacks_is_refused_by_name(fields, param, mend):
    with pytest.raises(Unsupported, match=mend) as caught:
        place(config(**fields))
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


def test_a_gpu_is_taken(gpu):
    where = place(config())
    assert where.device == torch.device("cuda", 0)
    assert (where.dtype, where.kv_dtype) == (torch.bfloat16, torch.bfloat16)
    assert where.max_batched_tokens == 8192
    assert where.why == "auto: a GPU"
    assert where.gpu.flashinfer is gpu.module
    where = place(config(dtype="float16", kv_cache_dtype="fp8_e5m2"))
    assert (where.dtype, where.kv_dtype) == (torch.float16, torch.float8_e5m2)
    assert (where.gpu.dtype, where.gpu.kv_dtype) == (where.dtype, where.kv_dtype)


@pytest.mark.usefixtures("no_gpu")
def test_kinds_of_cache_on_the_cpu():
    for name in ("float32", "bfloat16", "int8"):
        where = place(config(kv_cache_dtype=name))
        assert (where.dtype, where.kv_dtype) == (torch.float32, getattr(torch, name))


@pytest.mark.usefixtures("gpu")
def test_kinds_of_cache_on_a_gpu():
    for name in ("int8", "float32"):
        with pytest.raises(Unsupported, match="fp8_e4m3, fp8_e5m2, bfloat16") as caught:
            place(config(kv_cache_dtype=name))
        assert caught.value.param == "kv_cache_dtype"
    assert place(config(kv_cache_dtype="bfloat16")).kv_dtype == torch.bfloat16


def test_the_cpu_is_taken_where_it_is_asked_for(gpu):
    assert place(config(device="cpu")).why == "asked for"


@pytest.mark.parametrize(
    ("break_it", "why"),
    [
        (lambda gpu: gpu.release(None), r"not installed: pip install 'boughs\[cuda\]'"),
        (lambda gpu: gpu.release("0.6.18"), "0.6.18 is installed, and 0.7"),
        (lambda gpu: gpu.release("0.8.0"), "0.8.0 is installed, and 0.7"),
        (lambda gpu: gpu.capability(7, 5), "a GPU has 7.5"),
        (lambda gpu: gpu.patch(importlib, "import_module", gpu.broken), "libcuda"),
    ],
)
def test_where_flashinfer_cannot_run_the_reason_is_told(gpu, break_it, why):
    break_it(gpu)
    where = place(config())
    assert where.device.type == "cpu"
    assert where.why.startswith("auto: ")
    with pytest.raises(flashinfer_load.NoFlashInfer, match=why) as caught:
        flashinfer_load.load_flashinfer()
    assert where.why == f"auto: {caught.value}"
    asked = place(config(device="cuda"))
    assert asked.gpu.flashinfer is None
    assert asked.gpu.missing == str(caught.value)
    # Who asks for the reference needs no FlashInfer.
    where = place(config(attention_backend="reference"))
    assert (where.device.type, where.gpu.flashinfer) == ("cuda", None)


@pytest.mark.usefixtures("no_gpu")
def test_flashinfer_is_not_imported_without_a_gpu(monkeypatch):
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(f"imports {name}"))
    with pytest.raises(flashinfer_load.NoFlashInfer, match="NVIDIA GPU"):
        flashinfer_load.load_flashinfer()


def test_the_refusal_of_a_backend_names_the_setting():
    error = placement.refuse(ValueError("no kernel for heads of 96"))
    assert isinstance(error, InvalidRequest)
    assert error.param == "attention_backend"


def test_memory_of_a_gpu_is_what_the_weights_leave():
    accelerator = SimpleNamespace(free_bytes=lambda: 1000)
    assert memory.num_pages(None, 85, accelerator) == 10
    assert memory.num_pages("1K", 512, accelerator) == 2
    with pytest.raises(InvalidRequest, match="850 bytes, 85 % of what is free"):
        memory.num_pages(None, 500, accelerator)
