"""FlashInfer's real kernels on a GPU against `reference` in float64; run by `make test-gpu`.

Queries and cache are rounded first, and both sides read the same numbers. Pages that no request
lists hold NaN, so that a page read too many shows.
"""

import math
import random
from collections import namedtuple

import pytest
import torch

from boughs.kernels import filters, flashinfer_cascade, ops
from boughs.kernels.backend import AttentionConfig
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.flashinfer import FlashInferBackend
from boughs.kernels.flashinfer_ops import FlashInferFilters, FlashInferOps
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.reference import ReferenceBackend

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.timeout(1800),  # the first use of each kernel compiles it
]

BF16, FP16 = torch.bfloat16, torch.float16
FP8, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
Order = namedtuple("Order", ["source", "destination", "rows"])
TOLERANCE = {BF16: 3e-2, FP16: 5e-3}
"""Of results of size 1: rounding of the weights and of the result."""


@pytest.fixture(scope="module")
def cuda():
    from boughs.kernels.accelerator import Cuda

    return Cuda()


@pytest.fixture(scope="module")
def module():
    from boughs.kernels.flashinfer_load import load_flashinfer

    return load_flashinfer()


class Case:
    """Requests of (tokens of KV, rows), their pages in a random order, on GPU and CPU.

    `share` changes page tables, so that requests have pages in common.
    """

    def __init__(self, cuda, module, config, dtype, requests, kv_dtype=None, share=None):
        torch.manual_seed(len(requests))
        self.config, self.cuda, self.dtype = config, cuda, dtype
        size, kv_heads, dim = config.page_size, config.num_kv_heads, config.head_dim
        counts = [-(-kv_len // size) for kv_len, _ in requests]
        pages = random.Random(0).sample(range(1, sum(counts) + 4), sum(counts))
        self.tables = [[pages.pop() for _ in range(count)] for count in counts]
        if share is not None:
            share(self.tables)
        self.kv = KVCache(1, sum(counts) + 4, size, kv_heads, dim, kv_dtype or dtype, cuda.device)
        slots = torch.arange(self.kv.num_pages * size, device=cuda.device)
        k, v = torch.randn(2, len(slots), kv_heads, dim, device=cuda.device)
        listed = torch.zeros(self.kv.num_pages, dtype=torch.bool)
        listed[[page for table in self.tables for page in table]] = True
        hidden = ~listed.repeat_interleave(size).to(cuda.device)
        k[hidden], v[hidden] = torch.nan, torch.nan
        self.kv.write(0, slots, k, v)
        self.host = KVCache(1, self.kv.num_pages, size, kv_heads, dim, torch.float64)
        self.host.k(0).copy_(self.kv.k(0).double())
        self.host.v(0).copy_(self.kv.v(0).double())
        self.batch = AttentionBatch.from_requests(
            self.tables, [kv for kv, _ in requests], [rows for _, rows in requests], size
        )
        wide = torch.randn(self.batch.num_rows, config.num_heads + 2, dim, device=cuda.device)
        self.q = wide.to(dtype)[:, : config.num_heads]
        self.backend = FlashInferBackend(
            config, "a test", flashinfer=module, accelerator=cuda, dtype=dtype, kv_dtype=kv_dtype,
            cascade=share is not None,
        )  # fmt: skip

    def expected(self):
        reference = ReferenceBackend(self.config, "the truth")
        reference.plan(self.batch)
        return reference.run(0, self.q.cpu().double(), self.host)

    def check(self, out):
        assert out.dtype == self.dtype
        # The hardware's tanh has 11 digits, of scores up to the cap.
        tolerance = TOLERANCE[self.dtype] * (6 if self.config.soft_cap else 1)
        torch.testing.assert_close(
            out.cpu().double(), self.expected(), rtol=tolerance, atol=tolerance
        )


def around(size):
    """Lengths that end before, at and behind the border of a page."""
    return [n for k in (1, 5) for n in (k * size - 1, k * size, k * size + 1) if n > 0]


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize("page_size", [1, 16])
def test_attention(cuda, module, dtype, kv_dtype, head_dim, group, page_size):
    config = AttentionConfig(2 * group, 2, head_dim, page_size)
    decodes = [(n, 1) for n in [*around(page_size), 1, 700]]
    chunks = [(n, n) for n in around(page_size)] + [(700, 33), (129, 128), (9, 0), (40, 1)]
    for requests in (decodes, chunks, decodes + chunks):
        case = Case(cuda, module, config, dtype, requests, kv_dtype)
        case.backend.plan(case.batch)
        case.check(case.backend.run(0, case.q, case.kv))


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("kv_dtype", [FP8, E5M2, None])
@pytest.mark.parametrize("head_dim", [128, 256])
@pytest.mark.parametrize("group", [1, 3, 8])
def test_wide_heads_and_float8_of_both_kinds(cuda, module, dtype, kv_dtype, head_dim, group):
    config = AttentionConfig(group, 1, head_dim, 16)
    case = Case(cuda, module, config, dtype, [(1, 1), (33, 1), (300, 1), (50, 50)], kv_dtype)
    case.backend.plan(case.batch)
    case.check(case.backend.run(0, case.q, case.kv))


@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize("group", [1, 4])
def test_requests_that_are_split_and_requests_that_are_many(cuda, module, kv_dtype, group):
    config = AttentionConfig(group, 1, 64, 16)
    for requests in ([(20_000, 1), (3, 1), (20_000, 70)], [(n, 1) for n in range(1, 900, 3)]):
        case = Case(cuda, module, config, BF16, requests, kv_dtype)
        case.backend.plan(case.batch)
        case.check(case.backend.run(0, case.q, case.kv))


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", [1, 3, 8])
@pytest.mark.parametrize("window", [1, 5, 64])
@pytest.mark.parametrize("soft_cap", [0.0, 20.0])
def test_windows_and_soft_caps(cuda, module, head_dim, group, window, soft_cap):
    config = AttentionConfig(
        group, 1, head_dim, 16, scale=0.2, soft_cap=soft_cap, windows=(window,)
    )
    requests = [(n, 1) for n in (1, 5, 6, 64, 65, 300)] + [(70, 70), (300, 20)]
    case = Case(cuda, module, config, FP16, requests)
    case.backend.plan(case.batch)
    case.check(case.backend.run(0, case.q, case.kv))


def test_plans_right_behind_each_other(cuda, module):
    """Nothing waits between them but the staging itself."""
    config = AttentionConfig(8, 2, 128, 16)
    case = Case(cuda, module, config, BF16, [(400 + n, 1) for n in range(64)])
    expected, outs = case.expected(), []
    orders = [torch.randperm(64).tolist() for _ in range(20)]
    for order in orders:
        batch = AttentionBatch.from_requests(
            [case.tables[i] for i in order], [400 + i for i in order], [1] * 64, 16
        )
        case.backend.plan(batch)
        outs.append(case.backend.run(0, case.q[order], case.kv))
    for order, out in zip(orders, outs, strict=True):
        torch.testing.assert_close(out.cpu().double(), expected[order], rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("dtype", "kv_dtype"), [(BF16, None), (FP16, None), (BF16, FP8)])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", [1, 3, 7, 8])
@pytest.mark.parametrize("page_size", [1, 16])
def test_shared_prefixes_equal_the_flat_path(
    cuda, module, monkeypatch, dtype, kv_dtype, head_dim, group, page_size
):
    monkeypatch.setattr(flashinfer_cascade, "SAVES", 1)
    config = AttentionConfig(2 * group, 2, head_dim, page_size, soft_cap=30.0)

    def share(tables):
        for table in tables[:8]:  # two levels, and one that shares nothing
            if table is not tables[3]:
                table[: 64 // page_size] = tables[0][: 64 // page_size]
        for table in tables[5:8]:
            table[: 256 // page_size] = tables[5][: 256 // page_size]

    requests = [(300 + 7 * i, 1) for i in range(8)] + [(50, 50)]
    case = Case(cuda, module, config, dtype, requests, kv_dtype, share)
    assert case.backend.shares(case.batch)
    case.backend.plan(case.batch)
    case.check(case.backend.run(0, case.q, case.kv))


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_states_are_merged_by_their_log_sum_exp(cuda, module, dtype):
    v, s = torch.randn(40, 5, 3, 64).to(dtype), 20 * torch.randn(40, 5, 3)
    s[3:20, 1:], s[20:30, :4] = -torch.inf, -torch.inf  # states that found nothing weigh nothing
    v[3:20, 1:], v[20:30, :4] = 0, 0
    merged, _ = module.merge_states(v.to(cuda.device), s.to(cuda.device))
    weights = (s.double() * math.log(2)).softmax(1)[..., None]
    expected = (weights * v.double()).sum(1)
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(merged.cpu().double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "kv_dtype", "window"), [(FP16, None, 0), (BF16, None, 0), (BF16, FP8, 20)]
)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize("page_size", [1, 16])
def test_graphs_equal_eager_runs(cuda, module, dtype, kv_dtype, window, head_dim, group, page_size):
    config = AttentionConfig(2 * group, 2, head_dim, page_size, windows=(window,))
    requests = [(n, 1) for n in (1, 17, 300, 16, 33)]
    case = Case(cuda, module, config, dtype, requests, kv_dtype)
    backend, num_pages = case.backend, case.kv.num_pages
    zeros = torch.zeros(page_size, 2, head_dim, device=cuda.device)
    # What padding sees is a number in an engine.
    case.kv.write(0, torch.arange(page_size, device=cuda.device), zeros, zeros)
    backend.prepare_graphs([8], pages=300)
    nobody = AttentionBatch.from_requests([], [], [], page_size).padded(8)
    backend.plan_graph(nobody, num_pages)
    q = torch.zeros(8, config.num_heads, head_dim, dtype=dtype, device=cuda.device)
    recording = cuda.record(lambda: backend.run(0, q, case.kv))
    for _ in range(3):
        q[:5] = case.q
        backend.plan_graph(case.batch.padded(8), num_pages)
        recording.replay()
        replayed = recording.output[:5].clone()
        case.check(replayed)
        backend.plan(case.batch)
        eager = backend.run(0, case.q, case.kv)
        case.check(eager)
        torch.testing.assert_close(replayed, eager, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_small_kernels(cuda, module, dtype):
    kind, device = FlashInferOps(module), cuda.device
    tolerance = 4 * TOLERANCE[dtype]

    def close(made, expected):
        torch.testing.assert_close(
            made.cpu().double(), expected.double(), rtol=tolerance, atol=tolerance
        )

    x = torch.randn(37, 576).to(dtype)
    weight = torch.randn(576).to(dtype)
    for plus_one in (False, True):
        made = kind.rms_norm(x.to(device), weight.to(device), 1e-5, plus_one=plus_one)
        close(made, ops.TORCH.rms_norm(x.double(), weight.double() + plus_one, 1e-5))
    for name in ops.ACTIVATIONS:
        close(kind.gated(name)(x.to(device)), ops.TORCH.gated(name)(x.double()))
    for rotated in (64, 32):
        both, radians = torch.randn(37, 15, 64).to(dtype), 100 * torch.rand(37, rotated // 2)
        angles = ops.TORCH.angles(radians.double(), 1.2, torch.float64)
        expected = ops.TORCH.rotate(both[:, :12].double(), 9, angles)
        there = both.to(device)
        angles = kind.angles(radians.to(device), 1.2, dtype)
        close(kind.rotate(there[:, :12], 9, angles), expected)
        assert torch.equal(there[:, 12:].cpu(), both[:, 12:])


@pytest.mark.parametrize("vocab", [500, 49152, 128256])
def test_filters(cuda, module, vocab):
    kind = FlashInferFilters(module)
    logits = 3 * torch.randn(vocab)
    for k in (1, 50, vocab - 1):
        made = kind.top_k(logits.to(cuda.device), k).cpu()
        assert torch.equal(made, filters.TORCH.top_k(logits, k))
    probs = logits.softmax(0)
    for p in (0.1, 0.9, 0.99):
        made = kind.top_p(probs.to(cuda.device), p).cpu()
        expected = filters.TORCH.top_p(probs, p)
        # Rounding of the sum may take in one token more or less.
        assert int(((made > 0) != (expected > 0)).sum()) <= max(1, vocab // 10000)
        both = (made > 0) & (expected > 0)
        torch.testing.assert_close(
            made[both] / made[both].sum(), expected[both] / expected[both].sum()
        )


def test_a_cache_on_the_device(cuda):
    for dtype in (BF16, FP16, FP8, E5M2):
        kv = KVCache(2, 5, 16, 2, 64, dtype, cuda.device)
        assert not kv.k(1).float().any()
        rows = torch.randn(3, 2, 64, device=cuda.device)
        kv.write(1, torch.tensor([16, 17, 70], device=cuda.device), rows, 2 * rows)
        assert torch.equal(kv.k(1)[1, 0].float(), rows[0].to(dtype).float())
        assert torch.equal(kv.v(1)[4, 6].float(), (2 * rows[2]).to(dtype).float())
        kv.copy_rows([Order(1, 3, 1), Order(3, 2, 16)])
        for page in (2, 3):
            assert torch.equal(kv.k(1)[page, 0].float(), rows[0].to(dtype).float())
            assert not kv.k(1)[page, 1:].float().any()
