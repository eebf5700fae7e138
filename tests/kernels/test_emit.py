"""Instructions that a CPU may lack, in both of their forms."""

import numpy as np
import pytest
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from boughs.kernels import emit
from boughs.kernels.emit import LANES, Emit


@intrinsic
def widen(typing_context, halves, start, out):
    """Write LANES float16, which are given as uint16, as floats."""

    def generate(context, builder, signature, args):
        made = Emit(context, builder, signature, args)
        kind = ir.VectorType(ir.IntType(16), LANES).as_pointer()
        place = builder.bitcast(made.at(made.data(0), args[1]), kind)
        made.store(made.half(builder.load(place, align=2)), made.at(made.data(2), args[1]))
        return context.get_dummy_value()

    return types.void(halves, types.intp, out), generate


@pytest.mark.parametrize("features", [emit.FEATURES, frozenset()], ids=["this CPU", "any"])
def test_every_finite_float16(features, monkeypatch):
    monkeypatch.setattr(emit, "FEATURES", features)
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    out = np.zeros(halves.size, np.float32)

    @njit
    def run(bits, out):
        for i in range(0, len(bits), LANES):
            widen(bits, i, out)

    run(halves.view(np.uint16), out)
    assert np.array_equal(out.view(np.uint32), halves.astype(np.float32).view(np.uint32))
