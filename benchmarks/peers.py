"""Programs with shared prefixes on our engine, and the same prompts on others.

    python benchmarks/peers.py [--peer PYTHON ...] [--llama-server PATH] [--threads 2]
                               [--clients 8] [--only single]

All sides read the same GGUF file, answer greedily and end no answer early; every side goes on with
what it answered itself. `cold` has nothing cached, `warm` is the same call again. Read the ratios.

In one process: each `--peer` is the Python of an environment in which `openvino-genai` or
`llama-cpp-python` is installed. A turn of all chats is one list; but llama-cpp-python computes one
prompt after another, chat by chat, and keeps the prefix that a prompt shares with the one before.
The sides run one after the other.

Behind HTTP: `--llama-server` is llama.cpp's server, `boughs serve` its counterpart, with the same
threads. As many chats run at a time as there are clients, over the same client's code; both servers
are up all the time and take turns, workload by workload.
"""

from __future__ import annotations

import argparse
import inspect
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import boughs
from boughs.runtime.models.store import resolve

# The file beside this one, which nobody's import path has under PYTHONSAFEPATH.
sys.path.insert(0, str(Path(__file__).parent))
from peer_servers import ask, boughs_server, llama_server

MODEL = "smollm2-135m"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

Times = dict[str, list[float]]
"""Seconds of each workload, cold and warm."""

Work = dict[str, tuple[list[list[str]], int]]
"""Of each workload: of each chat what is added at each turn, and how many tokens answer it."""

OPENVINO = """
import openvino_genai as genai

scheduler = genai.SchedulerConfig()
scheduler.cache_size = 2
scheduler.enable_prefix_caching = True
options = {"INFERENCE_NUM_THREADS": threads, **options}
pipe = genai.LLMPipeline(path, "CPU", scheduler_config=scheduler, **options)

def run(chats, tokens):
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
    config.apply_chat_template = False
    begun = time.perf_counter()
    converse(chats, lambda prompts: pipe.generate(prompts, config).texts)
    return time.perf_counter() - begun
"""

LLAMA_CPP = """
from itertools import islice
from llama_cpp import Llama

model = Llama(path, n_ctx=8192, n_threads=threads, n_threads_batch=threads, verbose=False)

def run(chats, tokens):
    def answer(prompts):
        ids = model.tokenize(prompts[0].encode(), add_bos=False)
        found = list(islice(model.generate(ids, temp=0.0, repeat_penalty=1.0), tokens))
        assert len(found) == tokens
        return [model.detokenize(found).decode(errors="replace")]

    begun = time.perf_counter()
    for chat in chats:
        converse([chat], answer)
    return time.perf_counter() - begun
"""

FLOAT32 = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    "KV_CACHE_PRECISION": "f32",
}
"""OpenVINO rounds activations to 8 or 16 bits and the KV cache to 8, unless it is told not to."""

PEERS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "openvino_genai": (OPENVINO, {"OpenVINO GenAI": {}, "the same in float32": FLOAT32}),
    "llama_cpp": (LLAMA_CPP, {"llama.cpp": {}}),
}
"""By the module that an environment has: what runs there, and with what options, by name."""

BEFORE = """
from __future__ import annotations
import json, sys, time

path, threads, work = sys.argv[1], int(sys.argv[2]), json.load(open(sys.argv[3]))
options = json.loads(sys.argv[4])
"""

BEHIND = """
run([["Warm up."]], 4)
print(json.dumps({name: [run(*job), run(*job)] for name, job in work.items()}))
"""


def converse(chats: list[list[str]], answer: Callable[[list[str]], list[str]]) -> None:
    """Run chats of equally many turns: a turn of all is one call of `answer`, list to list."""
    texts = [""] * len(chats)
    for turn in zip(*chats, strict=True):
        prompts = [text + added for text, added in zip(texts, turn, strict=True)]
        texts = [text + more for text, more in zip(prompts, answer(prompts), strict=True)]


def read(name: str) -> list[dict[str, Any]]:
    """The lines of a file of data; none where it is missing."""
    path = DATA / name
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def jobs() -> Work:
    """The workloads, over real data where it is there."""
    items = read("gsm8k_test.jsonl") or [
        {"question": f"What is {i} and {2 * i}?", "answer": f"{i} + {2 * i} = {3 * i}."}
        for i in range(400)
    ]
    pairs = [f"Question: {item['question']}\nAnswer: {item['answer']}\n\n" for item in items]
    head = "".join(pairs[:5])
    few_shot = [[f"{head}Question: {item['question']}\nAnswer:"] for item in items[5:37]]
    long = "".join(pairs[40:50])
    branches = [[f"{long}Tip {i + 1}:"] for i in range(8)]
    unshared = [["".join(pairs[60 + 2 * i : 62 + 2 * i])] for i in range(16)]
    return {
        "few-shot, 32 of 16": (few_shot, 16),
        "branches, 8 of 32": (branches, 32),
        "multi-turn, 12 of 4 x 64": (talks(12), 64),
        "unshared, 16 of 64": (unshared, 64),
        "single stream, 128": ([["The river was wide, and"]], 128),
    }


