"""The stand-in for FlashInfer refuses what the real module misreads, else it proves nothing."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from boughs.kernels.staging import Staging

_path = Path(__file__).parents[1] / "fixtures" / "fake_flashinfer.py"
_spec = importlib.util.spec_from_file_location("fake_flashinfer", _path)
fakes = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fakes)
Misuse = fakes.Misuse
HALF = torch.float16


def ints(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


class World:
    """One decode wrapper and one prefill wrapper, for pages of 4."""

    def __init__(self, **given):
        self.gpu = fakes.FakeCuda()
        self.module = fakes.FakeFlashInfer(self.gpu)
        options = {"kv_layout": "NHD", "backend": "fa2"} | given
        workspace = torch.zeros(1 << 16, dtype=torch.uint8)
        self.decode = self.module.BatchDecodeWithPagedKVCacheWrapper(
            workspace, use_tensor_cores=False, **options
        )
        self.prefill = self.module.BatchPrefillWithPagedKVCacheWrapper(workspace, **options)

    def host(self, tensor):
        memory = self.gpu.host_memory(max(1, len(tensor)), tensor.dtype)
        memory[: len(tensor)] = tensor
        return memory[: len(tensor)]

    def plan_decode(self, **changes):
        given = {
            "indptr": self.host(ints(0, 2)),
            "indices": ints(1, 2),
            "last_page_len": self.host(ints(3)),
            "head_dim": 64,
            **self.options(),
        } | changes
        self.decode.plan(**given)

    def plan_prefill(self, **changes):
        given = {
            "qo_indptr": self.host(ints(0, 3)),
            "paged_kv_indptr": self.host(ints(0, 2)),
            "paged_kv_indices": ints(1, 2),
            "paged_kv_last_page_len": self.host(ints(3)),
            "head_dim_qk": 64,
            "causal": True,
            **self.options(),
        } | changes
        self.prefill.plan(**given)

    def options(self):
        return {
            "num_qo_heads": 2, "num_kv_heads": 1, "page_size": 4, "pos_encoding_mode": "NONE",
            "window_left": -1, "logits_soft_cap": 0.0, "sm_scale": 0.125, "q_data_type": HALF,
            "kv_data_type": HALF, "o_data_type": HALF,
        }  # fmt: skip

    def run(self, wrapper, rows=1, **changes):
        pool = torch.zeros(2, 4, 4, 1, 64, dtype=HALF)
        q = torch.zeros(rows, 2, 64, dtype=HALF)
        given = {"q": q, "paged_kv_cache": (pool[0], pool[1]), "out": torch.empty_like(q)}
        return wrapper.run(**(given | changes))


def test_what_is_right_is_taken():
    world = World()
    world.plan_decode()
    world.plan_prefill()
    assert not world.run(world.decode).any()
    assert not world.run(world.prefill, rows=3).any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": ints(1, 2, dtype=torch.int64)}, "indices of torch.int64"),
        ({"indices": ints(1, 9, 2, 9)[::2]}, "indices has gaps"),
        ({"indices": ints(1)}, "indptr and indices"),
        ({"head_dim": 96}, "heads of 96"),
        ({"num_qo_heads": 5}, "no plain kernel for groups of 5"),
        ({"num_qo_heads": 3, "num_kv_heads": 2}, "3 heads over 2"),
        ({"q_data_type": torch.float32}, "queries of torch.float32"),
        ({"kv_data_type": torch.bfloat16}, "a cache of torch.bfloat16"),
        ({"kv_data_type": None}, "kv_data_type has a default"),
        ({"sm_scale": None}, "sm_scale has a default"),
        ({"logit_soft_cap": 3.0}, "unexpected keyword"),
        ({"window_left": -3}, "window"),
    ],
)
def test_a_decode_plan_is_refused(changes, message):
    with pytest.raises(Misuse, match=message):
        World().plan_decode(**changes)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("last_page_len", ints(0), "a last page of no tokens"),
        ("last_page_len", ints(5), "beyond the page"),
        ("last_page_len", ints(3, dtype=torch.int64), "last_page_len of torch.int64"),
        ("indptr", ints(1, 2), "indptr"),
        ("indptr", ints(0, 2, 2), "indptr"),
    ],
)
def test_numbers_that_do_not_add_up_are_refused(name, value, message):
    world = World()
    with pytest.raises(Misuse, match=message):
        world.plan_decode(**{name: world.host(value)})


def test_numbers_on_the_wrong_side_are_refused():
    world = World()
    with pytest.raises(Misuse, match="waits for numbers on the device"):
        world.plan_decode(indptr=ints(0, 2))
    with pytest.raises(Misuse, match="indices from the host"):
        world.plan_decode(indices=world.host(ints(1, 2)))
    with pytest.raises(Misuse, match="waits for numbers on the device"):
        world.plan_prefill(qo_indptr=ints(0, 3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"causal": None}, "causal has a default"),
        ({"head_dim_qk": 80}, "heads of 80"),
        ({"qo_indptr": ints(0, 3, dtype=torch.int64)}, "qo_indptr of"),
    ],
)
def test_a_prefill_plan_is_refused(changes, message):
    with pytest.raises(Misuse, match=message):
        World().plan_prefill(**changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kv_layout": "HND"}, "NHD"), ({"backend": "auto"}, "chosen by the machine")],
)
def test_a_wrapper_is_refused(options, message):
    with pytest.raises(Misuse, match=message):
        World(**options)


def test_runs_are_refused():
    world = World()
    with pytest.raises(Misuse, match="run before plan"):
        world.run(world.decode)
    world.plan_decode()
    pool = torch.zeros(2, 4, 4, 1, 64, dtype=HALF)
    wide = torch.zeros(4, 4, 2, 64, dtype=HALF)[:, :, :1]
    for changes, message in (
        ({"rows": 2}, "queries"),
        ({"q": torch.zeros(1, 2, 64)}, "queries of torch.float32"),
        ({"paged_kv_cache": (pool[0].float(), pool[1].float())}, "pages of"),
        ({"paged_kv_cache": (pool[0], wide)}, "different strides"),
        ({"paged_kv_cache": (wide, wide)}, "with gaps"),
        ({"paged_kv_cache": (pool[0].transpose(1, 2),) * 2}, "not NHD"),
        ({"paged_kv_cache": (pool[0][:2], pool[1][:2])}, "page id"),
        ({"enable_pdl": True}, "more than it needs"),
    ):
        with pytest.raises(Misuse, match=message):
            world.run(world.decode, **changes)


def test_memory_that_is_being_copied_stays_as_it_is():
    world = World()
    indptr = world.host(ints(0, 2))
    world.plan_decode(indptr=indptr)
    with pytest.raises(Misuse, match="planned again too early"):
        world.plan_decode()
    indptr[0] = 7
    with pytest.raises(Misuse, match="written while it was copied"):
        world.run(world.decode)
    indptr[0] = 0
    event = world.gpu.event()
    event.record()
    event.synchronize()
    indptr[0] = 7  # the copy has ended
    assert not world.run(world.decode).any()
    world.plan_decode()


def test_staging_waits_for_the_turn_before():
    world = World()
    staging = Staging(world.gpu, torch.int32)
    for last in (3, 1, 4):
        arrays = [np.array(a, np.int32) for a in ([0, 2], [last])]
        indptr, length = staging.fill(arrays)
        world.plan_decode(indptr=indptr, last_page_len=length)
        staging.seal()
        assert not world.run(world.decode).any()


def test_staging_that_did_not_wait_would_be_caught(monkeypatch):
    world = World()
    staging = Staging(world.gpu, torch.int32)
    monkeypatch.setattr(fakes.FakeEvent, "synchronize", lambda _: None)
    indptr, length = staging.fill([np.array(a, np.int32) for a in ([0, 2], [3])])
    world.plan_decode(indptr=indptr, last_page_len=length)
    staging.seal()
    staging.fill([np.array([0, 2, 9], np.int32)])
    with pytest.raises(Misuse, match="written while it was copied"):
        world.run(world.decode)


def test_staging_grows_and_keeps_types():
    world = World()
    staging = Staging(world.gpu, torch.int64)
    arrays = [np.arange(n, dtype=np.int64) for n in (3000, 0, 5)]
    made = staging.upload(arrays)
    assert made.tolist() == np.concatenate(arrays).tolist()
    assert not world.gpu.is_host(made)
    into = torch.zeros(2, dtype=torch.int64)
    assert staging.upload([np.array([4, 5])], into=into) is into
    assert into.tolist() == [4, 5]
    with pytest.raises(ValueError, match=r"int32 where torch\.int64"):
        staging.fill([np.zeros(1, np.int32)])
