"""The layers of a model as a program against the same layers one by one, over each kind of cache.

The small kernels of the layers are computed by a program's own, one at a time, so that all that is
compared must be equal to the last bit.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from boughs.kernels.elements import ELEMENTS
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.ops import TorchOps
from boughs.kernels.program import Norm, Program
from boughs.kernels.workers import Workers
from boughs.runtime.models import attention

FIXTURES = Path(__file__).parents[1] / "fixtures"
WORKERS = Workers(1)
NO_CACHE, NO_SLOTS = KVCache(1, 1, 1, 1, 1), np.zeros(0, np.int64)


def load(name):
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_tiny_model = load("tiny_models").make_tiny_model
paged_model = load("paged_model")

SHAPES = {
    "llama": {"tie": True},
    "mistral": {"model_type": "mistral", "sliding_window": 9},
    "qwen2": {
        "model_type": "qwen2", "layers": 3, "use_sliding_window": True, "sliding_window": 7,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 32, "heads": 6, "kv_heads": 3},
    "phi3": {
        "model_type": "phi3",
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
        },
    },
    "gemma2": {"model_type": "gemma2", "layers": 3, "head_dim": 32, "sliding_window": 11},
    "gemma3": {
        "model_type": "gemma3_text", "layers": 4, "head_dim": 32, "sliding_window": 8,
        "sliding_window_pattern": 3,
    },
}  # fmt: skip


def one_call(x, record):
    """What one call makes of x [T, n]; `record` records it."""
    program = Program(WORKERS)
    into = program.buffer("x", x.shape[-1])
    program.finish(into, record(program, into))
    return torch.from_numpy(program.run(x.numpy(), NO_CACHE, NO_SLOTS, {}, {}))


def norm(x, shape, weight, eps):
    """torch's `rms_norm`, as a program computes it."""
    weight = torch.ones(shape) if weight is None else weight
    flat = x.reshape(-1, x.shape[-1])
    return one_call(flat, lambda p, into: p.norm(into, Norm(weight.numpy(), eps))).view(x.shape)


class CallOps(TorchOps):
    """The ops that have calls, by these."""

    def rms_norm(self, x, weight, eps, *, plus_one=False):
        return norm(x, weight.shape, 1 + weight if plus_one else weight, eps)

    def gated(self, name):
        return lambda x: one_call(x, lambda p, into: p.gate(into, name))


def run(paged):
    """Logits of two prompts and what the first choose behind them, in chunks and mixed batches."""
    first, second = paged_model.random_ids(30, seed=1), paged_model.random_ids(21, seed=2)
    steps = [{"a": first[:1]}, {"a": first[1:], "b": second[:5]}, {"b": second[5:]}]
    made, chosen = [], {}
    for works in steps + [{}] * 6:
        found = paged.step(works or {name: [token] for name, token in chosen.items()})
        made += found.values()
        chosen |= {name: int(logits[-1].argmax()) for name, logits in found.items()}
    return torch.cat(made)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_program_is_its_layers_one_by_one(tmp_path, monkeypatch, shape):
    folder = make_tiny_model(tmp_path, logit_std=4.0, **SHAPES[shape])
    monkeypatch.setattr(attention, "rms_norm", norm)  # of every query and key
    seen = []
    for kind in ELEMENTS:
        options = {"backend": "cpu", "kv_dtype": kind}
        made = paged_model.PagedModel(folder, **options)
        assert made.model._program.takes(made.kv, made.attention)
        layers = paged_model.PagedModel(folder, ops=CallOps(), one_by_one=True, **options)
        assert layers.model._program is None
        seen.append(run(made))
        assert seen[-1].isfinite().all()
        assert torch.equal(seen[-1], run(layers))
    exact, *rounded = seen
    for kind in rounded:
        assert not torch.equal(kind, exact)
