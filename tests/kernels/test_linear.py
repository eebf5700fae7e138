"""Linear layers against a product in float64, and what they promise beyond it."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings, strategies as st

from boughs.kernels import digits, team
from boughs.kernels.linear import Linear, Stack
from boughs.kernels.weight import DTYPES, quantize
from boughs.kernels.workers import Workers

KINDS = sorted(DTYPES)
WORKERS = {threads: Workers(threads) for threads in (1, 3)}
sizes = st.integers(1, 70) | st.sampled_from([96, 127, 128, 576, 600, 1100])
rows_of = st.integers(1, 12) | st.sampled_from([24, 25, 31, 64, 300])


@pytest.fixture(scope="module", params=["digits", "floats"], autouse=True)
def arithmetic(request):
    """With what this CPU has, and as on one that multiplies no bytes."""
    if request.param == "digits":
        if not digits.AVAILABLE:
            pytest.skip("as floats")
        yield
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(digits, "AVAILABLE", False)
            yield


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weight_of(kind, outputs, inputs, seed=0):
    return quantize(draw(seed, outputs, inputs).numpy(), kind)


def product(x, weight, bias=None):
    """In float64, and the size that its errors are measured by."""
    matrix = torch.from_numpy(weight.dequantize()).double()
    shift = 0 if bias is None else bias.double()
    return x.double() @ matrix.T + shift, x.double().abs() @ matrix.abs().T + 1


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KINDS),
    sizes,
    sizes,
    rows_of,
    st.booleans(),
    st.sampled_from(sorted(WORKERS)),
    st.integers(0, 99),
)
@example("int4", 576, 12, 300, False, 1, 37)
def test_is_a_product(kind, outputs, inputs, rows, biased, threads, seed):
    weight = weight_of(kind, outputs, inputs, seed)
    bias = draw(seed + 1, outputs) if biased else None
    x = draw(seed + 2, rows, inputs)
    found = Linear(weight, bias, WORKERS[threads])(x)
    expected, size = product(x, weight, bias)
    assert found.shape == (rows, outputs)
    assert found.dtype == torch.float32
    # Where rows are written in 22 bits, the largest of 32 inputs sets the last of them.
    most = x.double().abs().amax(1, keepdim=True)
    weights = torch.from_numpy(weight.dequantize()).double().abs().sum(1)
    assert ((found.double() - expected).abs() <= 1e-6 * size + 2.0**-22 * most * weights).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threads", sorted(WORKERS))
def test_a_row_depends_neither_on_others_nor_on_threads(kind, threads, monkeypatch):
    monkeypatch.setattr(team, "LEAST", 1.0)  # else these are too small for threads
    weight, bias, x = weight_of(kind, 333, 1100), draw(1, 333), draw(2, 70, 1100)
    alone = Linear(weight, bias, WORKERS[1])
    expected = torch.cat([alone(row[None]) for row in x])
    layer = Linear(weight, bias, WORKERS[threads])
    for rows in (1, 2, 4, 5, 8, 9, 16, 23, 24, 25, 26, 70):
        assert torch.equal(layer(x[:rows]), expected[:rows]), rows
        assert torch.equal(layer(x[-rows:]), expected[-rows:]), rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [1, 6, 40])
def test_nan_stays_in_its_row(kind, rows):
    layer = Linear(weight_of(kind, 50, 70), None, WORKERS[1])
    x = draw(0, rows, 70)
    x[rows // 2, 69] = torch.nan
    found = layer(x)
    assert found[rows // 2].isnan().all()
    assert found.isnan().sum() == 50


@pytest.mark.parametrize("kind", KINDS)
def test_memory_behind_the_rows_is_not_read(kind):
    """Rows of a width that no group divides lie in a larger array of NaN."""
    weight = weight_of(kind, 20, 45)
    x = torch.full((9, 64), torch.nan)
    x[:, :45] = draw(1, 9, 45)
    assert torch.equal(
        Linear(weight, None, WORKERS[1])(x[:, :45]),
        Linear(weight, None, WORKERS[1])(x[:, :45].clone()),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_the_weight_are_the_numbers_it_multiplies_with(kind):
    """An embedding and a head of one matrix are the same numbers, to the last bit."""
    weight = weight_of(kind, 100, 75)
    layer = Linear(weight, None, WORKERS[1])
    index = torch.tensor([0, 99, 17, 17, 64])
    found = layer.rows(index)
    assert np.array_equal(found.numpy(), weight.dequantize()[index])
    assert torch.equal(layer(torch.eye(75)).T[index], found)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 40)), min_size=2, max_size=4))
def test_layers_side_by_side(parts):
    layers = [Linear(weight_of(kind, n, 64), draw(n, n), WORKERS[1]) for kind, n in parts]
    x = draw(1, 3, 64)
    assert torch.equal(Stack(layers)(x), torch.cat([layer(x) for layer in layers], dim=1))


def test_no_rows():
    layer = Linear(weight_of("int4", 3, 2), None, WORKERS[3])
    assert layer(torch.ones(0, 2)).shape == (0, 3)
    assert layer.rows(torch.zeros(0, dtype=torch.int64)).shape == (0, 2)


def test_what_does_not_fit_is_refused():
    weight = weight_of("int8", 3, 2)
    with pytest.raises(ValueError, match="bias"):
        Linear(weight, torch.ones(2), WORKERS[1])
    layer = Linear(weight, None, WORKERS[1])
    for x in (torch.ones(1, 3), torch.ones(1, 2).double(), torch.ones(2)):
        with pytest.raises(ValueError, match="rows are float32"):
            layer(x)
