"""CPUs with less than AVX-512's byte products: the same tests, compiled for such a one.

numba takes another CPU's name and instructions from its environment; this one must have them, too.
What is compiled goes into a folder of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from boughs.kernels.host import FEATURES

ROOT = Path(__file__).parents[2]

AVX2 = (
    "64bit", "cx8", "cx16", "cmov", "fxsr", "sahf", "sse", "sse2", "sse3", "ssse3", "sse4.1",
    "sse4.2", "popcnt", "lzcnt", "movbe", "bmi", "bmi2", "fma", "f16c", "avx", "avx2",
)  # fmt: skip
AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
CPUS = {"haswell": AVX2, "skylake-avx512": (*AVX2, *AVX512)}

KERNELS = ("attention", "cascade", "linear", "program")
ENGINE = "tests/end_to_end/test_transformers_equality.py::test_alone_cold"


def lowered(name, folder):
    """An environment in which numba compiles for a CPU."""
    if not set(CPUS[name]) <= FEATURES:
        pytest.skip(f"this CPU is less than {name}")
    features = ",".join(f"+{feature}" for feature in CPUS[name])
    return {
        **os.environ,
        "NUMBA_CPU_NAME": name,
        "NUMBA_CPU_FEATURES": features,
        "NUMBA_CACHE_DIR": str(folder),
    }


def run(environment, *command):
    found = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.parametrize(("name", "block"), [("haswell", 1), ("skylake-avx512", 4)])
def test_kernels_are_made_for_the_cpu_that_numba_compiles_for(name, block, tmp_path):
    script = (
        "from boughs.kernels import digits, host, simd\n"
        "from boughs.kernels.bitmask import forbid\n"
        "forbid()\n"
        "print(host.NAME, simd.BLOCK, digits.AVAILABLE, 'avx512vnni' in host.FEATURES)"
    )
    assert run(lowered(name, tmp_path), "-c", script) == f"{name} {block} False False\n"


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", CPUS)
def test_kernels_and_engine_on(name, tmp_path):
    tests = [f"tests/kernels/test_{kernel}.py" for kernel in KERNELS]
    options = ("-q", "-x", "-p", "no:cacheprovider", "--timeout", "1200")
    run(lowered(name, tmp_path), "-m", "pytest", *options, *tests, ENGINE)
