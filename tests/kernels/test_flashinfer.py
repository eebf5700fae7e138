"""The FlashInfer backend over a stand-in that refuses what the real module misreads.

What it computes equals `reference`, row for row; no GPU is needed. tests/kernels/test_gpu.py runs
the real kernels.
"""

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st

from boughs.kernels import flashinfer, flashinfer_cascade
from boughs.kernels.backend import AttentionConfig
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.choice import Gpu, choose_backend, make_backend
from boughs.kernels.flashinfer import FlashInferBackend
from boughs.kernels.kv_cache import KVCache
from boughs.kernels.reference import ReferenceBackend


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fakes, snapshot = load("fake_flashinfer"), load("make_flashinfer_signatures")
LAYERS = 2


@pytest.fixture(autouse=True)
def _small_workspace(monkeypatch):
    assert flashinfer.WORKSPACE >= 128 << 20
    monkeypatch.setattr(flashinfer, "WORKSPACE", 1 << 16)


class World:
    """A backend over the fakes, and a pool with random rows."""

    def __init__(
        self, *, dtype=torch.float16, kv_dtype=None, group=2, kv_heads=2, head_dim=64,
        page_size=4, pages=12, cascade=False, **config,
    ):  # fmt: skip
        self.config = AttentionConfig(kv_heads * group, kv_heads, head_dim, page_size, **config)
        self.gpu = fakes.FakeCuda()
        self.module = fakes.FakeFlashInfer(self.gpu)
        self.backend = FlashInferBackend(
            self.config, "a test", flashinfer=self.module, accelerator=self.gpu, dtype=dtype,
            kv_dtype=kv_dtype, cascade=cascade,
        )  # fmt: skip
        self.dtype = dtype
        torch.manual_seed(0)
        self.kv = KVCache(LAYERS, pages, page_size, kv_heads, head_dim, kv_dtype or dtype)
        slots = torch.arange(page_size, pages * page_size)
        for layer in range(LAYERS):
            k, v = torch.randn(2, len(slots), kv_heads, head_dim).to(dtype)
            self.kv.write(layer, slots, k, v)

    def batch(self, requests, seed=0):
        """Of (tokens of KV, rows), on random pages, which requests may share."""
        rng, size = np.random.default_rng(seed), self.config.page_size
        tables = [
            (1 + rng.permutation(self.kv.num_pages - 1)[: -(-kv_len // size)]).tolist()
            for kv_len, _ in requests
        ]
        lens, rows = zip(*requests, strict=True) if requests else ((), ())
        return AttentionBatch.from_requests(tables, lens, rows, size)

    def queries(self, batch):
        """As models give them: a part of the row's queries, keys and values."""
        heads = self.config.num_heads
        return torch.randn(batch.num_rows, heads + 3, self.config.head_dim).to(self.dtype)[
            :, :heads
        ]

    def expected(self, batch, layer, q):
        reference = ReferenceBackend(self.config, "the truth")
        reference.plan(batch)
        return reference.run(layer, q.double(), self.kv).to(self.dtype)

    def made(self, name):
        return [given for called, given in self.module.calls if called.endswith(name)]


requests = st.lists(
    st.integers(0, 40).flatmap(lambda kv: st.tuples(st.just(kv), st.integers(0, kv))), max_size=6
)


@given(
    requests,
    st.integers(0, 4),
    st.sampled_from([1, 4, 16]),
    st.integers(1, 8),
    st.sampled_from([(), (0, 3), (5, 5)]),
    st.sampled_from([0.0, 20.0]),
    st.sampled_from([torch.float16, torch.bfloat16]),
    st.sampled_from([None, torch.float8_e4m3fn, torch.float8_e5m2]),
    st.sampled_from([64, 128]),
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_batch_equals_the_reference(
    others, decodes, page_size, group, windows, soft_cap, dtype, kv_dtype, head_dim
):
    world = World(
        dtype=dtype, kv_dtype=kv_dtype, group=group, page_size=page_size, windows=windows,
        soft_cap=soft_cap, pages=2 + 40 // page_size, kv_heads=1, head_dim=head_dim,
    )  # fmt: skip
    for seed in range(2):  # a second plan of the same wrappers
        batch = world.batch([(7 + i, 1) for i in range(decodes)] + others, seed)
        world.backend.plan(batch)
        q = world.queries(batch)
        for layer in range(LAYERS):
            out = world.backend.run(layer, q, world.kv)
            assert out.is_contiguous()
            assert torch.equal(out, world.expected(batch, layer, q))


def test_decodes_at_the_head_go_to_the_decode_kernel():
    world = World()
    batch = world.batch([(5, 1), (9, 1), (8, 3), (4, 1)])
    world.backend.plan(batch)
    world.backend.run(0, world.queries(batch), world.kv)
    (decode,), (prefill,) = world.made("Decode" + REST), world.made("PrefillWith" + PREFILL_REST)
    assert decode["last_page_len"].tolist() == [1, 1]
    assert prefill["qo_indptr"].tolist() == [0, 3, 4]
    assert prefill["paged_kv_indptr"].tolist() == [0, 2, 3]


REST, PREFILL_REST = "WithPagedKVCacheWrapper._plan_impl", "PagedKVCacheWrapper.plan"


def test_each_window_is_planned_once_and_counts_from_the_row_itself():
    world = World(windows=(0, 3), soft_cap=30.0, scale=0.25)
    world.backend.plan(world.batch([(9, 1)]))
    plans = world.made("_plan_impl")
    assert [plan["window_left"] for plan in plans] == [-1, 2]
    assert {plan["sm_scale"] for plan in plans} == {0.25}
    assert {plan["logits_soft_cap"] for plan in plans} == {30.0}
    assert {plan["q_data_type"] for plan in plans} == {torch.float16}


@pytest.mark.parametrize("group", range(1, 9))
def test_tensor_cores_are_used_from_groups_of_four_on(group):
    world = World(group=group, kv_heads=1)
    made = [given for given in world.made("Wrapper.__init__") if "use_tensor_cores" in given]
    assert [given["use_tensor_cores"] for given in made] == [group >= 4]


# ---- recordings ----


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=5),
    st.sampled_from([(), (0, 3)]),
    st.integers(1, 8),
    st.sampled_from([64, 128]),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([None, torch.float8_e4m3fn]),
)
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_replay_equals_an_eager_run(steps, windows, group, head_dim, page_size, kv_dtype):
    world = World(
        windows=windows, group=group, kv_heads=1, head_dim=head_dim, page_size=page_size,
        kv_dtype=kv_dtype, pages=2 + 40 // page_size,
    )  # fmt: skip
    world.backend.prepare_graphs([1, 2, 4], pages=40 // page_size + 1)
    inputs, recordings = {}, {}
    for rows in (4, 2, 1):
        nobody = AttentionBatch.from_requests([], [], [], page_size).padded(rows)
        world.backend.plan_graph(nobody, world.kv.num_pages)
        inputs[rows] = torch.zeros(rows, world.config.num_heads, head_dim, dtype=torch.float16)
        recordings[rows] = world.gpu.record(
            lambda r=rows: world.backend.run(1, inputs[r], world.kv)
        )
    for seed, lens in enumerate(steps):
        batch = world.batch([(kv_len, 1) for kv_len in lens], seed)
        rows = min(size for size in recordings if size >= len(lens))
        q = world.queries(batch)
        world.backend.plan_graph(batch.padded(rows), world.kv.num_pages)
        inputs[rows][: len(lens)] = q
        recordings[rows].replay()
        assert torch.equal(recordings[rows].output[: len(lens)], world.expected(batch, 1, q))
        world.backend.plan(batch)  # eager steps between leave it right
        assert torch.equal(world.backend.run(1, q, world.kv), world.expected(batch, 1, q))


def test_a_replay_without_a_plan_of_its_own_is_caught():
    world = World()
    world.backend.prepare_graphs([1], pages=4)
    batch, q = world.batch([(5, 1)]), torch.zeros(1, 4, 64, dtype=torch.float16)
    world.backend.plan_graph(batch, world.kv.num_pages)
    recording = world.gpu.record(lambda: world.backend.run(0, q, world.kv))
    with pytest.raises(fakes.Misuse, match="step before"):
        recording.replay()


def test_what_no_graph_can_compute_is_refused():
    world = World()
    world.backend.prepare_graphs([1, 2], pages=4)
    with pytest.raises(ValueError, match=r"no graph for 3 requests; there are \[1, 2\]"):
        world.backend.plan_graph(world.batch([(3, 1)] * 3), 12)
    with pytest.raises(ValueError, match="one row for each request"):
        world.backend.plan_graph(world.batch([(3, 1), (3, 2)]), 12)
    with pytest.raises(ValueError, match="in a pool of 2"):
        world.backend.plan_graph(world.batch([(40, 1)]), 2)


# ---- prefixes that decodes share ----


@st.composite
def trees(draw):
    """Page tables of decodes that branch off one another, and how full each is."""
    fresh, tables = iter(range(1, 200)), [[]]
    for _ in range(draw(st.integers(1, 9))):
        base = draw(st.sampled_from(tables))
        kept = base[: draw(st.integers(0, len(base)))]
        tables.append(kept + [next(fresh) for _ in range(draw(st.integers(1, 4)))])
    return [(table, draw(st.integers(1, 4))) for table in draw(st.permutations(tables[1:]))]


@given(
    trees(),
    st.lists(st.integers(2, 12), max_size=2),
    st.sampled_from([1, 3, 7]),
    st.sampled_from([1, 2, 5]),
    st.sampled_from([(0, 0), (0, 3)]),
    st.sampled_from([0.0, 20.0]),
)
@settings(max_examples=60, deadline=None)
def test_shared_prefixes_equal_the_flat_path(decodes, chunks, group, pays, windows, soft_cap):
    world = World(
        group=group, kv_heads=1, pages=200, cascade=True, windows=windows, soft_cap=soft_cap
    )
    batch = AttentionBatch.from_requests(
        [table for table, _ in decodes] + [list(range(190, 194))] * len(chunks),
        [4 * (len(table) - 1) + last for table, last in decodes] + chunks,
        [1] * len(decodes) + chunks,
        4,
    )
    page = 2 * 4 * 64 * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flashinfer_cascade, "SAVES", pays * page)
        for _ in range(2):
            world.backend.plan(batch)
            q = world.queries(batch)
            for layer in range(LAYERS):
                out = world.backend.run(layer, q, world.kv)
                expected = world.expected(batch, layer, q)
                torch.testing.assert_close(out, expected, rtol=5e-3, atol=5e-3)


def test_a_prefix_is_read_once_where_that_pays(monkeypatch):
    monkeypatch.setattr(flashinfer_cascade, "SAVES", 2 * 2 * 2 * 4 * 2 * 64 * 2)  # two pages, twice
    world = World(cascade=True, pages=20)
    three = AttentionBatch.from_requests(
        [[3, 4, 5], [3, 4, 6], [7], [3, 4, 8, 9]], [9, 12, 2, 13], [1, 1, 1, 1], 4
    )
    assert world.backend.shares(three)
    assert not world.backend.shares(world.batch([(5, 1), (3, 1)]))
    world.backend.plan(three)
    (plan,) = world.made("PrefillWith" + PREFILL_REST)
    read = plan["paged_kv_indices"].tolist()
    assert sorted(read) == [3, 4, 5, 6, 7, 8, 9]
    assert plan["causal"] is False
    assert not world.made("_plan_impl")
    world.backend.plan(world.batch([(5, 1), (3, 1)]))
    assert len(world.made("_plan_impl")) == 1
    assert not World(pages=20).backend.shares(three)  # off unless it is asked for


# ---- refusals ----


def test_run_refuses_what_was_not_planned():
    world = World()
    batch = world.batch([(5, 1)])
    q = world.queries(batch)
    with pytest.raises(ValueError, match="run before plan"):
        world.backend.run(0, q, world.kv)
    world.backend.plan(batch)
    with pytest.raises(ValueError, match="got bfloat16 over float16"):
        world.backend.run(0, q.bfloat16(), world.kv)
    with pytest.raises(ValueError, match="got float16 over bfloat16"):
        world.backend.run(0, q, KVCache(LAYERS, 12, 4, 2, 64, torch.bfloat16))
    with pytest.raises(ValueError, match="planned"):
        world.backend.run(0, q[:, :2], world.kv)
    elsewhere = KVCache(LAYERS, 12, 4, 2, 64, torch.float16, torch.device("meta"))
    with pytest.raises(ValueError, match="queries on meta and a cache on cpu, planned for cpu"):
        world.backend.run(0, q.to("meta"), world.kv)
    with pytest.raises(ValueError, match="queries on cpu and a cache on meta, planned for cpu"):
        world.backend.run(0, q, elsewhere)
    with pytest.raises(ValueError, match="gaps"):
        world.backend.run(0, q.transpose(1, 2).contiguous().transpose(1, 2), world.kv)
    with pytest.raises(ValueError, match="in a pool of 2"):
        world.backend.run(0, q, KVCache(LAYERS, 2, 4, 2, 64, torch.float16))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kv_indices", np.array([1, 2], np.int64), "must be int32"),
        ("kv_last_page_len", np.array([0], np.int32), "must be 1 to 4"),
        ("kv_last_page_len", np.array([5], np.int32), "must be 1 to 4"),
        ("kv_indptr", np.array([0, 1], np.int32), "kv_indices has 2"),
        ("kv_indptr", np.array([2, 0], np.int32), "start at 0"),
        ("kv_indices", np.array([1, 9, 2, 9], np.int32)[::2], "no gaps"),
        ("kv_indices", np.array([1, -1], np.int32), "page ids -1"),
        ("page_size", 8, "pages of 8 tokens"),
    ],
)
def test_plan_refuses_what_flashinfer_would_misread(field, value, message):
    world = World()
    batch = replace(world.batch([(5, 1)]), **{field: value})
    with pytest.raises(ValueError, match=message):
        world.backend.plan(batch)
    assert not world.made("_plan_impl")
    with pytest.raises(ValueError, match="run before plan"):
        world.backend.run(0, world.queries(batch), world.kv)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"head_dim": 96}, "heads of 96; there are 64, 128, 256"),
        ({"dtype": torch.float32}, "queries in float32; there are bfloat16, float16"),
        ({"kv_dtype": torch.bfloat16}, "a cache in bfloat16 under queries in float16"),
        ({"kv_dtype": torch.float32}, "a cache in float32"),
    ],
)
def test_what_flashinfer_lacks_is_refused_by_name(shape, message):
    with pytest.raises(ValueError, match=message):
        World(**shape)


