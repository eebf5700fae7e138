"""What `boughs` hands on."""

import ast
import importlib
from pathlib import Path

import pytest

import boughs

SGLANG = {
    # sglang.__all__ (0.5.23) without what a later issue brings
    *("Anthropic", "LiteLLM", "OpenAI"),
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
