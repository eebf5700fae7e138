"""What a step costs beside the model: the core's own time, and the whole engine's on a tiny model.

    GOMP_SPINCOUNT=0 python benchmarks/host.py [--steps 200] [--rounds 30] [--requests 64]

(OpenMP's threads spin at barriers by default, which costs both sides dearly where a core is taken.)
`host` is everything of a step but the forward pass and the sampling kernels, with a model that
computes nothing; `model` the forward pass of a tiny model (one layer, 64 wide, vocabulary 256) in
the same batch. The second table is what features cost a step that uses none of them: host time with
their code, over that with it stubbed out in turns, and beside it the noise of that figure: the same
ratio of turns that are alike, plus or minus what chance does to it. The third table is the same of
whole steps, with the tiny model. The last is requests a second through the whole engine (front,
core process, ZeroMQ) beside transformers' `generate`, one by one and as one padded batch, on the
same weights in the same minute. Read the ratios, not the times.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import boughs
from boughs.lang.sampling import SamplingParams
from boughs.runtime.config import EngineConfig
from boughs.runtime.core import core as cores
from boughs.runtime.core.calls import Calls
from boughs.runtime.core.request import Request
from boughs.runtime.core.runner import ModelRunner
from boughs.runtime.core.sampler import RowState
from boughs.runtime.messages import FromCore, Shutdown, Submit, ToCore

VOCAB, PROMPT, OUTPUT = 256, 16, 32
GREEDY = {"max_new_tokens": OUTPUT, "temperature": 0, "ignore_eos": True}


def make_model(folder: Path) -> None:
    """Write a tiny Llama with random weights, and a tokenizer of bytes."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
        bos_token_id=None, eos_token_id=VOCAB - 1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


class _Idle:
    """A model that computes nothing; its first token is always the best."""

    def __init__(self, model) -> None:
        self.config = model.config

    def forward(self, input_ids: Tensor, *_: object) -> Tensor:
        return torch.zeros(len(input_ids), 1)

    def logits(self, hidden: Tensor) -> Tensor:
        return torch.zeros(len(hidden), VOCAB)


def make_core(folder: Path, *, idle: bool) -> cores.Core:
    """A core on the tiny model, or on one that computes nothing."""
    config = EngineConfig(model_path=str(folder), kv_memory="64M", max_batched_tokens=4096)
    runner = ModelRunner(config, folder)
    if idle:
        runner.model = _Idle(runner.model)
    return cores.Core(config, runner)


def make_requests(batch: int, steps: int) -> list[ToCore]:
    """So many greedy requests that decode for so many steps."""
    rng = np.random.default_rng(0)
    params = SamplingParams(max_new_tokens=steps, temperature=0.0, seed=0, ignore_eos=True)
    return [
        Submit(key=key, prompt_ids=rng.integers(0, VOCAB, PROMPT).tolist(), params=params)
        for key in range(batch)
    ]


def step_times(folder: Path, batch: int, steps: int, *, idle: bool) -> dict[str, float]:
    """Microseconds of a step's stages, with so many requests that decode."""
    core = make_core(folder, idle=idle)
    todo = make_requests(batch, steps)

    def receive(_: float | None) -> list[ToCore]:
        if not todo and not core.scheduler.has_work:
            return [Shutdown()]
        messages = todo.copy()
        todo.clear()
        return messages

    def send(_: FromCore) -> None:
        pass

    core.run(receive, send)
    shown = core.times.as_json()
    return {
        stage: shown[stage]["sum"] / shown[stage]["count"] * 1e6
        for stage in ("step", "schedule", "model", "sample", "send")
    }


def host_table(folder: Path, steps: int) -> Table:
    """The first table."""
    table = Table(title="microseconds a step")
    for name in ("requests", "host", "of it the batch", "model", "sampling", "host / all"):
        table.add_column(name, justify="right")
    for batch in (1, 16, 64):
        idle = step_times(folder, batch, steps, idle=True)
        real = step_times(folder, batch, steps, idle=False)
        host = idle["schedule"] + idle["model"] + idle["send"]
        model = real["model"] - idle["model"]
        table.add_row(
            *(str(batch), f"{host:.0f}", f"{idle['model']:.0f}", f"{model:.0f}"),
            *(f"{real['sample']:.0f}", f"{host / real['step']:.2f}"),
        )
    return table


def _nothing(*_: object) -> None:
    pass


