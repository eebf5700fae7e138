"""What is measured of attention: it is within bounds, and says what it is to say of any clock."""

from dataclasses import asdict, fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.kernels import costs, host
from boughs.kernels.backend import AttentionConfig
from boughs.kernels.costs import DEFAULT, Costs, Sample, load, measure
from boughs.kernels.paged import is_few, run_pieces

CONFIG = AttentionConfig(9, 3, 64, 16)


def test_defaults_are_within_bounds():
    assert set(Costs.bounds) == {field.name for field in fields(Costs)}
    for name, value in asdict(DEFAULT).items():
        low, high = Costs.bounds[name]
        assert 0 < low < value < high


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        AttentionConfig(4, 4, 20, 8),  # never few
        AttentionConfig(64, 1, 64, 16),  # never few, either
        AttentionConfig(48, 1, 64, 16),  # few, but for one row alone
        AttentionConfig(8, 1, 256, 1, soft_cap=50.0, windows=(7, 0)),
    ],
)
def test_what_is_measured_is_within_bounds(config):
    for name, value in asdict(measure(config, torch.float32)).items():
        assert Costs.bounds[name][0] <= value <= Costs.bounds[name][1]


def simulated(monkeypatch, truth, config):
    """Have pieces and merges take what `truth` says, on a clock of its own."""
    now, group = [0.0], config.num_heads // config.num_kv_heads

    def run(pieces, first, end, q, *_):
        for _, row, row_end, head, head_end, begin, stop, *_ in pieces[first:end]:
            rows, heads = row_end - row, head_end - head
            few = is_few(rows * group, config.head_dim)
            each = truth.position(rows * group, config.head_dim, few=few)
            now[0] += truth.piece + heads * (stop - begin) * each

    def merge(merges, sources, parts, group, out):
        now[0] += truth.part * len(parts)

    monkeypatch.setattr(costs, "run_pieces", lambda _: run)
    monkeypatch.setattr(costs, "merge_parts", lambda: merge)
    monkeypatch.setattr(costs.time, "thread_time_ns", lambda: now[0])
    monkeypatch.setattr(costs, "_wake", lambda: truth.wake)
    monkeypatch.setattr(host, "cores", lambda: 2)


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(*(st.floats(1, 2) for _ in fields(Costs))),
    st.sampled_from([CONFIG, AttentionConfig(16, 16, 128, 16), AttentionConfig(8, 1, 64, 16)]),
)
def test_the_truth_is_found(factors, config):
    values = asdict(DEFAULT).values()
    truth = Costs(*(value * factor for value, factor in zip(values, factors, strict=True)))
    with pytest.MonkeyPatch.context() as patch:
        simulated(patch, truth, config)
        found = measure(config, torch.float32)
    assert asdict(found) == pytest.approx(asdict(truth), rel=0.01)


def test_one_core_wakes_nobody(monkeypatch):
    simulated(monkeypatch, DEFAULT, CONFIG)
    monkeypatch.setattr(host, "cores", lambda: 1)
    monkeypatch.setattr(costs, "_wake", lambda: pytest.fail("woken"))
    assert measure(CONFIG, torch.float32).wake == DEFAULT.wake


@pytest.mark.parametrize("slower", [1e-6, 1e6])
def test_a_clock_that_is_wrong_leads_to_no_absurd_costs(monkeypatch, slower):
    truth = Costs(30 / slower, 160 / slower, 20 / slower, 200 / slower, 2e3 * slower, 40 * slower)
    simulated(monkeypatch, truth, CONFIG)
    for name, value in asdict(measure(CONFIG, torch.float32)).items():
        assert Costs.bounds[name][0] <= value <= Costs.bounds[name][1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_sample_computes_attention(dtype, rows):
    """What is timed is attention over all positions: as the plain sum of weighted values."""
    sample = Sample(CONFIG, dtype)
    few = is_few(rows * 3, 64)
    arguments = sample.arguments(rows, by_head=not few)
    run_pieces(dtype)(*arguments)
    out, parts = arguments[-2:]
    assert np.isfinite(parts).all()
    cut = sample.arguments(rows, by_head=not few, cut=True)
    run_pieces(dtype)(*cut)
    merged = costs.merge_parts()
    each = rows * 9
    sources = [(0, rows, 0, part * each) for part in range(sample.positions // 64)]
    if few:
        merge = np.array([(0, rows, 0, 3, 0, len(sources))], np.int32)
        merged(merge, np.array(sources, np.int32), cut[-1], 3, out)
        whole = parts.reshape(3, rows, 3, -1).transpose(1, 0, 2, 3).reshape(rows, 9, -1)
        np.testing.assert_allclose(out, whole[..., :64] / whole[..., 65:], atol=1e-5)


def test_is_loaded_by_shape_and_kind(tmp_path):
    first, where = load(CONFIG, torch.float32, tmp_path)
    assert load(CONFIG, torch.float32, tmp_path) == (first, where.split(",")[0])
    load(AttentionConfig(9, 3, 64, 16, soft_cap=1.0), torch.float32, tmp_path)
    load(AttentionConfig(8, 2, 64, 16), torch.float32, tmp_path)
    load(CONFIG, torch.int8, tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 4
    # Neither pages nor windows are part of it.
    load(AttentionConfig(9, 3, 64, 1, windows=(3,)), torch.float32, tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 4