# ---- the choice ----


def gpu(module="flashinfer", dtype=torch.bfloat16):
    return Gpu(fakes.FakeCuda(), module, "" if module else "not installed", dtype, dtype)


LLAMA, PHI = AttentionConfig(4, 2, 128, 16), AttentionConfig(4, 2, 96, 16)


@pytest.mark.parametrize(
    ("name", "config", "where", "chosen", "why"),
    [
        ("auto", LLAMA, None, "cpu", "without a GPU"),
        ("auto", LLAMA, gpu(), "flashinfer", "on a GPU"),
        ("auto", PHI, gpu(), "reference", "no kernel for heads of 96"),
        ("auto", LLAMA, gpu(dtype=torch.float32), "reference", "queries in float32"),
        ("flashinfer", LLAMA, gpu(), "flashinfer", "asked for"),
        ("reference", LLAMA, gpu(None), "reference", "asked for"),
    ],
)
def test_the_choice_is_told(name, config, where, chosen, why):
    made, reason = choose_backend(name, config, where)
    assert made == chosen
    assert why in reason


@pytest.mark.parametrize(
    ("name", "config", "where", "message"),
    [
        ("flashinfer", LLAMA, None, "device=cuda"),
        ("flashinfer", LLAMA, gpu(None), "not installed; or attention_backend=reference"),
        ("auto", LLAMA, gpu(None), "not installed; or attention_backend=reference"),
        ("flashinfer", PHI, gpu(), "no kernel for heads of 96"),
        ("cpu", LLAMA, gpu(), "device=cpu"),
    ],
)
def test_what_does_not_run_is_refused_with_the_mend(name, config, where, message):
    with pytest.raises(ValueError, match=message):
        make_backend(name, config, gpu=where)


