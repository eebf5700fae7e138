"""What linear layers are measured to take, and that it moves no result."""

from dataclasses import asdict, fields

import pytest
import torch

from boughs.kernels import measure_layers
from boughs.kernels.layer_costs import DEFAULT, LayerCosts
from boughs.kernels.linear import Linear
from boughs.kernels.measure_layers import load, measure
from boughs.kernels.team import share
from boughs.kernels.weight import quantize
from boughs.kernels.workers import Workers

KINDS = ("float32", "bfloat16", "int8", "int4")


def test_defaults_are_within_bounds():
    assert set(LayerCosts.bounds) == {field.name for field in fields(LayerCosts)}
    for name, value in asdict(DEFAULT).items():
        low, high = LayerCosts.bounds[name]
        assert 0 < low < value < high


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_measured_is_within_bounds(kind):
    for name, value in asdict(measure(kind)).items():
        assert LayerCosts.bounds[name][0] <= value <= LayerCosts.bounds[name][1]


@pytest.mark.parametrize("encodes", [False, True])
def test_the_truth_is_found(monkeypatch, encodes):
    truth = LayerCosts(read=0.05, compute=0.02, encode=0.7)

    def taken(_, rows, __):
        size = measure_layers.SIZE
        product = size * size * (truth.read + rows * truth.compute)
        return [rows * size * truth.encode, product] if encodes else [product]

    monkeypatch.setattr(measure_layers, "_taken", taken)
    expected = asdict(truth) if encodes else {**asdict(truth), "encode": DEFAULT.encode}
    assert asdict(measure("int4")) == pytest.approx(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_costs_move_no_result_but_the_number_of_tasks(kind):
    torch.manual_seed(0)
    weight = quantize(torch.randn(400, 96).numpy(), kind)
    x = torch.randn(20, 96)
    workers = Workers(2)
    costs = [LayerCosts(1e-9, 1e-9, 1e-9), LayerCosts(1e3, 1e3, 1e3)]
    cheap, dear = (Linear(weight, None, workers, each) for each in costs)
    assert torch.equal(cheap(x), dear(x))
    tasks = [
        [share(cost[:1] + 20 * cost[1:], 2)[0] for cost in calls]
        for calls in (
            [torch.tensor(cost).double().numpy() for *_, cost in layer.calls(0, 96, 192)]
            for layer in (cheap, dear)
        )
    ]
    assert max(tasks[0]) == 1
    assert min(tasks[1]) == 8


def test_is_loaded_by_kind(tmp_path):
    first, where = load("int4", tmp_path)
    assert load("int4", tmp_path) == (first, where.split(",")[0])
    load("int8", tmp_path)
    assert sorted(path.name[:11] for path in tmp_path.glob("*.json")) == [
        "linear-int4",
        "linear-int8",
    ]
