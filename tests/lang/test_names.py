"""What `boughs` hands on."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import boughs

SGLANG = {
    # sglang.__all__ (0.5.23) without Crusoe and VertexAI, whose models OpenAI and LiteLLM reach
    *("Anthropic", "LiteLLM", "OpenAI", "image", "video"),
    *("Engine", "Runtime", "RuntimeEndpoint", "__version__", "assistant", "assistant_begin"),
    *("assistant_end", "flush_cache", "function", "gen", "gen_int", "gen_string"),
    *("get_server_info", "global_config", "greedy_token_selection", "select"),
    "separate_reasoning",
    *("set_default_backend", "system", "system_begin", "system_end", "token_length_normalized"),
    *("unconditional_likelihood_normalized", "user", "user_begin", "user_end"),
}


def declared():
    """The names that type checkers are told of, and where from."""
    tree = ast.parse(Path(boughs.__file__).read_text())
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    return {alias.name: node.module for node in block.body for alias in node.names}


def test_all_is_what_is_handed_on():
    assert set(boughs.__all__) == {*boughs._HOME_OF, "__version__"}
    assert len(set(boughs.__all__)) == len(boughs.__all__)
    assert declared() == boughs._HOME_OF


@pytest.mark.parametrize("name", [name for name in boughs.__all__ if name != "__version__"])
def test_a_name_is_the_thing_in_its_home(name):
    home = importlib.import_module(boughs._HOME_OF[name])
    assert getattr(boughs, name) is getattr(home, name)


def test_sglangs_names_are_there():
    assert set(boughs.__all__) >= SGLANG


SIGNATURES = {
    # the parameters of SGLang's functions, in order; ours may have more after them
    "function": ("func", "num_api_spec_tokens"),
    "select": ("name", "choices", "temperature", "choices_method"),
    "image": ("expr",),
    "video": ("path", "num_frames"),
    "system": ("expr",),
    "user": ("expr",),
    "assistant": ("expr",),
    "system_begin": (),
    "assistant_end": (),
    "separate_reasoning": ("expr", "model_type"),
    "set_default_backend": ("backend",),
    "flush_cache": ("backend",),
    "get_server_info": ("backend",),
    "RuntimeEndpoint": ("base_url", "api_key", "verify", "chat_template_name"),
    "OpenAI": ("model_name", "is_chat_model", "chat_template", "is_azure"),
    "Anthropic": ("model_name",),
    "LiteLLM": (
        *("model_name", "chat_template", "api_key", "organization", "base_url", "timeout"),
        *("max_retries", "default_headers"),
    ),
    "Program.run_batch": (
        *("self", "batch_kwargs", "backend", "num_threads", "progress_bar", "generator_style"),
    ),
    "Program.bind": ("self", "kwargs"),
    "ProgramState.fork": ("self", "size", "position_ids_offset"),
    "ProgramState.copy": ("self", "position_ids_offset"),
    "ProgramState.get_var": ("self", "name"),
    "ProgramState.set_var": ("self", "name", "value"),
    "ProgramState.text_iter": ("self", "var_name"),
    "ProgramState.text_async_iter": ("self", "var_name", "return_meta_data"),
    "ProgramState.var_scope": ("self", "name"),
    "ProgramState.get_meta_info": ("self", "name"),
    "ProgramState.user": ("self", "expr"),
    "ProgramStateGroup.join": ("self", "mode"),
    "Runtime.generate": (
        *("self", "prompt", "sampling_params", "return_logprob", "logprob_start_len"),
        *("top_logprobs_num", "lora_path", "session_id"),
    ),
    "Runtime.async_generate": ("self", "prompt", "sampling_params", "session_id"),
    "Runtime.encode": ("self", "prompt"),
    "Runtime.cache_prefix": ("self", "prefix"),
}

MEMBERS = {
    "Program": ("run", "run_batch", "bind", "trace", "cache", "__call__"),
    "ProgramState": (
        *("__iadd__", "__getitem__", "__setitem__", "__contains__", "get_var", "set_var", "text"),
        *("messages", "sync", "error", "get_meta_info", "var_scope", "fork", "copy", "text_iter"),
        *("text_async_iter", "system", "user", "assistant", "ret_value", "__repr__"),
    ),
    "ProgramStateGroup": ("__getitem__", "__len__", "__iter__", "__iadd__", "join"),
    "Runtime": (
        *("shutdown", "get_server_info", "add_request", "async_generate", "generate", "encode"),
        *("cache_prefix", "get_tokenizer", "start_profile", "stop_profile"),
    ),
}


def named(path):
    value = boughs
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("path", SIGNATURES)
def test_signatures_begin_with_those_of_sglang(path):
    parameters = list(inspect.signature(named(path)).parameters)
    assert tuple(parameters[: len(SIGNATURES[path])]) == SIGNATURES[path]


@pytest.mark.parametrize("path", MEMBERS)
def test_classes_have_what_sglangs_have(path):
    assert [name for name in MEMBERS[path] if not hasattr(named(path), name)] == []


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        boughs.nonsense


def test_every_error_of_ours_is_handed_on():
    from boughs.lang import errors

    mine = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.BoughsError)
    }
    assert mine <= set(boughs.__all__)


def test_global_config_has_nothing_that_means_nothing():
    with pytest.raises(AttributeError):
        boughs.global_config.enable_precache_with_tracing = False


@pytest.mark.parametrize("name", ["Crusoe", "VertexAI"])
def test_a_backend_that_is_no_class_here_says_what_reaches_its_models(name):
    with pytest.raises(AttributeError, match=f"no {name}; .* reaches its models"):
        getattr(boughs, name)
