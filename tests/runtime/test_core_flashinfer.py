"""The core over FlashInfer's stand-in: tokens, small pools, recordings and what they read."""

import importlib.util
import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import Phase, given, settings, strategies as st

from boughs.kernels import flashinfer, flashinfer_cascade, flashinfer_limits, ops
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.choice import Gpu
from boughs.kernels.flashinfer_ops import FlashInferOps
from boughs.kernels.reference import ReferenceBackend
from boughs.lang.sampling import SamplingParams
from boughs.runtime.config import EngineConfig
from boughs.runtime.core.core import Core
from boughs.runtime.core.graphs import ROWS, _sizes
from boughs.runtime.core.inputs import StepInputs
from boughs.runtime.core.placement import Placement
from boughs.runtime.core.runner import ModelRunner
from boughs.runtime.messages import Abort, Outputs, Ready, Shutdown, Submit
from boughs.runtime.models import layers
from boughs.runtime.models.load import load_config


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fakes, tiny = load("fake_flashinfer"), load("tiny_models")
EOS = 2
FLOAT32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
KINDS = {
    "float32": (FLOAT32, FLOAT32),  # the real kernels lack it; tokens are those of the CPU's own
    "bfloat16": (BF16, BF16),
    "float16": (FP16, FP16),
    "bfloat16 over fp8_e4m3": (BF16, torch.float8_e4m3fn),
    "float16 over fp8_e5m2": (FP16, torch.float8_e5m2),
}
"""Of activations, and of the cache."""


