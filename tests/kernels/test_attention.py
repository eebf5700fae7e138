"""Every attention backend against a naive one, and `cpu` against `reference` in float64.

The cache holds NaN wherever no request has a row, and where the window hides a row from all that
ask, so that a row read too many shows.
"""

import itertools
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.kernels import cpu, cut, few, pieces, tile
from boughs.kernels.backend import AttentionConfig
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.choice import make_backend
from boughs.kernels.costs import DEFAULT
from boughs.kernels.kv_cache import KVCache

LAYERS, LAYER = 2, 1
TOLERANCE = 4e-6  # of float32 sums of some hundred terms of size 1


EAGER = replace(DEFAULT, wake=1.0)  # every piece is a task

KV_DTYPES = (torch.float32, torch.bfloat16, torch.int8)


def poison(kv, layer, where=slice(None)):
    """Put NaN into rows of a cache; an int8 row takes it in its scale."""
    for rows in (kv.k_scales, kv.v_scales) if kv.scaled else (kv.k, kv.v):
        rows(layer)[where] = torch.nan


class Case:
    """A batch of requests, with their rows in a cache that is NaN elsewhere."""

    def __init__(
        self, requests, *, page_size, kv_heads, group, head_dim, seed, spare=3, window=0,
        kv_dtype=torch.float32, **config,
    ):  # fmt: skip
        torch.manual_seed(seed)
        self.config = AttentionConfig(
            kv_heads * group,
            kv_heads,
            head_dim,
            page_size,
            windows=(0, window) if window else (),
            **config,
        )
        counts = [-(-kv_len // page_size) for kv_len, _ in requests]
        num_pages = sum(counts) + spare
        pages = np.random.default_rng(seed).permutation(num_pages).tolist()
        self.tables = [[pages.pop() for _ in range(count)] for count in counts]
        self.requests = requests
        self.kv = KVCache(LAYERS, num_pages, page_size, kv_heads, head_dim, kv_dtype)
        for layer in range(LAYERS):
            poison(self.kv, layer)
            for table, (kv_len, _) in zip(self.tables, requests, strict=True):
                slots = torch.tensor(
                    [table[i // page_size] * page_size + i % page_size for i in range(kv_len)],
                    dtype=torch.int64,
                )
                k, v = torch.randn(2, kv_len, kv_heads, head_dim).unbind()
                self.kv.write(layer, slots, k, v)
            if self.config.window(layer):
                self.hide(layer)
        self.q = [torch.randn(q_len, kv_heads * group, head_dim) for _, q_len in requests]

    def hide(self, layer):
        """Put NaN where no row of a request looks."""
        size, window = self.config.page_size, self.config.window(layer)
        for table, (kv_len, q_len) in zip(self.tables, self.requests, strict=True):
            for i in range(max(0, kv_len - q_len + 1 - window)):
                poison(self.kv, layer, (table[i // size], i % size))

    def __repr__(self):
        return f"Case({self.requests}, {self.config})"

    def batch(self, *which):
        which = which or range(len(self.requests))
        return AttentionBatch.from_requests(
            [self.tables[i] for i in which],
            [self.requests[i][0] for i in which],
            [self.requests[i][1] for i in which],
            self.config.page_size,
        )

    def run(self, name, *which, layer=LAYER, threads=1, dtype=torch.float32, costs=DEFAULT):
        backend = make_backend(
            name, self.config, threads=threads, kv_dtype=self.kv.dtype, costs=costs
        )
        backend.plan(self.batch(*which))
        rows = torch.cat([self.q[i] for i in which or range(len(self.q))])
        return backend.run(layer, rows.to(dtype), self.kv)


def naive(case, layer=LAYER):
    """Attention of one query vector after another, in float64."""
    rows = []
    config = case.config
    for table, (kv_len, q_len), q in zip(case.tables, case.requests, case.q, strict=True):
        k, v = (x[:kv_len].numpy() for x in case.kv.read(layer, torch.tensor(table), torch.float64))
        for i in range(q_len):
            seen = kv_len - q_len + i + 1
            first = max(0, seen - (config.window(layer) or seen))
            for h in range(config.num_heads):
                head = h // (config.num_heads // config.num_kv_heads)
                scores = k[first:seen, head] @ q[i, h].double().numpy() * config.scale
                if config.soft_cap:
                    scores = np.tanh(scores / config.soft_cap) * config.soft_cap
                weights = np.exp(scores - scores.max())
                rows.append(weights @ v[first:seen, head] / weights.sum())
    return np.array(rows).reshape(-1, config.num_heads, config.head_dim)


@st.composite
def cases(draw):
    page_size = draw(st.sampled_from([1, 3, 8, 16, 64]))
    requests = []
    for _ in range(draw(st.integers(1, 5))):
        pages = draw(st.integers(0, 300 // page_size))
        kv_len = max(1, pages * page_size + draw(st.sampled_from([-1, 0, 1, page_size // 2])))
        q_len = draw(st.sampled_from([0, 1, 1, 2, 5, kv_len // 2, kv_len]))
        requests.append((kv_len, min(q_len, kv_len)))
    return Case(
        requests,
        page_size=page_size,
        kv_heads=draw(st.sampled_from([1, 2, 3])),
        group=draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 12])),
        head_dim=draw(st.sampled_from([64, 64, 80, 128, 256, 20])),
        seed=draw(st.integers(0, 2**32 - 1)),
        window=draw(st.sampled_from([0, 0, 1, 5, 16, 63, 64, 65, 100, 1000])),
        scale=draw(st.sampled_from([0.0, 0.0, 0.02, 0.08])),
        soft_cap=draw(st.sampled_from([0.0, 0.0, 1.5, 50.0])),
        kv_dtype=draw(st.sampled_from(KV_DTYPES)),
    )


@settings(max_examples=20, deadline=None)
@given(cases())
def test_reference_is_attention(case):
    found = case.run("reference", dtype=torch.float64).numpy()
    np.testing.assert_allclose(found, naive(case), atol=1e-12)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_cpu_equals_reference(case):
    expected = case.run("reference", dtype=torch.float64)
    torch.testing.assert_close(case.run("cpu").double(), expected, atol=TOLERANCE, rtol=0)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(1, 3))
def test_cpu_equals_reference_when_everything_is_split(case, threads):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut, "FEW_BYTES", 1)
        patch.setattr(cut, "FEW_PIECES", 1 << 30)
        patch.setattr(cut, "MANY_POSITIONS", 1)
        patch.setattr(cut, "VECTORS", 16)
        found = case.run("cpu", threads=threads, costs=EAGER)
    expected = case.run("reference", dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, atol=TOLERANCE, rtol=0)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(2, 3))
def test_neither_the_batch_nor_the_threads_move_a_result(case, threads):
    together = case.run("cpu", threads=threads, costs=EAGER)
    alone = torch.cat([case.run("cpu", i) for i in range(len(case.requests))])
    assert torch.equal(together, alone)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 300), st.integers(1, few.SPAN), st.sampled_from([1, 3, 16, 64]))
def test_runs_side_by_side_hold_each_position_in_its_place(begin, width, page_size):
    pages = np.random.default_rng(begin).permutation(500).astype(np.int32)
    offsets = np.full(2 * few.SPAN, -1, np.int64)
    count = tile.find_streams(pages, begin, width, page_size, 7, offsets, few.SPAN)
    assert count == -(-width // 16) * 16
    length = count // tile.STREAMS
    places = [begin + min(j * length + r, width - 1) for r in range(length) for j in range(8)]
    rows = [(pages[at // page_size] * page_size + at % page_size) * 7 for at in places]
    assert offsets[few.SPAN : few.SPAN + count].tolist() == rows
    assert set(offsets[: few.SPAN]) | set(offsets[few.SPAN + count :]) <= {-1}


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_long_context_is_split_and_merged(kv_dtype):
    requests = [(3000, 1), (2100, 2), (2300, 100), (1, 1), (1500, 9)]
    case = Case(requests, page_size=16, kv_heads=3, group=3, head_dim=64, seed=0, kv_dtype=kv_dtype)
    assert pieces.divide(case.batch(), case.config).merges
    expected = case.run("reference", dtype=torch.float64)
    found = case.run("cpu", threads=2)
    torch.testing.assert_close(found.double(), expected, atol=TOLERANCE, rtol=0)


def test_layers_have_windows_of_their_own():
    case = Case([(900, 1), (130, 40)], page_size=16, kv_heads=2, group=2, head_dim=64, seed=8)
    config = replace(case.config, windows=(100, 0))
    for name in ("cpu", "reference"):
        backend = make_backend(name, config)
        backend.plan(case.batch())
        for layer, window in enumerate((100, 0)):
            case.config = replace(config, windows=(window, window))
            found = backend.run(layer, torch.cat(case.q), case.kv)
            np.testing.assert_allclose(found.numpy(), naive(case, layer), atol=TOLERANCE)


@pytest.mark.parametrize("requests", [[(3000, 1)], [(2500, 300)]])
def test_a_window_cuts_what_is_read(requests):
    """Pieces cover the positions that some row of theirs sees, and no other."""
    case = Case(requests, page_size=16, kv_heads=1, group=4, head_dim=64, seed=9)
    for window in (1, 64, 1000, 5000):
        plan = pieces.divide(case.batch(), case.config, window)
        for _, row, row_end, _, _, begin, end, position, _ in plan.pieces:
            assert max(0, position + 1 - window) <= begin < end <= position + row_end - row
        (kv_len, q_len), rows = requests[0], {}
        for _, row, row_end, *_, begin, end, position, _ in plan.pieces:
            rows.setdefault((row, row_end, position), []).append((begin, end))
        for (row, row_end, position), ranges in rows.items():
            assert ranges[0][0] == max(0, position + 1 - window)
            assert ranges[-1][1] == position + row_end - row
            assert all(one[1] == other[0] for one, other in itertools.pairwise(ranges))
        assert max(end for _, end, _ in rows) == q_len
        assert max(position + end - row for row, end, position in rows) == kv_len


@pytest.mark.parametrize("q_len", [1, 30])
@pytest.mark.parametrize("size", [1e-4, 0.1, 1.0, 40.0])
def test_soft_caps_of_scores_of_any_size(q_len, size):
    case = Case(
        [(200, q_len)], page_size=16, kv_heads=1, group=3, head_dim=64, seed=3, soft_cap=5.0
    )
    case.q = [q * size for q in case.q]
    expected = case.run("reference", dtype=torch.float64)
    torch.testing.assert_close(case.run("cpu").double(), expected, atol=TOLERANCE, rtol=0)


def test_what_the_output_held_before_does_not_matter(monkeypatch):
    def poisoned(shape, dtype):
        return np.full(shape, np.nan, dtype)

    monkeypatch.setattr(cpu, "np", types.SimpleNamespace(**{**vars(np), "empty": poisoned}))
    requests = [(2000, 1), (40, 40), (2500, 30), (7, 0)]
    case = Case(requests, page_size=16, kv_heads=2, group=3, head_dim=80, seed=1)
    assert not case.run("cpu").isnan().any()


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_queries_may_lie_apart(name):
    case = Case([(40, 3), (9, 9)], page_size=8, kv_heads=2, group=2, head_dim=64, seed=2)
    backend = make_backend(name, case.config)
    backend.plan(case.batch())
    rows = torch.cat(case.q)
    apart = torch.full((12, 9, 64), torch.nan)[:, 3:7]
    apart.copy_(rows)
    found = backend.run(0, apart, case.kv)
    assert torch.equal(found, backend.run(0, rows, case.kv))
    assert found.is_contiguous()


@pytest.mark.parametrize("q_len", [1, 30])
@pytest.mark.parametrize("size", [1e-3, 1.0, 40.0])
def test_scores_of_any_size(q_len, size):
    case = Case([(200, q_len)], page_size=16, kv_heads=1, group=3, head_dim=64, seed=3)
    case.q = [q * size for q in case.q]
    expected = case.run("reference", dtype=torch.float64)
    # A score of size s has an error of about s * 1e-7, which its weight takes over.
    torch.testing.assert_close(case.run("cpu").double(), expected, atol=1e-5 * max(1, size), rtol=0)


@pytest.mark.parametrize("q_len", [1, 30])
def test_a_far_smaller_score_weighs_nothing(q_len):
    case = Case([(100, q_len)], page_size=16, kv_heads=1, group=2, head_dim=64, seed=4)
    page = case.tables[0][0]
    case.q = [torch.ones_like(q) * 50 for q in case.q]
    for j in range(100):
        table, row = case.tables[0][j // 16], j % 16
        case.kv.k(1)[table, row] = 50.0 if j == 0 else -50.0
    expected = case.kv.v(1)[page, 0, 0].expand(q_len, 2, 64)
    torch.testing.assert_close(case.run("cpu"), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("q_len", [1, 30])
@pytest.mark.parametrize("where", ["q", "k", "v"])
@pytest.mark.parametrize("soft_cap", [0.0, 2.0])
def test_nan_stays_nan(q_len, where, soft_cap):
    case = Case(
        [(100, q_len)],
        page_size=16,
        kv_heads=1,
        group=2,
        head_dim=64,
        seed=5,
        soft_cap=soft_cap,
    )
    if where == "q":
        case.q[0][-1, 0, 3] = torch.nan
    else:
        getattr(case.kv, where)(1)[case.tables[0][0], 0, 0] = torch.nan
    assert case.run("cpu")[-1, 0].isnan().any()


def test_an_empty_batch():
    case = Case([(5, 0)], page_size=8, kv_heads=1, group=1, head_dim=64, seed=6)
    for name in ("cpu", "reference"):
        assert case.run(name).shape == (0, 1, 64)


def test_refusals():
    case = Case([(20, 2)], page_size=8, kv_heads=1, group=2, head_dim=64, seed=7)
    for name in ("cpu", "reference"):
        backend = make_backend(name, case.config)
        with pytest.raises(ValueError, match="before plan"):
            backend.run(0, case.q[0], case.kv)
        with pytest.raises(ValueError, match="pages of 4 tokens"):
            backend.plan(AttentionBatch.from_requests([[1]], [1], [1], 4))
        backend.plan(case.batch())
        with pytest.raises(ValueError, match="queries of shape"):
            backend.run(0, case.q[0][:1], case.kv)
        with pytest.raises(ValueError, match="a cache of"):
            backend.run(0, case.q[0], KVCache(1, 9, 8, 2, 64))
        with pytest.raises(ValueError, match="page ids"):
            backend.run(0, case.q[0], KVCache(1, max(case.tables[0]), 8, 1, 64))
    with pytest.raises(ValueError, match="float32"):
        case.run("cpu", dtype=torch.float64)
    backend = make_backend("cpu", case.config, kv_dtype=torch.int8)
    backend.plan(case.batch())
    with pytest.raises(ValueError, match="over int8, got float32 over float32"):
        backend.run(0, case.q[0], case.kv)
    with pytest.raises(ValueError, match="reads float32, bfloat16, int8, not float16"):
        make_backend("cpu", case.config, kv_dtype=torch.float16)


def test_names():
    config = AttentionConfig(4, 2, 64, 16)
    assert make_backend("auto", config).name == "cpu"
    assert make_backend("auto", config).why
    with pytest.raises(ValueError, match="auto, flashinfer, cpu, reference"):
        make_backend("gpu", config)
    with pytest.raises(ValueError, match="cannot be shared"):
        AttentionConfig(4, 3, 64, 16)
    with pytest.raises(ValueError, match="at least 1"):
        AttentionConfig(4, 2, 0, 16)
    with pytest.raises(ValueError, match="negative"):
        AttentionConfig(4, 2, 64, 16, windows=(0, -1))
    with pytest.raises(ValueError, match="negative"):
        AttentionConfig(4, 2, 64, 16, soft_cap=-1.0)
    assert config.scale == 0.125
    assert config.window(7) == 0
