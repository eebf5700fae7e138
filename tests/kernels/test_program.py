"""Programs of calls against the same in torch; and that threads, late ones too, change nothing."""

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.kernels import team
from boughs.kernels.backend import AttentionConfig
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.choice import make_backend
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.linear import Linear
from boughs.kernels.ops import TORCH
from boughs.kernels.program import Norm, Program, Rope, Unrecordable
from boughs.kernels.weight import quantize
from boughs.kernels.workers import Workers

WORKERS = {threads: Workers(threads) for threads in (1, 3)}
HEADS = 4, 2, 16
HIDDEN, INNER = 64, 96
EPS = 1e-5


KINDS = [torch.float32, torch.bfloat16, torch.int8]


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer_of(outputs, inputs, seed, workers, kind="int4"):
    weight = quantize((draw(seed, outputs, inputs) / inputs**0.5).numpy(), kind)
    return Linear(weight, draw(seed + 1, outputs), workers)


class Block:
    """One layer of a model, as calls and in torch."""

    def __init__(
        self, workers, *, act="silu", window=0, head_norm=False, rotated=16, cascade=False
    ):
        heads, kv_heads, dim = HEADS
        both = (heads + 2 * kv_heads) * dim
        self.qkv = layer_of(both, HIDDEN, 1, workers)
        self.output = layer_of(HIDDEN, heads * dim, 3, workers)
        self.up = layer_of(2 * INNER, HIDDEN, 5, workers, "int8")
        self.down = layer_of(HIDDEN, INNER, 7, workers, "float32")
        self.norms = [draw(seed, HIDDEN) for seed in (9, 10, 11)]
        self.head_norm = draw(12, heads + kv_heads, dim) if head_norm else None
        self.act, self.window, self.rotated = act, window, rotated
        self.config = AttentionConfig(heads, kv_heads, dim, 4, windows=(0, window))
        self.backend = make_backend("cpu", self.config, threads=2, cascade=cascade)
        self.plain = make_backend("reference", self.config)
        self.program = Program(workers)
        self.record(self.program)

    def record(self, program):
        x = program.buffer("x", HIDDEN)
        first, second, last = (Norm(weight.numpy(), EPS) for weight in self.norms)
        norm = None if self.head_norm is None else Norm(self.head_norm.numpy(), EPS)
        qkv = program.linear(self.qkv, program.norm(x, first), "qkv")
        mixed = program.attention(
            qkv, HEADS, 1, window=self.window, rope=Rope("r", self.rotated), norm=norm
        )
        more = program.linear(self.output, mixed, "output")
        up = program.linear(self.up, program.norm(x, second, add=more), "up")
        more = program.linear(self.down, program.gate(up, self.act), "down")
        program.finish(x, program.norm(x, last, add=more))

    def angles(self, positions):
        frequencies = 0.3 ** torch.arange(self.rotated // 2)
        return TORCH.angles(positions[:, None].float() * frequencies, 1.0, torch.float32)

    def run(self, x, step, kv):
        self.backend.plan(step.batch)
        angles = torch.cat(self.angles(step.positions)).numpy()
        records = self.backend.records(kv)
        found = self.program.run(x.numpy(), kv, step.slots.numpy(), {"r": angles}, records)
        return torch.from_numpy(found)

    def expected(self, x, step, kv):
        heads, kv_heads, dim = HEADS
        norm = torch.nn.functional.rms_norm
        self.plain.plan(step.batch)
        both = self.qkv(norm(x, (HIDDEN,), self.norms[0], EPS)).view(len(x), -1, dim)
        turned, v = both[:, : heads + kv_heads], both[:, heads + kv_heads :]
        if self.head_norm is not None:
            turned = norm(turned, (dim,), None, EPS) * self.head_norm
        turned = TORCH.rotate(turned, heads, self.angles(step.positions))
        kv.write(1, step.slots, turned[:, heads:], v)
        x = x + self.output(self.plain.run(1, turned[:, :heads], kv).flatten(1))
        up = self.up(norm(x, (HIDDEN,), self.norms[1], EPS))
        return norm(x + self.down(TORCH.gated(self.act)(up)), (HIDDEN,), self.norms[2], EPS)


class Step:
    """Requests of (tokens before, new tokens); those before are random in the cache."""

    def __init__(self, requests, *, shared=0):
        size, free = 4, iter(range(1, 10_000))
        common = [next(free) for _ in range(shared)]
        tables = []
        for before, new in requests:
            pages = -(-(before + new) // size)
            tables.append(common[:pages] + [next(free) for _ in range(pages - len(common))])
        self.batch = AttentionBatch.from_requests(
            tables, [sum(r) for r in requests], [new for _, new in requests], size
        )
        positions = [range(before, before + new) for before, new in requests]
        self.positions = torch.tensor([p for each in positions for p in each])
        self.slots = torch.tensor(
            [
                t[p // size] * size + p % size
                for t, each in zip(tables, positions, strict=True)
                for p in each
            ]
        )
        self.pages = next(free)

    def cache(self, kind=torch.float32):
        kv = KVCache(2, self.pages, 4, HEADS[1], HEADS[2], kind)
        for layer in range(2):
            k, v = draw(20 + layer, 2, self.pages * 4, *HEADS[1:])
            kv.write(layer, torch.arange(self.pages * 4), k, v)
        return kv


SHAPES = {
    "plain": {},
    "window": {"window": 5},
    "gelu": {"act": "gelu_pytorch_tanh"},
    "head norm": {"head_norm": True},
    "part of a head rotated": {"rotated": 8},
}


@pytest.fixture(scope="module", params=SHAPES)
def block(request):
    return Block(WORKERS[3], **SHAPES[request.param])


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from([1, 1, 1, 2, 7, 40])), min_size=1, max_size=6
    ),
    st.integers(0, 99),
)
def test_is_what_torch_computes(block, requests, seed):
    step = Step(requests)
    x = draw(seed, len(step.slots), HIDDEN)
    kv, other = step.cache(), step.cache()
    torch.testing.assert_close(
        block.run(x, step, kv), block.expected(x, step, other), atol=2e-5, rtol=2e-5
    )
    torch.testing.assert_close(kv._data, other._data, atol=2e-5, rtol=2e-5)


