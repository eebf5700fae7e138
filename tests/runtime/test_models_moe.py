"""A mixture of experts against the sum over one token and one expert after another."""

import torch
from hypothesis import given, settings, strategies as st
from torch.nn.functional import linear

from boughs.kernels.ops import TORCH
from boughs.runtime.models.mlp import GatedMlp
from boughs.runtime.models.moe import SparseMlp

HIDDEN, INNER = 12, 8


class Matrix:
    """A layer in float32, whose weight can be looked at."""

    def __init__(self, weight):
        self.weight = weight

    def __call__(self, x):
        return linear(x, self.weight)


def make(experts, chosen, normalize, seed):
    draw = torch.Generator().manual_seed(seed)

    def matrix(rows, columns):
        return Matrix(torch.randn(rows, columns, generator=draw) / columns**0.5)

    return SparseMlp(
        router=matrix(experts, HIDDEN),
        experts=[
            GatedMlp(TORCH.gated("silu"), matrix(2 * INNER, HIDDEN), matrix(HIDDEN, INNER))
            for _ in range(experts)
        ],
        chosen=chosen,
        normalize=normalize,
    )


def naive(mlp, token):
    probabilities = (mlp.router.weight.double() @ token).softmax(0)
    best = sorted(range(len(mlp.experts)), key=lambda e: -probabilities[e])[: mlp.chosen]
    total = sum(probabilities[e] for e in best) if mlp.normalize else 1.0
    out = torch.zeros(HIDDEN, dtype=torch.float64)
    for e in best:
        gate, up = (mlp.experts[e].gate_up.weight.double() @ token).split(INNER)
        made = mlp.experts[e].down.weight.double() @ (gate * gate.sigmoid() * up)
        out += probabilities[e] / total * made
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 20),
    st.integers(0, 2**32 - 1),
)
def test_experts_are_summed_up(experts, chosen, normalize, tokens, seed):
    mlp = make(experts, min(chosen, experts), normalize, seed)
    x = torch.randn(tokens, HIDDEN, generator=torch.Generator().manual_seed(seed + 1))
    found = mlp(x)
    assert found.shape == x.shape
    for row, token in zip(found, x, strict=True):
        torch.testing.assert_close(row.double(), naive(mlp, token.double()), atol=1e-5, rtol=0)
        # Alone as together.
        torch.testing.assert_close(mlp(token[None])[0], row, atol=1e-5, rtol=0)
