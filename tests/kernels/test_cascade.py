"""Shared prefixes read once: what is found to be shared, and that results stay what they were."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.kernels import cut, pieces
from boughs.kernels.backend import AttentionConfig
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.cascade import find_sharing
from boughs.kernels.choice import make_backend
from boughs.kernels.costs import DEFAULT, Costs
from boughs.kernels.kv_cache import KVCache

TOLERANCE = 4e-6


class Forest:
    """Requests whose page tables share prefixes; the cache is NaN where no request has a row.

    Args:
        paths: Of each request, the branches that its prefix goes through, each so many pages.
        own: Of each request, the tokens behind its prefix, and how many of them are rows.
    """

    def __init__(
        self, paths, own, *, page_size, kv_heads, group, head_dim, seed=0,
        kv_dtype=torch.float32, **config,
    ):  # fmt: skip
        torch.manual_seed(seed)
        self.config = AttentionConfig(kv_heads * group, kv_heads, head_dim, page_size, **config)
        fresh = itertools.count(1)
        known = {}
        self.tables, self.kv_lens, self.q_lens = [], [], []
        for path, (tail, rows) in zip(paths, own, strict=True):
            table = []
            for depth, (branch, pages) in enumerate(path):
                key = (*path[:depth], (branch, pages))
                if key not in known:
                    known[key] = [next(fresh) for _ in range(pages)]
                table += known[key]
            self.kv_lens.append(len(table) * page_size + tail)
            table += [next(fresh) for _ in range(-(-tail // page_size))]
            self.tables.append(table)
            self.q_lens.append(rows)
        order = np.random.default_rng(seed).permutation(next(fresh))
        self.tables = [[int(order[page]) for page in table] for table in self.tables]
        self.kv = KVCache(1, len(order), page_size, kv_heads, head_dim, kv_dtype)
        for rows in (
            (self.kv.k_scales, self.kv.v_scales) if self.kv.scaled else (self.kv.k, self.kv.v)
        ):
            rows(0).fill_(torch.nan)
        written = {
            table[at // page_size] * page_size + at % page_size
            for table, length in zip(self.tables, self.kv_lens, strict=True)
            for at in range(length)
        }
        k, v = torch.randn(2, len(written), kv_heads, head_dim).unbind()
        self.kv.write(0, torch.tensor(sorted(written), dtype=torch.int64), k, v)
        self.q = torch.randn(sum(self.q_lens), kv_heads * group, head_dim)

    def batch(self):
        return AttentionBatch.from_requests(
            self.tables, self.kv_lens, self.q_lens, self.config.page_size
        )

    def run(self, name="cpu", *, cascade=False, threads=1, dtype=torch.float32, costs=DEFAULT):
        backend = make_backend(
            name, self.config, threads=threads, cascade=cascade, kv_dtype=self.kv.dtype, costs=costs
        )
        backend.plan(self.batch())
        return backend.run(0, self.q.to(dtype), self.kv)


@st.composite
def forests(draw):
    page_size = draw(st.sampled_from([1, 4, 16]))
    count = draw(st.integers(2, 9))
    lengths = {}
    paths = []
    for _ in range(count):
        path = ()
        for _ in range(draw(st.integers(0, 3))):
            branch = draw(st.integers(0, 2))
            pages = lengths.setdefault((*path, branch), draw(st.integers(1, 160 // page_size)))
            path = (*path, (branch, pages))
        paths.append(path)
    own = []
    for _ in range(count):
        tail = draw(st.integers(1, 40))
        own.append((tail, draw(st.sampled_from([0, 1, 1, 1, 1, min(3, tail), tail]))))
    return Forest(
        paths,
        own,
        page_size=page_size,
        kv_heads=draw(st.sampled_from([1, 3])),
        group=draw(st.sampled_from([1, 3, 8])),
        head_dim=draw(st.sampled_from([64, 80, 20])),
        seed=draw(st.integers(0, 2**32 - 1)),
        soft_cap=draw(st.sampled_from([0.0, 0.0, 5.0])),
        kv_dtype=draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8])),
    )


@settings(max_examples=60, deadline=None)
@given(forests(), st.integers(1, 2), st.booleans())
def test_cascade_equals_reference(forest, threads, split):
    """On trees of any depth, with all shared that can be, split as far as it goes, or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_pays", lambda *_: True)
        if split:
            for name, value in (
                ("FEW_BYTES", 1),
                ("FEW_PIECES", 1 << 30),
                ("MANY_POSITIONS", 1),
                ("VECTORS", 16),
            ):
                patch.setattr(cut, name, value)
        found = forest.run(cascade=True, threads=threads, costs=replace(DEFAULT, wake=1.0))
    expected = forest.run("reference", dtype=torch.float64)
    torch.testing.assert_close(found.double(), expected, atol=TOLERANCE, rtol=0)