FEATURES: dict[str, Callable[[cores.Core, Calls], list[tuple[Any, str, Any]]]] = {
    "grammars": lambda core, _: [
        (core._bound, "begin_masks", _nothing),
        (core._bound, "take_masks", dict),
    ],
    "sampling parameters": lambda *_: [
        (RowState, "is_plain", lambda *_: True),
        (RowState, "note_output", _nothing),
    ],
    "what prompts are asked": lambda *_: [(Request, "reads_rows", False)],
    "beams": lambda *_: [
        (cores, "groupby", lambda pairs, **_: ((pair[0], (pair,)) for pair in pairs))
    ],
    "metrics": lambda core, _: [
        (core.times, name, _nothing) for name in ("begin", "admitted", "end")
    ],
    "calls and leases": lambda _, calls: [(calls, "turn", _nothing)],
}
"""What each is stubbed out with, in a step that uses none."""


def unused(
    folder: Path, feature: str, batch: int, rounds: int, *, idle: bool
) -> tuple[float, float, float]:
    """A step's time with a feature over that without; the same of two turns with it; its error.

    Each round has three turns: with, without, with. A turn counts as its fastest step, but for its
    first ones, in which Python adapts to what has been changed. Of all rounds it is the median.
    """
    first, turn = 5, 15
    core = make_core(folder, idle=idle)
    calls = Calls(core.scheduler, core.times, _nothing)
    for message in make_requests(batch, turn * 3 * (rounds + 1)):
        core._take(message, [])

    def step() -> float:
        started = time.perf_counter()
        core.times.begin()
        core._step([])
        core.times.end("send")
        calls.turn()
        return time.perf_counter() - started

    def run() -> float:
        return min([step() for _ in range(turn)][first:])

    costs, noise = [], []
    for _ in range(rounds):
        before = run()
        with ExitStack() as stack:
            for owner, name, stub in FEATURES[feature](core, calls):
                stack.enter_context(patch.object(owner, name, stub))
            without = run()
        after = run()
        costs.append((before + after) / 2 / without)
        noise.append(before / after)
    spread = 1.4826 * statistics.median(abs(one - 1) for one in noise)  # sigma, but for outliers
    return statistics.median(costs), statistics.median(noise), spread / math.sqrt(rounds)


def unused_table(folder: Path, rounds: int, *, idle: bool) -> Table:
    """The second table, of the host's time alone, and the third, of whole steps."""
    what = "host time of a step" if idle else "a whole step"
    table = Table(title=f"{what} with what it does not use, over that without")
    table.add_column("unused")
    batches = (1, 16, 64)
    for batch in batches:
        table.add_column(f"{batch} requests", justify="right")
        table.add_column("noise", justify="right")
    for feature in FEATURES:
        cells = []
        for batch in batches:
            cost, alike, error = unused(folder, feature, batch, rounds, idle=idle)
            cells += [f"{cost:.3f}", f"{alike:.3f} ± {error:.3f}"]
        table.add_row(feature, *cells)
    return table


def timed(run: Callable[[], object]) -> float:
    """Seconds that `run` takes."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def throughput_table(folder: Path, requests: int) -> Table:
    """The last table."""
    from transformers import AutoModelForCausalLM

    rng = np.random.default_rng(1)
    prompts = [rng.integers(0, VOCAB - 1, PROMPT).tolist() for _ in range(requests)]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    options = {
        "max_new_tokens": OUTPUT, "min_new_tokens": OUTPUT, "do_sample": False, "pad_token_id": 0,
    }  # fmt: skip

    @torch.inference_mode()
    def one_by_one() -> None:
        for ids in prompts:
            model.generate(torch.tensor([ids]), **options)

    @torch.inference_mode()
    def one_batch() -> None:
        model.generate(torch.tensor(prompts), **options)

    rows = []
    with boughs.Engine(model_path=str(folder), kv_memory="64M") as engine:
        ask = {"input_ids": prompts, "sampling_params": GREEDY}
        engine.generate(**ask)
        for flush in (True, False):
            if flush:
                engine.flush_cache()
            rows.append(
                ("engine", "cold" if flush else "warm", timed(lambda: engine.generate(**ask)))
            )
    for name, run in (("one by one", one_by_one), ("one batch", one_batch)):
        model.generate(torch.tensor(prompts[:1]), **options)
        rows.append(("transformers", name, timed(run)))
    slowest = max(seconds for *_, seconds in rows)
    table = Table(title=f"{requests} requests of {PROMPT} tokens in and {OUTPUT} out")
    for name in ("what", "how", "requests/s", "times the slowest"):
        table.add_column(name, justify="left" if name in ("what", "how") else "right")
    for what, how, seconds in rows:
        table.add_row(what, how, f"{requests / seconds:.0f}", f"{slowest / seconds:.1f}")
    return table


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--requests", type=int, default=64)
    args = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder)
        console.print(host_table(folder, args.steps))
        for idle in (True, False):
            console.print(unused_table(folder, args.rounds, idle=idle))
        console.print(throughput_table(folder, args.requests))


if __name__ == "__main__":
    main()
