"""Models whose weights are held in other formats, against transformers on the numbers they are."""

import importlib.util
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import boughs
from boughs.kernels.linear import Stack
from boughs.kernels.weight import quantize
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.runtime.models import store
from boughs.runtime.models.gguf import GgufFile
from boughs.runtime.models.layers import PackedMaker, PlainLayer, PlainMaker, make_maker
from boughs.runtime.models.load import load_model

FIXTURES = Path(__file__).parents[1] / "fixtures"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make_tiny_model = load("tiny_models").make_tiny_model
write_gguf = load("tiny_gguf").write_gguf
paged_model = load("paged_model")

TOLERANCE = 1e-4
CASES = {
    "llama": {"heads": 6, "kv_heads": 3, "head_dim": 32, "attention_bias": True, "mlp_bias": True},
    "llama, tied": {"tie": True},
    "qwen3 moe": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
    },
    "gemma2": {"model_type": "gemma2", "tie": True, "sliding_window": 20},
    "gpt2": {"model_type": "gpt2", "kv_heads": 4, "max_position": 128, "tie": True},
}
KIND = {"Q4_0": "int4", "Q4_1": "int4", "Q8_0": "int8", "BF16": "bfloat16", "Q5_1": "int8"}


def made(folder, case):
    return make_tiny_model(folder, logit_std=4.0, **CASES[case])


def resolved(file, tmp_path):
    return store.resolve(str(file), home=tmp_path / "home")