@pytest.fixture(autouse=True, scope="module")
def _small_and_exact():
    """A row's result does not depend on the batch, so that tokens can be compared in any kind."""

    def linear(x, weight, bias):
        return torch.nn.functional.linear(
            x.double(), weight.double(), None if bias is None else bias.double()
        ).to(x.dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flashinfer, "WORKSPACE", 1 << 16)
        patch.setattr(flashinfer_limits, "DTYPES", (FLOAT32, BF16, FP16))
        patch.setattr(layers, "linear", linear)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Groups of three, as SmolLM2 has; heads that FlashInfer has kernels for."""
    made = tmp_path_factory.mktemp("tiny") / "model"
    return tiny.make_tiny_model(made, heads=3, kv_heads=1, head_dim=64, max_position=512)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    """With layers that have a window, and soft caps."""
    made = tmp_path_factory.mktemp("gemma") / "model"
    return tiny.make_tiny_model(
        made, model_type="gemma2", heads=4, kv_heads=1, head_dim=64, max_position=512,
        sliding_window=7, query_pre_attn_scalar=64,
    )  # fmt: skip


def placement(kind="float32"):
    """A GPU that is none."""
    cuda, (dtype, kv_dtype) = fakes.FakeCuda(), KINDS[kind]
    module = fakes.FakeFlashInfer(cuda, (dtype,))
    gpu = Gpu(cuda, module, "", dtype, kv_dtype)
    return Placement(cuda.device, dtype, kv_dtype, 64, "a test", gpu)


def make_core(folder, where, *, pages=40, page_size=4, **config):
    width = where.kv_dtype.itemsize if where else 4
    shape = load_config(folder)
    token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * width
    config = EngineConfig(
        model_path=str(folder), page_size=page_size, check_invariants=True, threads=1,
        kv_memory=str(pages * page_size * token), **config,
    )  # fmt: skip
    if where is not None and config.max_batched_tokens:
        where = replace(where, max_batched_tokens=config.max_batched_tokens)
    return Core(config, ModelRunner(config, folder, where))


def run(core, schedule):
    """The output ids of every request; `schedule[i]` is sent before step i."""
    schedule, made = list(schedule), {}

    def receive(timeout):
        messages = schedule.pop(0) if schedule else []
        idle = not schedule and not core.scheduler.has_work
        return messages if messages or not idle else [Shutdown()]

    def send(message):
        if isinstance(message, Outputs):
            for output in message.outputs:
                assert output.error is None, output.error
                made.setdefault(output.key, []).extend(output.ids)
        else:
            assert isinstance(message, Ready)

    core.run(receive, send)
    return made


def submit(key, prompt, count, **params):
    params = {"temperature": 0.0, **params}
    return Submit(
        key=key,
        prompt_ids=list(prompt),
        params=SamplingParams(max_new_tokens=count, seed=key, ignore_eos=True, **params),
    )


def alone(folder, requests, kind="float32"):
    """What each gets by itself: from the CPU's kernels, or in that kind from the reference.

    The reference is in float64, over the same rounded cache and with the same small kernels.
    """
    if kind == "float32":
        core = make_core(folder, None, device="cpu")
        return {r.key: run(core, [[r]])[r.key] for r in requests}
    where, attend = placement(kind), ReferenceBackend.run

    def attend_exactly(self, layer, q, kv):
        return attend(self, layer, q.double(), kv).to(q.dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "TORCH", FlashInferOps(where.gpu.flashinfer))
        patch.setattr(ReferenceBackend, "run", attend_exactly)
        core = make_core(folder, where, attention_backend="reference")
        made = {r.key: run(core, [[r]])[r.key] for r in requests}
    assert core.runner.kv.dtype == KINDS[kind][1]
    assert not any("Wrapper" in name for name, _ in where.gpu.flashinfer.calls)
    return made


@st.composite
def loads(draw):
    prompts = [draw(st.lists(st.integers(3, 383), min_size=1, max_size=30))]
    for _ in range(draw(st.integers(0, 6))):
        base = draw(st.sampled_from(prompts))
        cut = draw(st.integers(0, len(base)))
        tail = draw(st.lists(st.integers(3, 383), min_size=0 if cut else 1, max_size=9))
        prompts.append(base[:cut] + tail)
    requests = [submit(k, p, draw(st.integers(1, 10))) for k, p in enumerate(prompts)]
    schedule = [[] for _ in range(12)]
    for request in requests:
        schedule[draw(st.integers(0, 11))].append(request)
    aborted = draw(st.sets(st.integers(0, len(requests) - 1), max_size=2))
    for key in aborted:
        schedule[draw(st.integers(0, 11))].append(Abort(key))
    return requests, schedule, aborted


@pytest.mark.parametrize("kind", KINDS)
@given(
    loads(),
    st.sampled_from([1, 4, 16]),
    st.sampled_from([1, 3, 16, 64]),
    st.sampled_from([1, 3, 5, 64]),
    st.booleans(),
)
@settings(max_examples=15, deadline=None, phases=[Phase.generate])  # shrinking takes too long
def test_random_loads_get_the_tokens_that_each_request_gets_alone(
    folder, kind, load, page_size, budget, most, eager
):
    requests, schedule, aborted = load
    where = placement(kind)
    core = make_core(
        folder, where, page_size=page_size, pages=12 + 2 * (48 // page_size),
        max_batched_tokens=budget, max_running_requests=most, disable_cuda_graph=eager,
    )  # fmt: skip
    made = run(core, schedule)
    expected = alone(folder, requests, kind)
    for request in requests:
        got = made.get(request.key, [])
        if request.key in aborted:
            assert got == expected[request.key][: len(got)]
        else:
            assert got == expected[request.key]
    core.check()
    assert core.scheduler.is_empty


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("group", range(1, 9))
def test_heads_and_pages_of_all_sizes(tmp_path, group, head_dim, page_size):
    """Chunks, mixed steps and replays, each shape in one of the kinds."""
    kind = list(KINDS)[(group + head_dim // 64 + page_size) % len(KINDS)]
    model = tiny.make_tiny_model(
        tmp_path, heads=group, kv_heads=1, head_dim=head_dim, hidden_size=32 * group,
        intermediate_size=96, max_position=128,
    )  # fmt: skip
    long, short = submit(0, range(3, 38), 6), submit(1, [7, 9], 9)
    core = make_core(
        model, placement(kind), page_size=page_size, pages=8 + 64 // page_size,
        max_batched_tokens=17, max_running_requests=2,
    )  # fmt: skip
    assert run(core, [[long], [], [short]]) == alone(model, [long, short], kind)
    assert any(recording.replays for recording in core.runner._graphs._recordings.values())


def test_a_core_says_which_backend_it_has_and_why(folder, tmp_path):
    limits = make_core(folder, placement("bfloat16 over fp8_e4m3")).limits
    assert (limits.attention_backend, limits.kv_cache_dtype) == ("flashinfer", "float8_e4m3fn")
    assert limits.attention_why == "auto: FlashInfer on a GPU"
    narrow = tiny.make_tiny_model(tmp_path, head_dim=16, max_position=128)
    core = make_core(narrow, placement())
    assert core.limits.attention_backend == "reference"
    assert core.limits.attention_why == (
        "auto: FlashInfer has no kernel for heads of 16; there are 64, 128, 256"
    )
    assert run(core, [[submit(0, range(3, 20), 4)]]) == alone(narrow, [submit(0, range(3, 20), 4)])


@pytest.mark.parametrize("disable_cascade", [False, True])
def test_requests_that_share_a_prefix_read_it_once(folder, monkeypatch, disable_cascade):
    monkeypatch.setattr(flashinfer_cascade, "SAVES", 1)
    core = make_core(folder, placement(), disable_cascade=disable_cascade)
    requests = [submit(k, [*range(3, 23), 30 + k], 6) for k in range(4)]
    first = [submit(9, range(3, 23), 1)]
    made = run(core, [first, [], requests])
    assert made == alone(folder, [*first, *requests])
    module = core.runner.placement.gpu.flashinfer
    assert any(name == "merge_states" for name, _ in module.calls) is not disable_cascade


def test_windows_and_soft_caps_reach_the_kernels(gemma):
    requests = [submit(k, range(3 + k, 30 + k), 8) for k in range(3)]
    core = make_core(gemma, placement())
    assert run(core, [requests]) == alone(gemma, requests)
    module = core.runner.placement.gpu.flashinfer
    plans = [given for name, given in module.calls if name.endswith("_plan_impl")]
    assert {plan["window_left"] for plan in plans} == {-1, 6}
    assert {plan["logits_soft_cap"] for plan in plans} == {50.0}
    assert any(name == "gemma_rmsnorm" for name, _ in module.calls)
    assert any(name == "gelu_tanh_and_mul" for name, _ in module.calls)


def test_the_small_kernels_are_flashinfers(folder):
    core = make_core(folder, placement(), disable_cuda_graph=True)
    module = core.runner.placement.gpu.flashinfer
    module.calls.clear()
    requests = [submit(0, range(3, 20), 4), submit(1, range(3, 9), 4, temperature=1.0, top_k=9)]
    run(core, [requests, [submit(2, range(5, 9), 4, temperature=1.0, top_p=0.5)]])
    called = {name for name, _ in module.calls}
    assert called >= {
        "rmsnorm",
        "silu_and_mul",
        "apply_rope_with_cos_sin_cache_inplace",
        "top_k_mask_logits",
        "top_p_renorm_probs",
    }


def test_decode_steps_are_replayed_and_others_are_not(folder):
    core = make_core(folder, placement(), max_running_requests=4)
    recordings = core.runner._graphs._recordings
    assert sorted(recordings) == [1, 2, 4]
    run(core, [[submit(k, range(3 + k, 9 + k), 6) for k in range(3)]])
    assert recordings[4].replays == 5  # three decodes, in the smallest that holds them
    assert recordings[1].replays == recordings[2].replays == 0
    run(core, [[submit(9, range(40, 46), 6)]])
    assert (recordings[1].replays, recordings[4].replays) == (5, 5)


def test_padding_writes_to_page_0_alone(folder):
    """Rows to spare leave every page but page 0 as it was."""
    runner = make_core(folder, placement(), max_running_requests=4).runner
    runner.kv.k(0).fill_(1.0)
    inputs = StepInputs.padding(3, 4)
    with torch.inference_mode():
        runner._graphs.forward(inputs)
    assert (runner.kv.k(0)[1:] == 1.0).all()
    assert not (runner.kv.k(0)[0, 0] == 1.0).any()


def test_replayed_hidden_states_outlive_the_next_replay(folder):
    runner = make_core(folder, placement(), max_running_requests=2).runner
    with torch.inference_mode():
        first = runner._graphs.forward(StepInputs.padding(1, 4))
        kept = first.clone()
        other = StepInputs.padding(1, 4)
        runner._graphs.forward(StepInputs(other.batch, other.ids + 7, other.positions, other.slots))
    assert torch.equal(first, kept)


@given(st.integers(1, 400))
def test_recordings_cover_what_runs_at_once(most):
    sizes = _sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(most, ROWS[-1])
    assert all(b <= max(2 * a, a + 1) for a, b in itertools.pairwise([1, *sizes]))


def test_a_step_too_large_or_with_chunks_is_not_replayed(folder):
    runner = make_core(folder, placement(), max_running_requests=2).runner
    graphs = runner._graphs
    batch = AttentionBatch.from_requests([[1]], [2], [2], 4)
    two = StepInputs.padding(2, 4)
    assert graphs.takes(two)
    assert not graphs.takes(StepInputs.padding(3, 4))
    assert not graphs.takes(StepInputs(batch, two.ids, two.positions, two.slots))


def test_experts_are_not_recorded(tmp_path):
    made = tiny.make_tiny_model(
        tmp_path / "moe", model_type="mixtral", heads=2, kv_heads=1, head_dim=64, max_position=256,
        num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    core = make_core(made, placement())
    assert core.runner._graphs is None
    requests = [submit(k, range(3 + k, 20 + k), 5) for k in range(2)]
    assert run(core, [requests]) == alone(made, requests)