@settings(max_examples=100, deadline=None)
@given(forests())
def test_what_is_shared(forest):
    """Nodes cover whole pages, which all their requests have, each from its beginning on."""
    batch = forest.batch()
    size = forest.config.page_size
    asked = [r for r, rows in enumerate(forest.q_lens) if rows]
    sharing = find_sharing(batch, asked, lambda *_: True)
    assert sorted(sharing.requests) == asked
    for at, request in enumerate(sharing.requests):
        mine = [node for node in sharing.nodes if node.first <= at < node.end]
        assert [node.kv_begin for node in mine] == [0, *(node.kv_end for node in mine)][: len(mine)]
        assert sharing.kv_begin[at] == (mine[-1].kv_end if mine else 0)
        assert sharing.kv_begin[at] <= forest.kv_lens[request] - forest.q_lens[request]
    for node in sharing.nodes:
        assert node.end - node.first >= 2
        span = slice(node.kv_begin // size, node.kv_end // size)
        tables = {tuple(forest.tables[r][span]) for r in sharing.requests[node.first : node.end]}
        assert len(tables) == 1
        assert len(next(iter(tables))) * size == node.kv_end - node.kv_begin > 0
    # Nothing is left that two of them could still share.
    for a, b in itertools.pairwise(range(len(sharing.requests))):
        first, second = (forest.tables[sharing.requests[i]] for i in (a, b))
        whole = min(
            (forest.kv_lens[sharing.requests[i]] - forest.q_lens[sharing.requests[i]]) // size
            for i in (a, b)
        )
        same = 0
        while same < whole and first[same] == second[same]:
            same += 1
        assert min(sharing.kv_begin[a], sharing.kv_begin[b]) >= same * size


def shared(count, pages, *, group=3, rows=1, **config):
    return Forest(
        [((0, pages),)] * count, [(5, rows)] * count, page_size=16, kv_heads=3, group=group,
        head_dim=64, **config,
    )  # fmt: skip


def positions_read(plan):
    """Positions of a KV head whose keys and values are read."""
    return sum((head_end - head) * (end - begin) for *_, head, head_end, begin, end, _, _ in plan)


@pytest.mark.parametrize("count", [8, 32])
def test_a_long_shared_prefix_is_read_once(count):
    forest = shared(count, 64)
    flat = pieces.divide(forest.batch(), forest.config)
    plan = pieces.divide(forest.batch(), forest.config, cascade=True)
    assert flat.rows is None
    assert positions_read(flat.pieces) == 3 * count * (64 * 16 + 5)
    assert positions_read(plan.pieces) == 3 * (64 * 16 + count * 5)


def test_where_it_does_not_pay_all_stays_as_it_is():
    for forest in (shared(2, 1), shared(1, 64), shared(3, 1)):
        plan = pieces.divide(forest.batch(), forest.config, cascade=True)
        assert plan.rows is None
        flat = forest.run()
        assert torch.equal(forest.run(cascade=True), flat)


def test_rows_of_a_prefill_take_no_part():
    forest = shared(4, 64, rows=1)
    mixed = Forest(
        [((0, 64),)] * 5, [(5, 1)] * 4 + [(300, 300)], page_size=16, kv_heads=3, group=3,
        head_dim=64,
    )  # fmt: skip
    plan = pieces.divide(mixed.batch(), mixed.config, cascade=True)
    expected = mixed.run("reference", dtype=torch.float64)
    torch.testing.assert_close(mixed.run(cascade=True).double(), expected, atol=TOLERANCE, rtol=0)
    assert plan.rows is not None
    assert forest.config == mixed.config


def test_layers_with_a_window_are_not_shared():
    forest = shared(8, 64, windows=(100,))
    assert pieces.divide(forest.batch(), forest.config, 100, cascade=True).rows is None
    assert torch.equal(forest.run(cascade=True), forest.run())


# Costs under which nothing is worth sharing but what is long, and under which everything is.
SHY = Costs(1.0, 1e-3, 1.0, 1e-3, 1e5, 1e4, 1e12)
BOLD = Costs(1e-3, 1e3, 1e-3, 1e3, 0.0, 0.0, 1.0)


@settings(max_examples=60, deadline=None)
@given(forests(), st.integers(1, 2))
def test_what_was_measured_moves_no_result_but_by_rounding(forest, threads):
    """Without cascade not even by that."""
    flat = [forest.run(threads=threads, costs=costs) for costs in (SHY, BOLD)]
    assert torch.equal(*flat)
    shared = [forest.run(cascade=True, threads=threads, costs=costs) for costs in (SHY, BOLD)]
    torch.testing.assert_close(*shared, atol=2 * TOLERANCE, rtol=0)


def test_such_costs_choose_otherwise():
    forest = shared(4, 2)
    plans = [
        pieces.divide(forest.batch(), forest.config, cascade=True, costs=costs)
        for costs in (SHY, BOLD)
    ]
    assert [plan.rows is None for plan in plans] == [True, False]
    long = shared(4, 64)
    tasks = [
        pieces.divide(long.batch(), long.config, costs=costs).tasks(2) for costs in (SHY, BOLD)
    ]
    assert len(tasks[0]) != len(tasks[1])