def rewrite(folder, change):
    """Change each matrix of a folder of safetensors."""
    from safetensors.numpy import load_file, save_file

    path = folder / "model.safetensors"
    tensors = {name: change(name, array) for name, array in load_file(path).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def check(folder, maker, reference):
    """Logits of a folder whole and in chunks are transformers' on another."""
    ids = paged_model.random_ids(50)
    expected = paged_model.transformers_logits(reference, ids)
    for counts in ((50,), (1, 3, 30, 1, 15)):
        found = paged_model.PagedModel(folder, maker=maker).chunks("a", ids, counts)
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "BF16"])
def test_a_file_is_computed_in_its_own_format(tmp_path, case, kind):
    file = write_gguf(made(tmp_path / "model", case), tmp_path / "m.gguf", quantization=kind)
    maker, folder = PackedMaker("auto", 1), resolved(file, tmp_path)
    check(folder, maker, store.weights(folder))
    assert set(re.findall(r"\w+ as \w+", maker.describe())) - {f"{kind} as float32"} == {
        f"{kind} as {KIND[kind]}"
    }
    assert ("as float32" in maker.describe()) is ("moe" in case)  # the router


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q5_1"])
def test_none_is_float32(tmp_path, kind):
    file = write_gguf(made(tmp_path / "model", "llama"), tmp_path / "m.gguf", quantization=kind)
    maker, folder = PackedMaker("none", 1), resolved(file, tmp_path)
    check(folder, maker, store.weights(folder))
    assert set(re.findall(r"\w+ as \w+", maker.describe())) == {f"{kind} as float32"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("asked", ["int8", "int4"])
def test_float32_files_are_rounded_as_asked(tmp_path, case, asked):
    def rounded(name, array):
        if array.ndim < 2 or name.endswith(("wpe.weight", ".mlp.gate.weight")):
            return array
        kind = "int8" if re.search("embed_tokens|lm_head|wte", name) else asked
        if re.search(r"\.c_\w+\.weight", name):  # GPT-2 has its matrices as [in, out]
            return np.ascontiguousarray(quantize(array.T, kind).dequantize().T)
        return quantize(array, kind).dequantize()

    folder = made(tmp_path / "model", case)
    reference = shutil.copytree(folder, tmp_path / "reference")
    rewrite(reference, rounded)
    maker = PackedMaker(asked, 1)
    check(folder, maker, reference)
    assert f"F32 as {asked}" in maker.describe()


def test_formats_that_we_have_not_become_int8(tmp_path):
    file = write_gguf(made(tmp_path / "model", "llama"), tmp_path / "m.gguf", quantization="Q5_1")
    maker, folder = PackedMaker("auto", 1), resolved(file, tmp_path)
    reference = store.weights(folder)
    rewrite(reference, lambda _, x: quantize(x, "int8").dequantize() if x.ndim == 2 else x)
    check(folder, maker, reference)
    assert re.fullmatch(r"\d+ Q5_1 as int8", maker.describe())


@pytest.mark.parametrize(("asked", "kind"), [("int4", "Q4_0"), ("int8", "Q8_0")])
def test_what_has_the_asked_format_is_not_rounded_again(tmp_path, asked, kind):
    file = write_gguf(made(tmp_path / "model", "llama"), tmp_path / "m.gguf", quantization=kind)
    folder, ids = resolved(file, tmp_path), paged_model.random_ids(20)
    found, expected = (
        paged_model.PagedModel(folder, maker=PackedMaker(q, 1)) for q in (asked, "auto")
    )
    if asked == "int8":
        assert torch.equal(found.step({"a": ids})["a"], expected.step({"a": ids})["a"])
    else:  # tables become int8
        layer, same = found.model._layers[1].mlp.down, expected.model._layers[1].mlp.down
        assert torch.equal(layer.rows(torch.arange(64)), same.rows(torch.arange(64)))


def test_matrices_of_different_formats_are_one_layer():
    rng = np.random.default_rng(0)
    parts = []
    for name, kind, rows in (("q", "int4", 48), ("k", "int4", 16), ("v", "int8", 16)):
        weight = quantize(rng.normal(size=(rows, 64)).astype(np.float32), kind)
        parts.append((name, kind, weight))
    bias, x = torch.randn(80), torch.randn(5, 64)
    layer = PackedMaker("auto", 1).linear(parts, bias)
    assert isinstance(layer, Stack)
    matrix = torch.from_numpy(np.concatenate([w.dequantize() for _, _, w in parts]))
    torch.testing.assert_close(layer(x), x @ matrix.T + bias, atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", CASES)
def test_torchs_own_layers_compute_the_same(tmp_path, case):
    """What a GPU has; here in float32 on the CPU, where it can be compared."""
    file = write_gguf(made(tmp_path / "model", case), tmp_path / "m.gguf", quantization="Q4_1")
    folder, maker = resolved(file, tmp_path), PlainMaker(torch.float32, torch.device("cpu"))
    check(folder, maker, store.weights(folder))
    assert set(re.findall(r"\w+ as \w+", maker.describe())) <= {
        "Q4_1 as float32",
        "F32 as float32",
    }


def test_formats_of_few_bits_are_for_the_cpu():
    cpu = torch.device("cpu")
    assert isinstance(make_maker("int4", torch.float32, cpu, 1), PackedMaker)
    maker = make_maker("auto", torch.bfloat16, torch.device("cuda"), 1)
    assert (maker.dtype, maker.device.type) == (torch.bfloat16, "cuda")
    with pytest.raises(Unsupported, match=r"quantize: int4 .* use auto or none"):
        make_maker("int4", torch.bfloat16, torch.device("cuda"), 1)
    weight = quantize(np.ones((3, 64), np.float32), "int8")
    layer = PlainMaker(torch.bfloat16, cpu).linear([("w", "Q8_0", weight)], None)
    assert isinstance(layer, PlainLayer)
    assert layer(torch.ones(2, 64, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_numbers_that_a_format_cannot_hold_are_refused(tmp_path):
    folder = made(tmp_path / "model", "llama")
    name = "model.layers.1.mlp.down_proj.weight"
    rewrite(folder, lambda n, x: np.full_like(x, np.inf) if n == name else x)
    load_model(folder)
    with pytest.raises(InvalidRequest, match=rf"quantize: .*{re.escape(name)}.* int4") as caught:
        load_model(folder, maker=PackedMaker("int4", 1))
    assert caught.value.param == "quantize"


def test_the_setting_is_checked_and_told(tmp_path):
    with pytest.raises(InvalidRequest, match=r"quantize: must be one of auto, none, int8, int4"):
        boughs.Engine(model_path="x", quantize="int3")
    folder = made(tmp_path / "model", "llama")
    with boughs.Engine(folder, in_process=True, kv_memory="16M", quantize="int4") as engine:
        info = engine.get_server_info()
        assert info["quantize"] == "int4"
        assert info["weights"] == "14 F32 as int4, 2 F32 as int8"
        engine.generate(input_ids=[3, 4, 5], sampling_params={"max_new_tokens": 2})


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-2000], "not a complete GGUF"),
        (lambda data: data[:3000], "not a complete GGUF"),
        (lambda data: b"GGML" + data[4:], "does not begin with GGUF"),
        (lambda data: data[:4] + b"\1\0\0\0" + data[8:], "version 1"),
        (lambda data: data[:4] + b"\0\0\0\3" + data[8:], "version"),
        (lambda data: b"", "not a complete GGUF"),
    ],
)
def test_damaged_files_are_refused(tmp_path, damage, words):
    folder = make_tiny_model(tmp_path / "model", layers=1)
    path = write_gguf(folder, tmp_path / "m.gguf", quantization="Q8_0")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidRequest, match=words):
        GgufFile(path)


def test_fields_and_tensors_are_those_of_the_gguf_package(tmp_path):
    import gguf

    folder = make_tiny_model(tmp_path / "model", layers=1)
    path = write_gguf(folder, tmp_path / "m.gguf", quantization="Q4_0")
    reader, file = gguf.GGUFReader(path), GgufFile(path)
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            assert json.dumps(file.get(key)) == json.dumps(field.contents()), key
    assert file.names == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        assert file.shape(tensor.name) == tuple(reversed(tensor.shape.tolist()))
        assert file.format(tensor.name) == tensor.tensor_type.name
        np.testing.assert_array_equal(file.raw(tensor.name), tensor.data)