def test_rows_that_cascade_puts_in_another_order():
    block = Block(WORKERS[1], cascade=True)
    requests = [(3, 1), (1400, 1), (9, 5), (1401, 1), (1402, 1), (1405, 1)]
    step = Step(requests, shared=340)
    x = draw(0, len(step.slots), HIDDEN)
    kv, other = step.cache(), step.cache()
    found = block.run(x, step, kv)
    assert block.backend.records(kv)[0].tasks[2], "these requests share enough for a cascade"
    torch.testing.assert_close(found, block.expected(x, step, other), atol=2e-5, rtol=2e-5)


class Mixing:
    """Queries, keys and values of x and their attention: as calls, and one after another."""

    def __init__(self, kind, window, rotated, *, cascade):
        heads, kv_heads, dim = HEADS
        self.qkv = layer_of((heads + 2 * kv_heads) * dim, HIDDEN, 1, WORKERS[3])
        self.rotated = rotated
        config = AttentionConfig(heads, kv_heads, dim, 4, windows=(0, window))
        self.backend = make_backend("cpu", config, threads=2, cascade=cascade, kv_dtype=kind)
        self.program = Program(WORKERS[3], kind)
        x = self.program.buffer("x", HIDDEN)
        qkv = self.program.linear(self.qkv, x, "qkv")
        rope = Rope("r", rotated)
        mixed = self.program.attention(qkv, HEADS, 1, window=window, rope=rope)
        self.program.finish(x, mixed)

    def check(self, x, step):
        """Both give the same, to the last bit, and write the same."""
        heads, kv_heads, dim = HEADS
        frequencies = 0.3 ** torch.arange(self.rotated // 2)
        radians = step.positions[:, None].float() * frequencies
        angles = TORCH.angles(radians, 1.0, torch.float32)
        self.backend.plan(step.batch)
        kind = self.program.kv_dtype
        kv, other = step.cache(kind), step.cache(kind)
        turns = {"r": torch.cat(angles).numpy()}
        records = self.backend.records(kv)
        found = self.program.run(x.numpy(), kv, step.slots.numpy(), turns, records)
        both = self.qkv(x).view(len(x), -1, dim)
        turned = TORCH.rotate(both[:, : heads + kv_heads], heads, angles)
        other.write(1, step.slots, turned[:, heads:], both[:, heads + kv_heads :])
        expected = self.backend.run(1, turned[:, :heads], other).flatten(1)
        assert torch.equal(kv._data, other._data)
        assert torch.equal(kv._scales, other._scales)
        assert torch.equal(torch.from_numpy(found), expected)


@pytest.fixture(scope="module", params=KINDS, ids=str)
def kind(request):
    return request.param


@pytest.fixture(scope="module", params=[(0, 16, False), (5, 8, False), (0, 16, True)], ids=str)
def mixing(kind, request):
    window, rotated, cascade = request.param
    return Mixing(kind, window, rotated, cascade=cascade)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.sampled_from([1, 1, 1, 2, 7, 40])), min_size=1, max_size=6
    ),
    st.integers(-20, 20),
    st.integers(0, 99),
)
def test_is_what_layers_compute_to_the_last_bit(mixing, requests, size, seed):
    step = Step(requests)
    mixing.check(draw(seed, len(step.slots), HIDDEN) * 2.0**size, step)