def talks(count: int) -> list[list[str]]:
    """Chats of four turns: two questions of MT-bench each, which have two turns."""
    questions = read("mt_bench_questions.jsonl") or [
        {"turns": [f"Describe town number {i} to a traveller.", "Now say it in one sentence."]}
        for i in range(2 * count)
    ]
    pairs = zip(questions[: 2 * count : 2], questions[1 : 2 * count : 2], strict=True)
    chats = [first["turns"] + second["turns"] for first, second in pairs]
    return [[f"\n\nUser: {turn}\n\nAssistant:" for turn in chat] for chat in chats]


def twice(run: Callable[[], object]) -> list[float]:
    """Seconds that `run` takes, cold and warm."""
    times = []
    for _ in range(2):
        begun = time.perf_counter()
        run()
        times.append(time.perf_counter() - begun)
    return times


def texts_of(engine: boughs.Engine, tokens: int, prompts: list[str]) -> list[str]:
    """What our engine answers to a list."""
    params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    made: Any = engine.generate(prompts, params)
    return [one["text"] for one in made]


def ours(work: Work, threads: int) -> Times:
    """Our own times in this process."""
    times = {}
    with boughs.Engine(model_path=MODEL, threads=threads, kv_memory="2G") as engine:
        engine.generate("Warm up.", {"max_new_tokens": 4})
        for name, (chats, tokens) in work.items():
            engine.flush_cache()
            times[name] = twice(partial(converse, chats, partial(texts_of, engine, tokens)))
    return times


def served(binary: Path, work: Work, threads: int, clients: int) -> dict[str, Times]:
    """The times of both servers."""
    with (
        boughs_server(MODEL, threads) as own,
        llama_server(binary, model_file(), threads, clients) as other,
    ):
        servers = {"boughs serve": own, "llama-server": other}
        sides: dict[str, Times] = {name: {} for name in servers}
        for url in servers.values():
            ask(url, [["Warm up."]], 4, 1)
        for job, (chats, tokens) in work.items():
            for name, url in servers.items():
                sides[name][job] = twice(partial(ask, url, chats, tokens, clients))
    return sides


def model_file() -> Path:
    """The GGUF file that all sides read."""
    (path,) = resolve(MODEL).glob("*.gguf")
    return path


def theirs(python: str, work: Work, threads: int) -> dict[str, Times]:
    """The times of the peer that an environment has, by its name, with each set of options."""
    asked = f"from importlib.util import find_spec; print(*filter(find_spec, {list(PEERS)}))"
    there = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True)
    if not there.stdout.split():
        raise SystemExit(f"{python} has none of {', '.join(PEERS)}")
    code, ways = PEERS[there.stdout.split()[0]]
    script = BEFORE + inspect.getsource(converse) + code + BEHIND
    sides: dict[str, Times] = {}
    for name, options in ways.items():
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(work, file)
            file.flush()
            given = [str(model_file()), str(threads), file.name, json.dumps(options)]
            command = [python, "-c", script, *given]
            made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            print(made.stderr[-2000:], file=sys.stderr)
            raise SystemExit(f"{name} did not run")
        sides[name] = json.loads(made.stdout.splitlines()[-1])
    return sides


def show(title: str, work: Work, sides: Mapping[str, Times]) -> None:
    """Print the times, and how many times as long as the first side each other took."""
    table = Table(title=f"{title}: seconds, and times the first side's")
    for column in ("workload", "", "cold", "warm"):
        table.add_column(column, justify="right" if column in {"cold", "warm"} else "left")
    (_, own), *_ = sides.items()
    for job in work:
        for at, (name, times) in enumerate(sides.items()):
            pairs: Sequence[tuple[float, float]] = list(zip(times[job], own[job], strict=True))
            cells = [f"{t:.2f} ({t / first:.2f})" if at else f"{t:.2f}" for t, first in pairs]
            table.add_row("" if at else job, name, *cells)
    Console().print(table)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        help="a Python with openvino-genai or llama-cpp-python",
    )
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's llama-server")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8, help="of a server, at a time")
    parser.add_argument("--only", default="", help="workloads whose name begins so")
    args = parser.parse_args()
    work = {name: job for name, job in jobs().items() if name.startswith(args.only)}
    mine = ours(work, args.threads)
    sides = {"ours": mine}
    for python in args.peer:
        sides |= theirs(python, work, args.threads)
    show(f"one process, {args.threads} threads", work, sides)
    if args.llama_server:
        sides = served(args.llama_server, work, args.threads, args.clients)
        title = f"{args.clients} clients of a server, {args.threads} threads"
        show(title, work, {**sides, "one process": mine})


if __name__ == "__main__":
    main()