# ---- signatures ----


def test_the_snapshot_is_that_of_the_installed_package():
    folder = snapshot.installed()
    if folder is None:
        pytest.skip("flashinfer-python is not installed")
    made = {name: snapshot._find(folder / file, name) for name, file in snapshot.CALLED.items()}
    for name, function in made.items():
        theirs = {parameter[0] for parameter in snapshot._parameters(function)}
        ours = {parameter.name for parameter in fakes.SIGNATURES[name].parameters.values()}
        assert ours <= theirs, f"{name} has lost {ours - theirs}"


def test_the_snapshot_says_what_the_script_reads(tmp_path):
    """The script over a small source gives the same form as the committed one has."""
    for name, file in snapshot.CALLED.items():
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        owner, _, function = name.rpartition(".")
        source = f"def {function}(self, a, b=1, *args, c, d='x', **kwargs): ...\n"
        if owner:
            source = f"class {owner}:\n    @overload\n    def {function}(self): ...\n    {source}"
            source = source if not path.exists() else source.split("\n", 1)[1]
        with path.open("a") as out:
            out.write(source)
    made = snapshot.signatures(tmp_path)
    assert made.keys() == fakes.SIGNATURES.keys()
    for parameters in made.values():
        assert [p[0] for p in parameters] == ["self", "a", "b", "args", "c", "d", "kwargs"]
        assert [p[2] for p in parameters] == [None, None, "1", None, None, "'x'", None]
