"""What tests of several folders share: modules of `fixtures/`, and models."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("boughs", deadline=None)  # a busy machine is not a fault
settings.load_profile("boughs")

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # as the core process does; before torch is loaded

if "BOUGHS_TEST_GPU" not in os.environ:  # `make test-gpu` sets it; all other tests mean the CPU
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell's `&` ignores it, and what tests start and interrupt would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

FIXTURES = Path(__file__).parent / "fixtures"


def load_fixture(name):
    """The module `fixtures/<name>.py`, imported once."""
    module_name = f"boughs_fixtures_{name}"
    if module_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(module_name, FIXTURES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    return sys.modules[module_name]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of a tiny random model with a tokenizer and a chat template."""
    return load_fixture("tiny_models").make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def demo_model():
    """The folder of the demo model; it is pulled where it is missing."""
    from boughs.runtime.models.store import resolve

    return resolve("smollm2-135m")
