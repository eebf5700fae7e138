"""Lets the tests here import `fixtures/cache_world.py`, as `boughs_fixtures_cache_world`."""

import importlib.util
import sys
from pathlib import Path

NAME = "boughs_fixtures_cache_world"

if NAME not in sys.modules:
    path = Path(__file__).parents[1] / "fixtures" / "cache_world.py"
    spec = importlib.util.spec_from_file_location(NAME, path)
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])
