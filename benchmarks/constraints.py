"""What constraints cost: compiling, masks, steps with and without them, and forced tokens.

    python benchmarks/constraints.py --schemas ../shared/data/schemas/sample.jsonl

Each figure stands beside the one that it is to be compared with, measured in turn in this run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from boughs import Engine
from boughs.lang.errors import GrammarError
from boughs.runtime.constraints.compiler import GrammarCompiler
from boughs.runtime.constraints.masks import Masks

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


def compiling(folder, vocab, eos, schemas):
    """Milliseconds from asking to having it: new, from the disk, and from memory."""
    sources = [json.dumps(json.loads(line)["schema"]) for line in schemas.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as cache:
        for name in ("new", "on disk", "in memory"):
            if name != "in memory":
                compiler = GrammarCompiler(folder, vocab, eos, cache=Path(cache))
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


def masks(folder, vocab, eos, rounds=200):
    """Seconds of 32 masks, ours and bare, each on matchers of its own; medians."""
    compiler = GrammarCompiler(folder, vocab, eos)
    plain = [compiler.matcher("json_schema", WORDS) for _ in range(32)]
    matchers = [compiler.matcher("json_schema", WORDS) for _ in range(32)]
    ours, words = Masks(vocab, 2), -(-vocab // 32)
    bits = np.zeros((32, words), dtype=np.uint32)
    taken = {"bare": [], "ours": []}
    for _ in range(rounds):
        began = time.perf_counter()
        for at, matcher in enumerate(plain):
            matcher.raw.unsafe_compute_mask_ptr(bits[at].ctypes.data, words * 4)
        taken["bare"].append(time.perf_counter() - began)
        began = time.perf_counter()
        ours.begin(matchers)
        made = ours.take()
        taken["ours"].append(time.perf_counter() - began)
        token = int(np.unpackbits(made[0].view(np.uint8), bitorder="little").argmax())
        for matcher in (*plain, *matchers):
            matcher.accept(token)
    bare, own = (statistics.median(taken[name]) * 1e6 for name in ("bare", "ours"))
    print(f"32 masks: bare {bare:.0f} us, ours {own:.0f} us, ratio {own / bare:.2f}")
    compiler.close()
    ours.close()
    return bare * 1e-6


def steps(engine, bare, tokens, rounds):
    """Seconds of a step with 32 requests, constrained and not, in turn."""
    prompts = [f"Story {at}: once upon a time" for at in range(32)]
    free = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    taken = {"free": [], "bound": []}
    for at in range(rounds + 1):
        for name, params in (("free", free), ("bound", {**free, "json_schema": WORDS})):
            began = time.perf_counter()
            answers = engine.generate(prompts, params)
            count = max(len(answer["output_ids"]) for answer in answers)
            if at:  # the first round compiles and fills caches
                taken[name].append((time.perf_counter() - began) / count)
    loose, bound = (min(taken[name]) for name in ("free", "bound"))
    print(
        f"step of 32: free {loose * 1e3:.2f} ms, constrained {bound * 1e3:.2f} ms, "
        f"ratio {bound / loose:.3f}, difference {(bound - loose) / bare:.2f} times bare masks"
    )


def jumping(model, rounds):
    """Records a second with long keys, with and without jumping, in turn."""
    params = {"max_new_tokens": 200, "temperature": 0, "json_schema": json.dumps(RECORD)}
    prompts = [f"Customer {at}:" for at in range(8)]
    settings = {"jumping": False, "walking": True}
    engines = {
        name: Engine(model_path=model, kv_memory="256M", disable_jump_forward=off)
        for name, off in settings.items()
    }
    best = dict.fromkeys(engines, float("inf"))
    for at in range(rounds + 1):
        for name, engine in engines.items():
            began = time.perf_counter()
            answers = engine.generate(prompts, params)
            if at:
                best[name] = min(best[name], time.perf_counter() - began)
            forced = sum(a["meta_info"].get("forced_tokens", 0) for a in answers)
            total = sum(a["meta_info"]["completion_tokens"] for a in answers)
            print(f"  {name}: {forced} of {total} tokens forced")
    for engine in engines.values():
        engine.shutdown()
    print(
        f"long keys: walking {best['walking']:.2f} s, jumping {best['jumping']:.2f} s, "
        f"throughput {best['walking'] / best['jumping']:.2f} times"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--schemas", type=Path, help="lines of {schema: ...}")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with Engine(model_path=args.model, kv_memory="256M") as engine:
        info = engine.get_server_info()
        about = Path(info["model_path"]), info["vocab_size"], tuple(info["eos_token_ids"])
        if args.schemas:
            compiling(*about, args.schemas)
        bare = masks(*about)
        steps(engine, bare, args.tokens, args.rounds)
    jumping(args.model, args.rounds)


if __name__ == "__main__":
    main()
