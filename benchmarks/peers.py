"""Programs with shared prefixes on our engine, and the same prompts on others.

    python benchmarks/peers.py [--peer PYTHON ...] [--threads 2] [--only single]

Each `--peer` is the Python of an environment in which `openvino-genai` or `llama-cpp-python` is
installed; without one only our own times are printed. All read the same GGUF file, greedy, and end
no answer early. llama-cpp-python computes one prompt after another, and keeps the prefix that a
prompt shares with the one before. `cold` has nothing cached, `warm` is the same call again. Read
the ratios: all sides run in the same minutes, one after the other.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

MODEL = "smollm2-135m"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "gsm8k_test.jsonl"

OPENVINO = """
import openvino_genai as genai

scheduler = genai.SchedulerConfig()
scheduler.cache_size = 2
scheduler.enable_prefix_caching = True
pipe = genai.LLMPipeline(path, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads)

def run(prompts, tokens):
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
    config.apply_chat_template = False
    begun = time.perf_counter()
    pipe.generate(prompts, config)
    return time.perf_counter() - begun
"""

LLAMA_CPP = """
from itertools import islice
from llama_cpp import Llama

model = Llama(path, n_ctx=8192, n_threads=threads, n_threads_batch=threads, verbose=False)

def run(prompts, tokens):
    begun = time.perf_counter()
    for prompt in prompts:
        ids = model.tokenize(prompt.encode(), add_bos=False)
        found = list(islice(model.generate(ids, temp=0.0, repeat_penalty=1.0), tokens))
        assert len(found) == tokens
    return time.perf_counter() - begun
"""

PEERS = {
    "openvino_genai": ("OpenVINO GenAI", OPENVINO),
    "llama_cpp": ("llama.cpp", LLAMA_CPP),
}
"""By the module that an environment has."""

BEFORE = """
import json, sys, time

path, threads, work = sys.argv[1], int(sys.argv[2]), json.load(open(sys.argv[3]))
"""

BEHIND = """
run(["Warm up."], 4)
print(json.dumps({name: [run(*job), run(*job)] for name, job in work.items()}))
"""


def jobs() -> dict[str, tuple[list[str], int]]:
    """Of each workload: the prompts, and how many tokens each is continued by."""
    if DATA.is_file():
        items = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    else:
        items = [
            {"question": f"What is {i} and {2 * i}?", "answer": f"{i} + {2 * i} = {3 * i}."}
            for i in range(400)
        ]
    pairs = [f"Question: {item['question']}\nAnswer: {item['answer']}\n\n" for item in items]
    head = "".join(pairs[:5])
    few_shot = [f"{head}Question: {item['question']}\nAnswer:" for item in items[5:37]]
    long = "".join(pairs[40:50])
    branches = [f"{long}Tip {i + 1}:" for i in range(8)]
    unshared = ["".join(pairs[60 + 2 * i : 62 + 2 * i]) for i in range(16)]
    return {
        "few-shot, 32 of 16": (few_shot, 16),
        "branches, 8 of 32": (branches, 32),
        "unshared, 16 of 64": (unshared, 64),
        "single stream, 128": (["The river was wide, and"], 128),
    }


def ours(work: dict[str, tuple[list[str], int]], threads: int) -> dict[str, list[float]]:
    """Seconds of each workload, cold and warm."""
    import boughs

    times = {}
    with boughs.Engine(model_path=MODEL, threads=threads, kv_memory="2G") as engine:
        engine.generate("Warm up.", {"max_new_tokens": 4})
        for name, (prompts, tokens) in work.items():
            params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
            engine.flush_cache()
            times[name] = []
            for _ in range(2):
                begun = time.perf_counter()
                engine.generate(prompts, params)
                times[name].append(time.perf_counter() - begun)
    return times


def theirs(
    python: str, work: dict[str, tuple[list[str], int]], threads: int
) -> tuple[str, dict[str, list[float]]]:
    """The name of the peer that an environment has, and its times."""
    from boughs.runtime.models.store import resolve

    (path,) = resolve(MODEL).glob("*.gguf")
    asked = f"from importlib.util import find_spec; print(*filter(find_spec, {list(PEERS)}))"
    there = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    if not there.stdout.split():
        raise SystemExit(f"{python} has none of {', '.join(PEERS)}")
    name, code = PEERS[there.stdout.split()[0]]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(work, file)
        file.flush()
        command = [python, "-c", BEFORE + code + BEHIND, str(path), str(threads), file.name]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        print(made.stderr[-2000:], file=sys.stderr)
        raise SystemExit(f"{name} did not run")
    times: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return name, times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        help="a Python with openvino-genai or llama-cpp-python",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="workloads whose name begins so")
    args = parser.parse_args()
    work = {name: job for name, job in jobs().items() if name.startswith(args.only)}
    mine = ours(work, args.threads)
    peers = dict(theirs(python, work, args.threads) for python in args.peer)
    table = Table(title=f"seconds, {args.threads} threads; how many times as long as ours")
    for column in ("workload", "", "cold", "warm"):
        table.add_column(column, justify="right" if column in {"cold", "warm"} else "left")
    for job, times in mine.items():
        table.add_row(job, "ours", *(f"{t:.2f}" for t in times))
        for name, peer in peers.items():
            pairs = zip(peer[job], times, strict=True)
            table.add_row("", name, *(f"{t:.2f} ({t / own:.2f})" for t, own in pairs))
    Console().print(table)


if __name__ == "__main__":
    main()
