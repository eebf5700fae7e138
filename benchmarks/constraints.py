"""What constraints cost: compiling, masks, steps with and without them, and forced tokens.

    python benchmarks/constraints.py --schemas ../shared/data/schemas/sample.jsonl

Each figure stands beside the one that it is to be compared with, measured in turn in this run.
`--only coverage` (or any other part) runs one part; it is printed as docs/constraints.md has it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from boughs import Engine
from boughs.lang.errors import GrammarError
from boughs.lang.sampling import SamplingParams
from boughs.runtime.config import EngineConfig
from boughs.runtime.constraints.compiler import GrammarCompiler
from boughs.runtime.constraints.masks import Masks
from boughs.runtime.core.core import Core
from boughs.runtime.core.runner import ModelRunner
from boughs.runtime.messages import Shutdown, Submit
from boughs.runtime.models.store import resolve

BATCH = 32

WORDS = json.dumps({"type": "array", "items": {"type": "string", "minLength": 200}, "minItems": 1})
"""Free text within JSON, where nothing is forced: as many tokens as are asked for."""

RECORD = {
    "type": "object",
    "properties": {
        f"the_{name}_of_the_customer_who_ordered": {"enum": values}
        for name, values in (
            ("preferred_language", ["English", "German"]),
            ("current_status", ["active", "suspended"]),
            ("number_of_orders", [1, 2, 3]),
            ("delivery_address_is_known", [True, False]),
        )
    },
    "additionalProperties": False,
}
RECORD["required"] = list(RECORD["properties"])


def make_tiny(folder, like):
    """Write a tiny model with random weights, and the tokenizer of another."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = json.loads((like / "config.json").read_text())
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config["vocab_size"],
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            bos_token_id=config["bos_token_id"],
            eos_token_id=config["eos_token_id"],
        )
    ).save_pretrained(folder)
    for path in like.glob("tokenizer*"):
        shutil.copy(path, folder)
    return folder


def coverage(compiler, lines):
    """Which schemas compile, by the source that they are from, and what is refused."""
    rows, refused = defaultdict(lambda: [0, 0, 0, 0]), []
    for line in lines:
        row = rows[re.split(r"---|_\d", line["id"])[0]]
        row[0] += 1
        try:
            grammar = compiler.ask("json_schema", json.dumps(line["schema"])).result()
        except GrammarError as error:
            refused.append((line["id"], str(error).removeprefix("json_schema: ")))
            row[3] += 1
        else:
            row[2 if grammar.weaker else 1] += 1
    print("| source | schemas | whole | with a check | refused |\n|---|---|---|---|---|")
    for source, row in (*sorted(rows.items()), ("all", map(sum, zip(*rows.values(), strict=True)))):
        print(f"| {source} | {' | '.join(map(str, row))} |")
    for name, why in refused:
        print(f"- {name}: {why}")


def compiling(about, lines):
    """Milliseconds from asking to having it: new, from the disk, and from memory."""
    sources = [json.dumps(line["schema"]) for line in lines]
    with tempfile.TemporaryDirectory() as cache:
        for name in ("new", "on disk", "in memory"):
            if name != "in memory":
                compiler = GrammarCompiler(*about, cache=Path(cache))
                compiler.ask("regex", "warm").exception()
            taken, refused = [], 0
            for source in sources:
                began = time.perf_counter()
                try:
                    compiler.matcher("json_schema", source)
                except GrammarError:
                    refused += 1
                taken.append((time.perf_counter() - began) * 1e3)
            median, p95 = statistics.median(taken), np.percentile(taken, 95)
            print(f"compile, {name}: median {median:.2f} ms, 95 % {p95:.2f} ms, refused {refused}")
        compiler.close()


