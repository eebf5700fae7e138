"""The whole engine on the demo model: what the tree saves, and transformers beside it.

    python benchmarks/engine.py [--requests 16] [--tokens 16] [--shots 5]

Every row runs the same prompts (a few-shot batch over GSM8K, or made-up sums where the data is
missing) in the same minutes; read the ratios, not the seconds. `no cache` is our engine with
`disable_radix_cache`, `first run` has a cold tree, `second run` finds every prompt in it,
`transformers` generates each prompt by itself with its own KV cache.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import boughs

MODEL = "smollm2-135m"
DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "gsm8k_test.jsonl"


def prompts(requests: int, shots: int) -> list[str]:
    """Few-shot prompts that share their worked examples."""
    if DATA.is_file():
        items = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
    else:
        items = [
            {"question": f"What is {i} and {2 * i}?", "answer": f"{i} + {2 * i} = {3 * i}."}
            for i in range(requests + shots)
        ]
    head = "".join(
        f"Question: {item['question']}\nAnswer: {item['answer']}\n\n" for item in items[:shots]
    )
    return [
        f"{head}Question: {item['question']}\nAnswer:" for item in items[shots : shots + requests]
    ]


def timed(run: Callable[[], object]) -> float:
    """Seconds that `run` takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measure(texts: list[str], tokens: int) -> list[tuple[str, float]]:
    """(what, seconds) of each way to answer all prompts."""
    params = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    rows = []
    with boughs.Engine(model_path=MODEL, disable_radix_cache=True) as engine:
        engine.generate(prompt=texts[0], sampling_params=params)
        rows.append(("no cache", timed(lambda: engine.generate(texts, params))))
    with boughs.Engine(model_path=MODEL) as engine:
        engine.generate(prompt="warm up", sampling_params=params)
        rows.append(("first run", timed(lambda: engine.generate(texts, params))))
        rows.append(("second run", timed(lambda: engine.generate(texts, params))))
    rows.append(("transformers", _transformers(texts, tokens)))
    return rows


def _transformers(texts: list[str], tokens: int) -> float:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from boughs.runtime.models.store import resolve, weights

    folder = resolve(MODEL)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(weights(folder), dtype=torch.float32)

    def run() -> None:
        for text in texts:
            ids = tokenizer(text, return_tensors="pt")
            model.generate(
                **ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
            )

    with torch.inference_mode():
        return timed(run)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--shots", type=int, default=5)
    args = parser.parse_args()
    texts = prompts(args.requests, args.shots)
    rows = measure(texts, args.tokens)
    slowest = dict(rows)["transformers"]
    table = Table(title=f"{args.requests} requests, {args.shots} shots, {args.tokens} tokens out")
    for column in ("what", "seconds", "times transformers"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what, seconds in rows:
        table.add_row(what, f"{seconds:.2f}", f"{slowest / seconds:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
