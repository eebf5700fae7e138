"""Masks of many matchers at once are those of each."""

import numpy as np
import pytest

from boughs.kernels.bitmask import pack
from boughs.lang.errors import GrammarError
from boughs.runtime.constraints.compiler import GrammarCompiler
from boughs.runtime.constraints.masks import Masks

VOCAB, EOS = 384, 2


@pytest.fixture(scope="module", params=[1, 3])
def grammars(tiny_model, request):
    compiler = GrammarCompiler(tiny_model, VOCAB, (EOS,), mask_threads=request.param)
    yield compiler
    compiler.close()


def test_masks_of_a_step_are_those_of_each_matcher(grammars):
    masks = Masks(VOCAB)
    sources = ["[ab]c", "a+b?", "x{3}y", "(one|two)"] * 3
    matchers = [grammars.matcher("regex", source) for source in sources]
    draw = np.random.default_rng(0)
    for _ in range(4):
        going = [matcher for matcher in matchers if not matcher.complete]
        masks.begin(going)
        bits = masks.take()
        for matcher, mask in zip(going, bits, strict=True):
            allowed = matcher.mask(VOCAB)
            assert (mask == pack(allowed)).all()
            matcher.accept(int(draw.choice(np.flatnonzero(allowed))))
    masks.close()


def test_the_error_of_one_matcher_leaves_the_others(grammars):
    heavy = grammars.matcher("regex", "(?:[a-z]{1,9}|[0-9a-f]{1,9}){1,40}")
    light = grammars.matcher("regex", "[ab]c")
    masks = Masks(VOCAB)
    heavy.state.consume_token(EOS)  # which it does not allow: an error that stays
    masks.begin([heavy, light])
    bits = masks.take()
    light.check()
    assert (bits[1] == pack(light.mask(VOCAB))).all()
    with pytest.raises(GrammarError, match=r"^regex: "):
        heavy.check()
    masks.close()


def test_a_fault_of_the_filling_thread_reaches_who_waits_for_it(grammars):
    masks = Masks(VOCAB)
    matcher = grammars.matcher("regex", "[ab]c")
    masks.begin([matcher, matcher])  # which two threads may not use at once
    with pytest.raises(RuntimeError, match="borrowed"):
        masks.take()
    masks.begin([matcher])
    assert (masks.take()[0] == pack(matcher.mask(VOCAB))).all()
    masks.close()
