"""GGUF files as llama.cpp's converter writes them, read back as the model they came from."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from boughs.lang.errors import InvalidRequest, NotFound, Unsupported
from boughs.runtime.models import gguf_config, gguf_tensors, store
from boughs.runtime.models.gguf import GgufFile
from boughs.runtime.models.gguf_tensors import LAYOUTS
from boughs.runtime.models.gguf_tokenizer import build_tokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures"


def load(name):
    spec = importlib.util.spec_from_file_location(name, FIXTURES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tiny_models = load("tiny_models")
make_tiny_model = tiny_models.make_tiny_model
write_gguf = load("tiny_gguf").write_gguf


def tensors(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


def converted(file, tmp_path):
    """The folder of float32 weights that the store makes of a GGUF file."""
    return store.weights(store.resolve(str(file), home=tmp_path / "home"))


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"tie": True},
        {"heads": 9, "kv_heads": 3, "head_dim": 8},
        {"head_dim": 32, "hidden_size": 64},
        {"attention_bias": True, "mlp_bias": True},
        {"model_type": "qwen2"},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}},
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        },
    ],
    ids=lambda model: "-".join(model) or "plain",
)
def test_float32_tensors_and_config_come_back_exactly(tmp_path, model):
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = make_tiny_model(tmp_path / "model", **model)
    back = converted(write_gguf(folder, tmp_path / "tiny.gguf"), tmp_path)
    wrote, read = tensors(folder), tensors(back)
    assert wrote.keys() == read.keys()
    for name in wrote:
        np.testing.assert_array_equal(read[name], wrote[name], err_msg=name)
    ours, original = AutoConfig.from_pretrained(back), AutoConfig.from_pretrained(folder)
    for field in (
        "model_type vocab_size hidden_size intermediate_size num_hidden_layers rms_norm_eps "
        "num_attention_heads num_key_value_heads max_position_embeddings rope_parameters "
        "tie_word_embeddings hidden_act bos_token_id eos_token_id pad_token_id"
    ).split():
        assert getattr(ours, field) == getattr(original, field), field
    ids = torch.arange(3, 60)[None]
    with torch.inference_mode():
        logits = [
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(ids).logits
            for path in (folder, back)
        ]
    assert torch.equal(*logits)


@pytest.mark.parametrize(
    ("kind", "error"), [("F16", 1e-3), ("BF16", 1e-2), ("Q8_0", 0.02), ("Q5_1", 0.1), ("Q4_1", 0.2)]
)
def test_quantized_tensors_come_back_nearly(tmp_path, kind, error):
    folder = make_tiny_model(tmp_path / "model")
    back = tensors(converted(write_gguf(folder, tmp_path / "m.gguf", quantization=kind), tmp_path))
    for name, wrote in tensors(folder).items():
        assert back[name].dtype == np.float32
        assert np.abs(back[name] - wrote).max() <= error * np.abs(wrote).max(), name
        if wrote.ndim > 1:
            assert not np.array_equal(back[name], wrote)


def test_parts_are_one_model(tmp_path):
    """A file may be cut into parts; only the first holds the settings."""
    import gguf

    folder = make_tiny_model(tmp_path / "model", layers=1)
    whole = gguf.GGUFReader(write_gguf(folder, tmp_path / "whole.gguf"))
    first = tmp_path / "tiny-00001-of-00002.gguf"
    second = tmp_path / "tiny-00002-of-00002.gguf"
    write_gguf(folder, first, fields={"split.count": 2})
    writer = gguf.GGUFWriter(second, "llama")
    moved = gguf.GGUFReader(first).tensors[-3:]
    for tensor in moved:
        writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert len(GgufFile(first).parts) == 2
    assert {entry.name for entry in gguf_tensors.tensors(GgufFile(first))} == tensors(folder).keys()
    assert len(whole.tensors) == len(tensors(folder))
    with pytest.raises(InvalidRequest, match="name the first"):
        GgufFile(second)
    second.unlink()
    with pytest.raises(InvalidRequest, match=r"00002-of-00002\.gguf is missing"):
        GgufFile(first)


PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["'ll", "I'M", " 12345", "  3", "\r\n\n", "\t", " the", "<|im_end|>", "<|im_start|>user\n"]
    ),
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@pytest.fixture(scope="module")
def tiny_tokenizer(tmp_path_factory):
    """The tiny tokenizer before and after its way through a GGUF."""
    from tokenizers import Tokenizer

    path = tmp_path_factory.mktemp("tokenizer")
    folder = make_tiny_model(path / "model", layers=1)
    built, _ = build_tokenizer(GgufFile(write_gguf(folder, path / "m.gguf")))
    return Tokenizer.from_file(str(folder / "tokenizer.json")), built


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_tokens_are_those_of_the_tokenizer_that_was_written(tiny_tokenizer, text):
    original, built = tiny_tokenizer
    ids = built.encode(text).ids
    assert ids == original.encode(text).ids
    assert built.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("add_bos", [False, True])
def test_the_folder_is_one_that_transformers_loads(tmp_path, add_bos):
    from transformers import AutoTokenizer

    folder = make_tiny_model(tmp_path / "model", layers=1, add_bos=add_bos)
    file = write_gguf(folder, tmp_path / "m.gguf", user_defined=(300,))
    made = store.resolve(str(file), home=tmp_path / "home")
    ours, original = AutoTokenizer.from_pretrained(made), AutoTokenizer.from_pretrained(folder)
    text = "Once upon a time 123 <|im_start|>user\nhé<|im_end|>"
    ids = ours(text).input_ids
    assert ids == original(text).input_ids
    assert (ids[0] == 1) is add_bos
    messages = [{"role": "user", "content": "hi"}]
    for kwargs in ({"tokenize": False}, {"tokenize": False, "add_generation_prompt": True}):
        theirs = original.apply_chat_template(messages, **kwargs)
        assert ours.apply_chat_template(messages, **kwargs) == theirs
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        assert getattr(ours, name) == getattr(original, name)
    assert set(ours.all_special_ids) == {0, 1, 2}
    assert ours.decode([1, 300, 2], skip_special_tokens=True) == ours.decode([300])
    assert len(ours) == 384


def test_a_user_defined_token_is_never_cut(tmp_path):
    folder = make_tiny_model(tmp_path / "model", layers=1)
    content = json.loads((folder / "tokenizer.json").read_text())
    token, merges = "<think>", content["model"]["merges"]
    content["model"]["merges"] = merges[:-1]
    vocab = {k: v for k, v in content["model"]["vocab"].items() if v != 383}
    content["model"]["vocab"] = vocab | {token: 383}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    file = write_gguf(folder, tmp_path / "m.gguf", user_defined=(383,))
    tokenizer, _ = build_tokenizer(GgufFile(file))
    assert 383 in tokenizer.encode("so <think>why").ids
    assert tokenizer.decode([383], skip_special_tokens=True) == token


def test_single_digits(tmp_path):
    """`smollm` cuts numbers into digits before it merges, `gpt-2` does not."""
    folder = make_tiny_model(tmp_path / "model", layers=1, vocab=384)
    content = json.loads((folder / "tokenizer.json").read_text())
    vocab, merges = content["model"]["vocab"], content["model"]["merges"]
    last = next(token for token, index in vocab.items() if index == 383)
    del vocab[last]
    vocab["12"] = 383
    content["model"]["merges"] = [["1", "2"], *(m for m in merges if "".join(m) != last)]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokens = {}
    for pre in ("gpt-2", "smollm", "qwen2", "llama-bpe"):
        file = GgufFile(write_gguf(folder, tmp_path / f"{pre}.gguf", pre=pre))
        tokens[pre] = build_tokenizer(file)[0].encode("a12").tokens
    assert tokens == {
        "gpt-2": ["a", "12"],
        "smollm": ["a", "1", "2"],
        "qwen2": ["a", "1", "2"],
        "llama-bpe": ["a", "12"],
    }


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("llama-bpe", ["We", "'ll", " meet", " AtNoon", " ", "123", "45", "!\n", "/"]),
        ("dbrx", ["We", "'ll", " meet", " AtNoon", " ", "123", "45", "!\n", "/"]),
        ("gpt-4o", ["We'll", " meet", " At", "Noon", " ", "123", "45", "!\n/"]),
        ("tekken", ["We", "'ll", " meet", " At", "Noon", " ", "1", "2", "3", "4", "5", "!\n/"]),
    ],
)
def test_how_text_is_cut(tmp_path, pre, pieces):
    folder = make_tiny_model(tmp_path / "model", layers=1)
    tokenizer, _ = build_tokenizer(GgufFile(write_gguf(folder, tmp_path / "m.gguf", pre=pre)))
    text = "We'll meet AtNoon 12345!\n/"
    cut = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[slice(*place)] for _, place in cut] == pieces


def test_sentencepiece_vocabulary(tmp_path):
    """Best score first, unknown characters as bytes, a space before the text."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    pieces += ["▁t", "he", "▁the", "in", "▁", "t", "h", "e", "i", "n", "▁a"]
    scores = [0.0] * 259 + [-1.0, -2.0, -3.0, -4.0] + [-10.0] * 6 + [-0.5]
    types = [2, 3, 3] + [6] * 256 + [1] * 11
    fields = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }
    folder = make_tiny_model(tmp_path / "model", layers=1)
    file = GgufFile(write_gguf(folder, tmp_path / "m.gguf", fields=fields))
    tokenizer, settings_ = build_tokenizer(file)
    assert tokenizer.encode("the then").tokens == ["<s>", "▁the", "▁the", "n"]
    assert tokenizer.encode("né").tokens == ["<s>", "▁", "n", "<0xC3>", "<0xA9>"]
    after = tokenizer.encode("in</s>the", add_special_tokens=False).tokens
    assert after == ["▁", "in", "</s>", "▁the"]
    for text in ("the then", " in  in", "né 🎉", ""):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert settings_["unk_token"] == "<unk>"
    assert settings_["add_bos_token"] is True


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"pre": "jais"}, ["jais", "smollm", "qwen2"]),
        ({"pre": None}, ["None", "tokenizer.ggml.pre"]),
        ({"fields": {"tokenizer.ggml.model": "bert"}}, ["bert", "gpt2"]),
        ({"fields": {"tokenizer.ggml.add_eos_token": True}}, ["EOS"]),
        ({"fields": {"rope.dimension_count": 8}}, ["part of the head"]),
        ({"fields": {"rope.scaling.type": "su"}}, ["su"]),
        (
            {"fields": {"rope.scaling.type": "yarn", "rope.scaling.yarn_log_multiplier": 0.1}},
            ["yarn_log_multiplier"],
        ),
        ({"fields": {"general.architecture": "rwkv7"}}, ["rwkv7", *LAYOUTS]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_we_lack_is_refused_by_name(tmp_path, kwargs, words):
    folder = make_tiny_model(tmp_path / "model", layers=1)
    fields = kwargs.get("fields", {})
    file = tmp_path / "m.gguf"
    if "general.architecture" in fields:
        import gguf

        writer = gguf.GGUFWriter(file, fields["general.architecture"])
        writer.add_uint32("block_count", 1)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    else:
        write_gguf(folder, file, **kwargs)
    with pytest.raises(Unsupported) as caught:
        store.resolve(str(file), home=tmp_path / "home")
    for word in words:
        assert word in str(caught.value)
    assert not list((tmp_path / "home").rglob("*.json"))


@pytest.mark.parametrize("length", [0, 3, 100, 5000, -4000])
def test_a_file_that_is_cut_short(tmp_path, length):
    folder = make_tiny_model(tmp_path / "model", layers=1)
    file = write_gguf(folder, tmp_path / "m.gguf")
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(InvalidRequest, match=re.escape(str(file))):
        store.resolve(str(file), home=tmp_path / "home")


def test_several_ends(tmp_path):
    """Models that end a turn with another token than a text name both."""
    folder = make_tiny_model(tmp_path / "model", layers=1)
    fields = {"tokenizer.ggml.eot_token_id": 0}
    file = GgufFile(write_gguf(folder, tmp_path / "m.gguf", fields=fields))
    assert gguf_config.generation_config(file)["eos_token_id"] == [2, 0]
    assert gguf_config.config(file)["eos_token_id"] == 2


# ---- the demo model ----


@pytest.fixture(scope="module")
def demo(demo_model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(demo_model)


def test_demo_chat_tokens(demo):
    """The token ids that the model's publisher gives for its template."""
    text = demo.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        tokenize=False,
        add_generation_prompt=True,
    )
    system = "2683 359 253 5356 5646 11173 3365 3511 308 34519 28 7018 411 407 19712 8182"
    user = "1780 314 260 3575 282 4649 47"
    expected = f"1 9690 198 {system} 2 198 1 4093 198 {user} 2 198 1 520 9531 198"
    assert demo(text).input_ids == [int(token) for token in expected.split()]


def test_demo_digits_are_single(demo):
    tokens = demo.convert_ids_to_tokens(demo("It costs 12345, not  678.").input_ids)
    assert [t for t in tokens if any(c.isdigit() for c in t)] == list("12345678")


def test_every_demo_token_decodes(demo):
    """None is lost; special ones are themselves."""
    assert len(demo) == 49152
    spelled = demo.convert_ids_to_tokens(list(range(49152)))
    assert len(set(spelled)) == 49152
    special = demo.added_tokens_decoder
    assert special.keys() == set(range(17))
    assert all(token.special for token in special.values())
    for index, token in enumerate(spelled):
        text = demo.decode([index])
        if index in special:
            assert text == token
        else:
            assert text != ""
            assert "\ufffd" in text or demo.decode(demo(text).input_ids) == text


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_demo_texts_round_trip(demo, text):
    """The model has no token for a few bytes, and drops them, here and in llama.cpp."""
    text = re.sub("[\x04\x06\x13\x14\x16\x1d\U00040000-\U000bffff]", "", text)
    ids = demo(text, add_special_tokens=False).input_ids
    assert demo.decode(ids) == text


def test_demo_tokens_equal_transformers_where_there_are_no_digits(demo, demo_model):
    """transformers' own GGUF reader leaves out that digits are single; the rest must agree."""
    from transformers import AutoTokenizer

    prompts = load("prompts")
    data = prompts.load_data()
    if data is None:
        pytest.skip("the questions are missing")
    file = next(demo_model.glob("*.gguf"))
    theirs = AutoTokenizer.from_pretrained(demo_model, gguf_file=file.name)
    for item in data.gsm8k[:200]:
        text = re.sub(r"\d", "x", item["question"] + item["answer"])
        assert demo(text).input_ids == theirs(text).input_ids


def test_demo_weights_without_a_model_are_named(tmp_path):
    with pytest.raises(NotFound, match="neither safetensors nor a GGUF"):
        store.weights(tmp_path)
