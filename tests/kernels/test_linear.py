"""Linear layers against a product in float64, and what they promise beyond it."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.kernels import linear
from boughs.kernels.linear import Linear
from boughs.kernels.workers import Workers

sizes = st.integers(1, 40) | st.sampled_from([63, 64, 65, 128, 130, 300, 600])


@settings(max_examples=80, deadline=None)
@given(sizes, sizes, st.sampled_from([1, 2, 3, 4, 5, 8, 9, 33]), st.booleans(), st.integers(0, 99))
def test_is_a_product(outputs, inputs, rows, biased, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(outputs, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator) if biased else None
    x = torch.randn(rows, inputs, generator=generator)
    layer = Linear(weight, bias, Workers(1))
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    found = layer(x)
    assert found.shape == (rows, outputs)
    terms = x.abs() @ weight.abs().T + (0 if bias is None else bias.abs())
    assert ((found - expected).abs() <= 2e-6 * terms).all()
    index = torch.randint(outputs, (7,), generator=generator)
    assert torch.equal(layer.rows(index), weight[index])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_row_does_not_depend_on_the_others_nor_on_threads(threads, monkeypatch):
    monkeypatch.setattr(linear, "INLINE", 1.0)
    torch.manual_seed(0)
    weight, bias, x = torch.randn(333, 700), torch.randn(333), torch.randn(40, 700)
    alone = Linear(weight, bias, Workers(1))
    expected = torch.cat([alone(row[None]) for row in x])
    layer = Linear(weight, bias, Workers(threads))
    for rows in (1, 2, 5, 8, 9, 40):
        assert torch.equal(layer(x[:rows]), expected[:rows])


def test_inputs_may_lie_apart():
    torch.manual_seed(1)
    layer = Linear(torch.randn(20, 8), None, Workers(1))
    x = torch.randn(5, 3, 8)[:, 1]
    assert torch.equal(layer(x), layer(x.contiguous()))


def test_nan_stays_in_its_row():
    layer = Linear(torch.ones(70, 5), None, Workers(1))
    x = torch.ones(6, 5)
    x[2, 1] = torch.nan
    found = layer(x)
    assert found[2].isnan().all()
    assert found.isnan().sum() == 70


def test_no_rows():
    assert Linear(torch.ones(3, 2), None, Workers(1))(torch.ones(0, 2)).shape == (0, 3)


def test_refusals():
    workers = Workers(1)
    with pytest.raises(ValueError, match="float32"):
        Linear(torch.ones(3, 2).double(), None, workers)
    with pytest.raises(ValueError, match="bias"):
        Linear(torch.ones(3, 2), torch.ones(2), workers)
    layer = Linear(torch.ones(3, 2), None, workers)
    with pytest.raises(ValueError, match="inputs"):
        layer(torch.ones(1, 3))
    with pytest.raises(ValueError, match="inputs"):
        layer(torch.ones(1, 2).double())