def test_is_that_where_cascade_reorders_rows(kind):
    mixing = Mixing(kind, 0, 16, cascade=True)
    step = Step([(3, 1), (1400, 1), (9, 5), (1401, 1), (1402, 1), (1405, 1)], shared=340)
    mixing.check(draw(0, len(step.slots), HIDDEN), step)
    assert mixing.backend.records(step.cache(kind))[0].tasks[2], "these share enough for a cascade"


@pytest.mark.parametrize("threads", sorted(WORKERS))
def test_a_row_depends_neither_on_others_nor_on_threads(threads, monkeypatch):
    monkeypatch.setattr(team, "LEAST", 1.0)  # else these are too small for threads
    requests = [(i, 1) for i in range(30)]
    step = Step(requests)
    x = draw(0, len(requests), HIDDEN)
    together = Block(WORKERS[threads]).run(x, step, step.cache())
    one, kv = Block(WORKERS[1]), step.cache()
    for i, (before, _) in enumerate(requests):
        alone = Step([(before, 1)])
        begin, end = step.batch.kv_indptr[i : i + 2]
        alone.batch = AttentionBatch.from_requests(
            [step.batch.kv_indices[begin:end].tolist()], [before + 1], [1], 4
        )
        alone.slots = step.slots[i : i + 1].clone()
        assert torch.equal(one.run(x[i : i + 1], alone, kv)[0], together[i]), i


def test_a_thread_that_comes_late_finds_nothing_to_do():
    """It comes when the calls have long been run, and their memory is another step's."""

    class Late:
        threads = 2

        def __init__(self):
            self.work = []

        def invite(self, work):
            self.work.append(work)

    late = Late()
    block = Block(WORKERS[1])
    block.program._workers = late
    step = Step([(5, 3)])
    x = draw(0, 3, HIDDEN)
    first = block.run(x, step, step.cache())
    kv = step.cache()
    second = block.run(2 * x, step, kv)
    before = kv._data.clone()
    for work in late.work:
        work(None)
    assert torch.equal(kv._data, before)
    assert torch.equal(block.run(x, step, step.cache()), first)
    assert not torch.equal(first, second)


def test_threads_that_meet_in_many_calls_do_each_task_once():
    """Small calls, more threads than cores: every task of a call ends before the next begins."""
    rows, width = 1, 64
    weights = [quantize(draw(i, width, width).numpy() / 8, "float32") for i in range(60)]
    chain = [Linear(weight, None, WORKERS[1]) for weight in weights]
    memory = np.zeros(rows * width * 61, np.float32)
    memory[:width] = draw(99, width)
    listed = [
        call for i, layer in enumerate(chain) for call in layer.calls(i * width, 0, (i + 1) * width)
    ]
    calls = np.array([(kernel.address, args.ctypes.data) for kernel, args, _ in listed])
    step = np.array([rows, memory.ctypes.data], np.int64)
    x = torch.from_numpy(memory[:width].copy())[None]
    for layer in chain:
        x = layer(x)
    for _ in range(30):
        memory[width:] = np.nan
        team.run_calls(WORKERS[3], calls, np.full(60, 2), step)
        assert np.array_equal(memory[-width:], x[0].numpy())


def test_what_has_no_call_is_named():
    made = Program(WORKERS[1])
    with pytest.raises(Unrecordable, match="groups of 32"):
        made.buffer("x", 40)
    with pytest.raises(Unrecordable, match="relu"):
        made.gate(made.buffer("x", 64), "relu")


def test_an_invited_thread_calls_once():
    calls, met = [], threading.Barrier(3)
    WORKERS[3].invite(lambda task: (calls.append(task), met.wait(10)))
    met.wait(10)
    assert calls == [None, None]
