"""Perplexity of a model on a fixed text, by the number format of its weights.

    python benchmarks/perplexity.py [--model smollm2-135m] [--text benchmarks/perplexity.txt]

`none` computes with the numbers of the file in float32, `auto` with the same numbers in the file's
own format; `int8` and `int4` are rounded from float32. The text is the beginning of six works whose
copyright has ended, one prompt a paragraph. The demo model's file holds 4 bits a number, which
flatters `int4`: it meets numbers that were rounded much like it rounds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from torch import Tensor

from boughs.kernels.batch import AttentionBatch
from boughs.kernels.choice import make_backend
from boughs.kernels.kv_cache import KVCache
from boughs.runtime.config import Quantize
from boughs.runtime.models.layers import PackedMaker
from boughs.runtime.models.load import load_model
from boughs.runtime.models.model import Model
from boughs.runtime.models.store import resolve, weights

PAGE = 16
TEXT = Path(__file__).with_suffix(".txt")
ROWS: tuple[tuple[Quantize, bool], ...] = (
    ("none", False),
    ("auto", False),
    ("int8", True),
    ("int4", True),
)
"""`quantize`, and whether to read the float32 weights that were made of a GGUF."""


@torch.inference_mode()
def logprobs(model: Model, ids: list[int]) -> Tensor:
    """float32 [T - 1]: of each token but the first, given those before."""
    config, pages = model.config, -(-len(ids) // PAGE)
    kv = KVCache(config.num_layers, pages + 1, PAGE, config.num_kv_heads, config.head_dim)
    backend = make_backend("cpu", config.attention(PAGE), threads=torch.get_num_threads())
    table = list(range(1, pages + 1))
    backend.plan(AttentionBatch.from_requests([table], [len(ids)], [len(ids)], PAGE))
    tokens, positions = torch.tensor(ids), torch.arange(len(ids))
    hidden = model.forward(tokens, positions, PAGE + positions, kv, backend)
    scores = model.logits(hidden[:-1]).log_softmax(dim=-1)
    return scores.gather(1, tokens[1:, None])[:, 0]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--text", type=Path, default=TEXT)
    args = parser.parse_args()
    texts = args.text.read_text(encoding="utf-8").strip().split("\n\n")
    folder = resolve(args.model)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    table = Table(title=f"{args.model} on {args.text.name}")
    for column in ("quantize", "matrices", "tokens", "perplexity", "beside float32"):
        table.add_column(column, justify="left" if column == "matrices" else "right")
    first = 0.0
    for quantize, from_float32 in ROWS:
        maker = PackedMaker(quantize, torch.get_num_threads())
        model = load_model(weights(folder) if from_float32 else folder, maker=maker)
        found = torch.cat([logprobs(model, ids) for ids in prompts])
        value = found.double().mean().neg().exp().item()
        first = first or value
        table.add_row(
            quantize, maker.describe(), str(len(found)), f"{value:.4f}",
            f"{100 * (value / first - 1):+.2f} %",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
