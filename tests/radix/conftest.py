"""The imitated cache of `fixtures/cache_world.py`, for all tests here."""

import importlib.util
import sys
from pathlib import Path

import pytest

NAME = "boughs_fixtures_cache_world"


@pytest.fixture(scope="session")
def world():
    """The module `fixtures/cache_world.py`, imported once."""
    if NAME not in sys.modules:
        path = Path(__file__).parents[1] / "fixtures" / "cache_world.py"
        spec = importlib.util.spec_from_file_location(NAME, path)
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    return sys.modules[NAME]
