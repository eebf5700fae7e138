"""What compiled kernels need is compiled, or loaded, before a core says that it is ready."""

import importlib.util
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
import boughs
from boughs.kernels.attend import attend
from boughs.kernels.paged import run_pieces
from boughs.kernels.row_calls import rotate
from numba.core.dispatcher import Dispatcher

compile = Dispatcher.compile

def refuse(self, signature):
    raise AssertionError(f"{self.py_func.__qualname__} is compiled by a request")

def main(folder, kind):
    Dispatcher.compile = compile
    settings = {"in_process": True, "page_size": 4, "kv_memory": "8M", "max_batched_tokens": 64}
    with boughs.Engine(model_path=folder, kv_cache_dtype=kind, **settings) as engine:
        Dispatcher.compile = refuse
        shared = list(range(3, 200))
        greedy = {"temperature": 0, "max_new_tokens": 6}
        engine.generate(input_ids=shared, sampling_params=greedy)
        many = [[*shared, 7 + i] for i in range(24)] + [list(range(5, 90))]
        engine.generate(input_ids=many, sampling_params=greedy)  # cascade; prefill beside decodes
        some = {"temperature": 1.0, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "n": 3}
        engine.generate(input_ids=shared, sampling_params={**some, "frequency_penalty": 0.5})
        for temperature in (0, 1):
            params = {"regex": "[a-z]+", "max_new_tokens": 5, "temperature": temperature}
            engine.generate("Yes", params, return_logprob=True, logprob_start_len=0)
    for kernel in (attend, rotate, run_pieces):
        assert kernel.cache_info().currsize == 1, f"{kernel} is there for other caches, too"

for folder in sys.argv[2:]:
    main(folder, sys.argv[1])
print("done")
"""


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_request_waits_for_a_compiler(tiny_model, tmp_path):
    gemma = load("tiny_models").make_tiny_model(
        tmp_path / "gemma", model_type="gemma2", sliding_window=7
    )
    for kind in ("int8", "bfloat16", "float32"):
        found = subprocess.run(
            [sys.executable, "-c", SCRIPT, kind, str(tiny_model), str(gemma)],
            capture_output=True,
            text=True,
        )
        assert found.stdout == "done\n", found.stderr
