"""What was compiled before a first start is on disk."""

import os
import subprocess
import sys

SCRIPT = """
from boughs.kernels import ahead
from boughs.kernels.linear import linear_call, takes
from boughs.kernels.row_calls import gate, norm
from boughs.kernels.team import run_tasks
ahead.compile_layers(["int4"])
calls = linear_call("int4", whole=takes("int4")), norm(), gate()
print(sum(call.cache_hits for call in calls))
print(sum(run_tasks().stats.cache_misses.values()))
"""


def test_what_another_process_compiled_is_loaded(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-P", "-m", "boughs.kernels.ahead", "int4"]
    subprocess.run(command, env=environment, check=True, timeout=250)
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True, text=True
    )
    assert found.stdout.split() == ["3", "0"]
