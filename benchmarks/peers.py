"""Programs with shared prefixes on our engine, and the same prompts on OpenVINO GenAI.

    python benchmarks/peers.py [--peer PYTHON] [--threads 2]

`--peer` is the Python of an environment in which `openvino-genai` is installed (`pip install
openvino-genai`); without it only our own times are printed. Both read the same GGUF file, greedy,
and end no answer early. `cold` has nothing cached, `warm` is the same call again. Read the ratios:
both sides run in the same minutes, one after the other.
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

PEER = """
import json, sys, time
import openvino_genai as genai

path, threads, work = sys.argv[1], int(sys.argv[2]), json.load(open(sys.argv[3]))
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

run(["Warm up."], 4)
json.dump({name: [run(*job), run(*job)] for name, job in work.items()}, sys.stdout)
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
) -> dict[str, list[float]]:
    """The same of OpenVINO GenAI."""
    from boughs.runtime.models.store import resolve

    (path,) = resolve(MODEL).glob("*.gguf")
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(work, file)
        file.flush()
        command = [python, "-c", PEER, str(path), str(threads), file.name]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        print(made.stderr[-2000:], file=sys.stderr)
        raise SystemExit("OpenVINO GenAI did not run")
    times: dict[str, Any] = json.loads(made.stdout.splitlines()[-1])
    return times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="a Python with openvino-genai")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    work = jobs()
    mine = ours(work, args.threads)
    peer = theirs(args.peer, work, args.threads) if args.peer else None
    table = Table(title=f"seconds, {args.threads} threads")
    for column in ("workload", "ours cold", "warm", "OpenVINO cold", "warm", "ratio cold", "warm"):
        table.add_column(column, justify="left" if column == "workload" else "right")
    for name, (cold, warm) in mine.items():
        row = [name, f"{cold:.2f}", f"{warm:.2f}"]
        if peer is not None:
            other = peer[name]
            row += [f"{t:.2f}" for t in other]
            row += [f"{t / own:.2f}" for t, own in zip(other, (cold, warm), strict=True)]
        table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    main()
