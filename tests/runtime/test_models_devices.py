"""A forward pass on a GPU makes every tensor there, and waits for nothing.

torch's fake tensors know shapes, dtypes and devices, and refuse an operation between two devices,
without a GPU. An operation that would wait for a number from the device raises, too.
"""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, unset_fake_temporarily
from torch.overrides import TorchFunctionMode

from boughs.kernels.kv_cache import KVCache
from boughs.kernels.ops import TORCH
from boughs.runtime.models import gemma, layers, llama
from boughs.runtime.models.layers import PlainMaker
from boughs.runtime.models.load import load_model
from boughs.runtime.models.rope import make_rope
from boughs.runtime.models.shards import Shards
from boughs.runtime.models.tensors import TensorFiles

_path = Path(__file__).parents[1] / "fixtures" / "tiny_models.py"
_spec = importlib.util.spec_from_file_location("tiny_models", _path)
tiny = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(tiny)

CUDA, ROWS = torch.device("cuda", 0), 5


CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _real_files(monkeypatch):
    """Files are read, and frequencies looked at, on the CPU."""

    def really(function):
        def call(*args, **kwargs):
            with unset_fake_temporarily():
                return function(*args, **kwargs)

        return call

    for module in (llama, gemma):
        monkeypatch.setattr(module, "make_rope", really(make_rope))
    for name in ("tensor", "weight"):
        monkeypatch.setattr(Shards, name, really(getattr(Shards, name)))
    monkeypatch.setattr(layers, "from_numpy", really(layers.from_numpy))


class Index(TorchFunctionMode):
    """`x[...]` by other operations: a torch without CUDA cannot index a fake tensor."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not torch.Tensor.__getitem__:
            return func(*args, **(kwargs or {}))
        x, keys = args[0], args[1] if isinstance(args[1], tuple) else (args[1],)
        if Ellipsis in keys:
            at, given = keys.index(Ellipsis), sum(k is not None for k in keys) - 1
            keys = (*keys[:at], *[slice(None)] * (x.dim() - given), *keys[at + 1 :])
        dim = 0
        for key in keys:
            if isinstance(key, int):
                x = x.select(dim, key)
                continue
            if key is None:
                x = x.unsqueeze(dim)
            else:
                start, stop, _ = key.indices(x.shape[dim])
                x = x.narrow(dim, start, stop - start)
            dim += 1
        return x


class Attention:
    """Reads the cache, as a backend does."""

    def run(self, layer, q, kv):
        assert q.stride(-1) == 1
        assert q.device == kv.k(layer).device == CUDA
        return torch.empty_like(q, memory_format=torch.contiguous_format)


def forward(folder, dtype, kv_dtype=None):
    """The hidden states and logits of a forward pass on a GPU that is none."""
    with FakeTensorMode(allow_non_fake_inputs=True), Index():
        model = load_model(folder, maker=PlainMaker(dtype, CUDA), ops=TORCH)
        c = model.config
        kv = KVCache(c.num_layers, 4, 4, c.num_kv_heads, c.head_dim, kv_dtype or dtype, CUDA)
        ids = torch.zeros(3 * ROWS, dtype=torch.int64, device=CUDA).view(3, ROWS).unbind()
        hidden = model.forward(*ids, kv, Attention())
        return model, hidden, model.logits(hidden[:2])


MODELS = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "phi3": {"partial_rotary_factor": 0.5},
    "gemma2": {"sliding_window": 8},
    "gemma3_text": {"sliding_window": 8},
    "gpt2": {},
}


@pytest.mark.parametrize("model_type", MODELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_all_of_a_forward_pass_is_on_the_device(tmp_path, model_type, dtype):
    kind = {"kv_heads": 4, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
    fields = kind if model_type == "gpt2" else MODELS[model_type]
    folder = tiny.make_tiny_model(tmp_path, model_type=model_type, **fields)
    for kv_dtype in (dtype, torch.float8_e4m3fn):
        model, hidden, logits = forward(folder, dtype, kv_dtype)
        assert model.recordable
        assert (hidden.device, hidden.dtype) == (CUDA, dtype)
        assert (logits.device, logits.dtype) == (CUDA, torch.float32)


def test_experts_wait_for_the_device_and_are_not_recorded(tmp_path):
    folder = tiny.make_tiny_model(tmp_path, model_type="mixtral", num_local_experts=4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert not load_model(folder, maker=PlainMaker(torch.bfloat16, CUDA)).recordable
    with pytest.raises(DataDependentOutputException):
        forward(folder, torch.bfloat16)


def test_tensors_are_given_out_on_the_device(tmp_path, monkeypatch):
    monkeypatch.undo()
    folder = tiny.make_tiny_model(tmp_path, heads=2)
    files = TensorFiles(Shards(folder), None)
    for name, shape in (("model.norm.weight", (32,)), ("nothing", (2, 3))):
        made = files.take(name, *shape)
        assert (made.device.type, made.shape) == ("meta", shape)
    files = TensorFiles(Shards(folder), PlainMaker(torch.bfloat16, CPU))
    made = files.take("model.norm.weight", 32)
    assert (made.device.type, made.dtype, made.shape) == ("cpu", torch.bfloat16, (32,))