def masks(compiler, vocab, sources, rounds=200):
    """Seconds of a batch of masks, ours and bare, on matchers of their own that draw alike."""
    plain, matchers = ([compiler.matcher("json_schema", s) for s in sources] for _ in range(2))
    ours, words = Masks(vocab, 2), -(-vocab // 32)
    bits = np.zeros((len(sources), words), dtype=np.uint32)
    taken, draw = {"bare": [], "ours": []}, np.random.default_rng(0)
    for _ in range(rounds):
        began = time.perf_counter()
        for at, matcher in enumerate(plain):
            matcher.raw.unsafe_compute_mask_ptr(bits[at].ctypes.data, words * 4)
        taken["bare"].append(time.perf_counter() - began)
        began = time.perf_counter()
        ours.begin(matchers)
        made = ours.take()
        taken["ours"].append(time.perf_counter() - began)
        for at in range(len(sources)):
            allowed = np.flatnonzero(np.unpackbits(made[at].view(np.uint8), bitorder="little"))
            token = int(draw.choice(allowed))
            for some in (plain, matchers):
                some[at].accept(token)
                if some[at].complete:
                    some[at] = compiler.matcher("json_schema", sources[at])
    ours.close()
    bare, own = (statistics.median(taken[name]) * 1e6 for name in ("bare", "ours"))
    return bare, own


def steps(model, tokens, rounds, bare):
    """Processor time of a step with a batch of requests, constrained and not, in turn.

    A core in this process, on one thread: what else the machine does hardly shows.
    """
    config = EngineConfig(model_path=str(model), kv_memory="256M", threads=1)
    core = Core(config, ModelRunner(config, model))
    taken, todo, last = {False: [], True: []}, [False, True] * (rounds + 1), [0.0]

    def requests(bound):
        params = SamplingParams(
            max_new_tokens=tokens, temperature=0.0, seed=0, ignore_eos=True,
            json_schema=WORDS if bound else None,
        )  # fmt: skip
        draw = np.random.default_rng(0).integers(100, 10_000, (BATCH, 16)).tolist()
        return [Submit(key=key + 1, prompt_ids=ids, params=params) for key, ids in enumerate(draw)]

    def receive(_):
        now = time.process_time()
        if core.scheduler.has_work or core.scheduler.compiling:
            if len(todo) < 2 * rounds:  # the first round of each compiles and fills caches
                taken[len(todo) % 2 == 0].append(now - last[0])
            last[0] = now
            return []
        last[0] = now
        return requests(todo.pop(0)) if todo else [Shutdown()]

    core.run(receive, lambda _: None)
    loose, bound = (statistics.median(taken[kind]) * 1e6 for kind in (False, True))
    print(
        f"step of {BATCH}: free {loose:.0f} us, constrained {bound:.0f} us, ratio "
        f"{bound / loose:.3f}, difference {(bound - loose) / bare:.2f} times its bare masks"
    )


def jumping(model, rounds):
    """Records a second with long keys, with and without jumping, in turn."""
    params = {"max_new_tokens": 200, "temperature": 0, "json_schema": json.dumps(RECORD)}
    prompts = [f"Customer {at}:" for at in range(8)]
    settings = {"jumping": False, "walking": True}
    engines = {
        name: Engine(model_path=str(model), kv_memory="256M", disable_jump_forward=off)
        for name, off in settings.items()
    }
    for logprobs in (False, True):
        best = dict.fromkeys(engines, float("inf"))
        for at in range(rounds + 1):
            for name, engine in engines.items():
                began = time.perf_counter()
                answers = engine.generate(prompts, params, return_logprob=logprobs)
                if at:
                    best[name] = min(best[name], time.perf_counter() - began)
                if name == "jumping":
                    forced = sum(a["meta_info"]["forced_tokens"] for a in answers)
                    total = sum(a["meta_info"]["completion_tokens"] for a in answers)
        saved = best["walking"] - best["jumping"]
        print(
            f"long keys{', with logprobs' if logprobs else ''}: {forced} of {total} tokens forced, "
            f"walking {best['walking']:.2f} s, jumping {best['jumping']:.2f} s, saved "
            f"{saved:.2f} s, throughput {best['walking'] / best['jumping']:.2f} times"
        )
    for engine in engines.values():
        engine.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--schemas", type=Path, help="lines of {id: ..., schema: ...}")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=5)
    parts = ("coverage", "compile", "masks", "steps", "tiny", "jump")
    parser.add_argument("--only", choices=parts, action="append", help="run this part alone")
    args = parser.parse_args()
    only = args.only or parts
    folder = resolve(args.model)
    config = json.loads((folder / "config.json").read_text())
    eos = config["eos_token_id"]
    about = folder, config["vocab_size"], (eos,) if isinstance(eos, int) else tuple(eos)
    lines = (
        [json.loads(line) for line in args.schemas.read_text().splitlines()] if args.schemas else []
    )
    compiler = GrammarCompiler(*about)
    if lines and "coverage" in only:
        coverage(compiler, lines)
    if lines and "compile" in only:
        compiling(about, lines)
    if lines and "masks" in only:
        compiled = [json.dumps(line["schema"]) for line in lines]
        some = [s for s in compiled if compiler.ask("json_schema", s).exception() is None][::5]
        bare, own = masks(compiler, about[1], some[:BATCH])
        print(
            f"{BATCH} masks of real schemas: bare {bare:.0f} us, {bare / BATCH:.1f} a token; "
            f"ours {own:.0f} us, {own / BATCH:.1f} a token; ratio {own / bare:.2f}"
        )
    bare = masks(compiler, about[1], [WORDS] * BATCH)[0]
    compiler.close()
    if "steps" in only:
        steps(folder, args.tokens, args.rounds, bare)
    if "tiny" in only:
        with tempfile.TemporaryDirectory() as place:
            print("on a tiny model: ", end="")
            steps(make_tiny(Path(place), folder), 100, args.rounds * 2, bare)
    if "jump" in only:
        jumping(folder, args.rounds)


if __name__ == "__main__":
    main()
