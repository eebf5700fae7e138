"""Attention and a whole engine on a GPU, beside what the GPU can do and beside transformers.

    python benchmarks/gpu.py [--model smollm2-135m] [--no-engine]

Attention of one layer: decode is bound by reading (read the share of the bandwidth that summing up
a large tensor reaches in the same run), prefill by multiplying (read the share of a large product
of matrices). The same over a cache in float8. Decodes under a shared prefix that is read once,
beside each reading it: from how many bytes saved on it is faster is what
`flashinfer_cascade.SAVES` should be. The engine: tokens a second of a batch of requests,
transformers' `generate` on the same GPU in the same format beside it. Without a GPU it says so.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from boughs.kernels import flashinfer_cascade
from boughs.kernels.backend import AttentionConfig
from boughs.kernels.batch import AttentionBatch
from boughs.kernels.flashinfer import FlashInferBackend
from boughs.kernels.flashinfer_load import NoFlashInfer, load_flashinfer
from boughs.kernels.kv_cache import KVCache

DTYPE, PAGE, LAYERS, ROUNDS = torch.bfloat16, 16, 4, 30
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
SHAPES = [(32, 8, 128), (9, 3, 64), (28, 4, 128)]  # heads, KV heads, width: groups 4, 3, 7
DECODES = [(b, 1, length) for b in (1, 8, 64, 256) for length in (512, 4096, 16384)]
CHUNKS = [(1, 2048, 2048), (1, 2048, 16384), (8, 512, 4096)]
SHARED = [(b, length) for b in (8, 32, 128) for length in (512, 2048, 8192, 32768)]
OWN = 128  # positions behind the shared ones, of each request
SLOTS = 1 << 16  # written at a time
TOKENS = 128
CLIENTS = (1, 16, 64)


def device_seconds(run: Callable[[int], object]) -> float:
    """Median seconds that the device takes, in turns over the layers."""
    for turn in range(3):
        run(turn)
    times = []
    for turn in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(turn)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def ceilings(device: torch.device) -> tuple[float, float]:
    """Bytes a second that a sum reads, and operations a second of a product of matrices."""
    large = torch.ones(1 << 30, dtype=DTYPE, device=device)
    square = torch.randn(8192, 8192, device=device).to(DTYPE)
    read = device_seconds(lambda _: large.sum())
    product = device_seconds(lambda _: square @ square)
    return large.nbytes / read, 2 * 8192**3 / product


def filled(cuda, shape, pages, dtype=DTYPE) -> KVCache:
    """A cache whose pages all hold random numbers."""
    _, kv_heads, dim = shape
    kv = KVCache(LAYERS, pages, PAGE, kv_heads, dim, dtype, cuda.device)
    for layer in range(LAYERS):
        for slots in torch.arange(pages * PAGE, device=cuda.device).split(SLOTS):
            k, v = torch.randn(2, len(slots), kv_heads, dim, device=cuda.device).to(DTYPE)
            kv.write(layer, slots, k, v)
    return kv


def seconds_of(module, cuda, shape, kv, batch, *, cascade=False) -> float:
    """Median seconds of attention in one layer."""
    heads, kv_heads, dim = shape
    backend = FlashInferBackend(
        AttentionConfig(heads, kv_heads, dim, PAGE), "a benchmark", flashinfer=module,
        accelerator=cuda, dtype=DTYPE, kv_dtype=kv.dtype, cascade=cascade,
    )  # fmt: skip
    backend.plan(batch)
    q = torch.randn(batch.num_rows, heads, dim, device=cuda.device).to(DTYPE)
    return device_seconds(lambda turn: backend.run(turn % LAYERS, q, kv))


def attention(module, cuda, shape, batch, kv_dtype=DTYPE) -> float:
    """Median seconds of attention in one layer of a batch (requests, rows of each, positions)."""
    requests, rows, length = batch
    each = -(-length // PAGE)
    kv = filled(cuda, shape, requests * each + 1, kv_dtype)
    pages = random.sample(range(1, kv.num_pages), requests * each)
    tables = [pages[r * each : (r + 1) * each] for r in range(requests)]
    made = AttentionBatch.from_requests(tables, [length] * requests, [rows] * requests, PAGE)
    return seconds_of(module, cuda, shape, kv, made)


def bytes_read(shape, requests, length, dtype=DTYPE) -> int:
    """Of keys and values in one layer."""
    _, kv_heads, dim = shape
    return requests * length * kv_heads * dim * 2 * dtype.itemsize


def fits(size: int) -> bool:
    """Whether a cache of so many bytes a layer leaves half of the free memory."""
    return LAYERS * size <= torch.cuda.mem_get_info()[0] // 2


def attention_table(module, cuda, read: float, product: float) -> Table:
    """Every shape, as shares of the ceilings."""
    table = Table(
        title=f"attention of one layer; the GPU reads {read / 1e9:.0f} GB/s and does "
        f"{product / 1e12:.0f} TFLOP/s"
    )
    for name in ("heads", "requests", "rows", "positions", "us", "of reading", "of multiplying"):
        table.add_column(name, justify="right")
    for shape in SHAPES:
        heads, kv_heads, dim = shape
        for requests, rows, length in DECODES + CHUNKS:
            size = bytes_read(shape, requests, length)
            if not fits(size):
                continue
            seconds = attention(module, cuda, shape, (requests, rows, length))
            work = 4 * requests * rows * heads * dim * (length - (rows - 1) / 2)
            table.add_row(
                f"{heads}/{kv_heads} x {dim}",
                *map(str, (requests, rows, length)),
                f"{seconds * 1e6:.0f}",
                f"{size / seconds / read:.0%}",
                f"{work / seconds / product:.0%}",
            )
    return table


def float8_table(module, cuda, read: float) -> Table:
    """Every shape over a cache in float8, beside one in the format of the queries."""
    names = [str(dtype).removeprefix("torch.") for dtype in FLOAT8]
    table = Table(title="attention of one layer over a cache in float8, times faster")
    for name in ("heads", "requests", "rows", "positions", "us", *names, "of reading"):
        table.add_column(name, justify="right")
    for shape in SHAPES:
        heads, kv_heads, dim = shape
        for requests, rows, length in DECODES + CHUNKS:
            if not fits(bytes_read(shape, requests, length)):
                continue
            batch = (requests, rows, length)
            wide, *narrow = (
                attention(module, cuda, shape, batch, dtype) for dtype in (DTYPE, *FLOAT8)
            )
            size = bytes_read(shape, requests, length, FLOAT8[0])
            table.add_row(
                f"{heads}/{kv_heads} x {dim}",
                *map(str, batch),
                f"{wide * 1e6:.0f}",
                *(f"{wide / seconds:.2f}" for seconds in narrow),
                f"{size / narrow[0] / read:.0%}",
            )
    return table


def cascade_table(module, cuda) -> Table:
    """Decodes that share a prefix, flat and with the prefix read once, whatever that saves."""
    table = Table(title=f"decodes of a shared prefix and {OWN} positions of their own, one layer")
    for name in (
        *("heads", "requests", "shared", "flat us", "cascade us", "times faster", "MB saved"),
        "taken",
    ):
        table.add_column(name, justify="right")
    own = OWN // PAGE
    for shape in SHAPES:
        heads, kv_heads, dim = shape
        for requests, length in SHARED:
            common = length // PAGE
            if not fits(bytes_read(shape, 1, length + requests * OWN)):
                continue
            kv = filled(cuda, shape, common + requests * own + 1)
            pages = random.sample(range(1, kv.num_pages), kv.num_pages - 1)
            tables = [pages[:common] + pages[common + r * own :][:own] for r in range(requests)]
            batch = AttentionBatch.from_requests(
                tables, [length + OWN] * requests, [1] * requests, PAGE
            )
            flat = seconds_of(module, cuda, shape, kv, batch)
            with patch.object(flashinfer_cascade, "SAVES", 1):
                shared = seconds_of(module, cuda, shape, kv, batch, cascade=True)
            saved = bytes_read(shape, requests - 1, length)
            table.add_row(
                *(f"{heads}/{kv_heads} x {dim}", str(requests), str(length)),
                *(f"{seconds * 1e6:.0f}" for seconds in (flat, shared)),
                *(f"{flat / shared:.2f}", f"{saved / (1 << 20):.0f}"),
                "yes" if saved >= flashinfer_cascade.SAVES else "no",
            )
    return table


def engine_table(name: str) -> Table:
    """Tokens a second of the engine, with and without recorded decodes, and of transformers."""
    from transformers import AutoModelForCausalLM

    import boughs
    from boughs.runtime.models.store import resolve, weights

    folder = resolve(name)
    prompts = [[(7 * c + i) % 1000 + 3 for i in range(128)] for c in range(max(CLIENTS))]
    made: dict[str, list[float]] = {}
    for label, eager in (("recorded", False), ("eager", True)):
        with boughs.Engine(
            model_path=str(folder), device="cuda", disable_cuda_graph=eager
        ) as engine:

            def ours(count, engine=engine):
                engine.flush_cache()
                engine.generate(
                    input_ids=prompts[:count],
                    sampling_params={
                        "temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True,
                    },
                )  # fmt: skip

            made[label] = [tokens_a_second(ours, count) for count in CLIENTS]
    model = AutoModelForCausalLM.from_pretrained(weights(folder), dtype=DTYPE).cuda()

    def theirs(count):
        ids = torch.tensor(prompts[:count], device="cuda")
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False,
            max_new_tokens=TOKENS, min_new_tokens=TOKENS,
        )  # fmt: skip

    made["transformers"] = [tokens_a_second(theirs, count) for count in CLIENTS]
    table = Table(title=f"{name}: tokens a second, prompts of 128, {TOKENS} tokens out")
    for column in ("clients", *made, "recorded / transformers"):
        table.add_column(column, justify="right")
    for at, count in enumerate(CLIENTS):
        rates = [rate[at] for rate in made.values()]
        table.add_row(str(count), *(f"{r:.0f}" for r in rates), f"{rates[0] / rates[2]:.1f}")
    return table


def tokens_a_second(run: Callable[[int], object], count: int) -> float:
    """Of the fastest of three runs with `count` clients, after one that warms up."""
    run(count)
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        run(count)
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return count * TOKENS / min(taken)


@torch.inference_mode()
def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--no-engine", action="store_true", help="attention alone")
    args = parser.parse_args()
    console = Console()
    if not torch.cuda.is_available():
        console.print("no GPU")
        return
    try:
        module = load_flashinfer()
    except NoFlashInfer as error:
        parser.exit(1, f"{error}\n")
    from boughs.kernels.accelerator import Cuda

    console.print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    cuda = Cuda()
    read, product = ceilings(cuda.device)
    console.print(attention_table(module, cuda, read, product))
    console.print(float8_table(module, cuda, read))
    console.print(cascade_table(module, cuda))
    torch.cuda.empty_cache()
    if not args.no_engine:
        console.print(engine_table(args.model))


if __name__ == "__main__":
    main()
