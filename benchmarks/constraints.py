"""What constraints cost: compiling, masks, steps with and without them.

    python benchmarks/constraints.py --schemas ../shared/data/schemas/sample.jsonl

Each figure stands beside the one that it is to be compared with, measured in turn in this run.
`--only coverage` (or any other part) runs one part; it is printed as docs/constraints.md has it.
What forced tokens save is measured by `benchmarks/forced.py`.
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

from boughs.lang.errors import GrammarError
from boughs.lang.sampling import SamplingParams
from boughs.runtime.config import EngineConfig
from boughs.runtime.constraints.compiler import GrammarCompiler
from boughs.runtime.constraints.masks import Masks
from boughs.runtime.core.core import Core
from boughs.runtime.core.runner import ModelRunner
from boughs.runtime.messages import Abort, Shutdown, Submit
from boughs.runtime.models.store import resolve

BATCH = 32

WORDS = json.dumps({"type": "array", "items": {"type": "string", "minLength": 200}, "minItems": 1})
"""Free text within JSON, where nothing is forced: as many tokens as are asked for."""

HOSTILE = [
    ("regex", "(?:[a-z]{1,50}|[0-9a-f]{1,50}){1,200}NUMBER"),
    ("regex", "((((a{100}){100}){100}){100})NUMBER"),
    ("ebnf", 'root ::= root root | "NUMBER" root'),
    (
        "json_schema",
        json.dumps({"properties": {f"NUMBER{i}": {"minLength": 1} for i in range(5000)}}),
    ),
]
"""Grammars that cost whoever compiles them; NUMBER makes one that has not been tried."""


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
    ours, words = Masks(vocab), -(-vocab // 32)
    bits = np.zeros((len(sources), words), dtype=np.uint32)
    taken, draw = {"bare": [], "ours": []}, np.random.default_rng(0)
    for _ in range(rounds):
        began = time.perf_counter()
        for at, matcher in enumerate(plain):
            matcher.state.unsafe_compute_mask_ptr(bits[at].ctypes.data, words * 4)
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


def endless(compiler, lines):
    """Lists of what is valid under a schema, so that no output ends before the others."""
    for line in lines:
        if "$ref" not in json.dumps(line["schema"]):
            source = {"type": "array", "items": line["schema"], "minItems": 50}
            if compiler.ask("json_schema", json.dumps(source)).exception() is None:
                yield json.dumps(source)


class Turns:
    """A core in this process whose requests are of one kind for some steps, then of the other.

    Nothing jumps: a step is a token of each. It counts where all gave a token in it and in the
    step before, and none began. Before every other one that would, the masks of its grammars are
    made bare, and it does not count: what they leave in the caches would be its gain.

    Args:
        model: Its folder.
        kinds: Of two kinds, the grammars of the batch (None: free), and grammars that others try.
        length: Steps of a turn.
        pairs: Turns of each kind, after the first that are not counted.
    """

    def __init__(self, model, kinds, length, pairs):
        config = EngineConfig(
            model_path=str(model), kv_memory="256M", threads=1, disable_jump_forward=True
        )
        self.core = Core(config, ModelRunner(config, model))
        self.words = -(-self.core.limits.vocab_size // 32)
        self.bits = np.zeros((BATCH, self.words), dtype=np.uint32)
        self.kinds, self.length = kinds, length
        self.todo = [turn % 2 for turn in range(2 * pairs + 2)]
        self.turns, self.taken, self.bare = [], [], []
        self.running, self.others, self.lost = {}, set(), []
        self.left = self.key = self.answers = self.before = self.steps = 0
        self.draw = np.random.default_rng(0)

    def run(self):
        """Of each pair of turns the steps' (wall, processor) seconds; and the bare masks'."""
        self.core.run(self.receive, self.send)
        return list(zip(self.turns[2::2], self.turns[3::2], strict=True)), self.bare

    def submit(self, tokens, kind, source):
        """A request under a grammar, if there is one."""
        self.key += 1
        field = {kind: source} if source else {}
        params = SamplingParams(
            max_new_tokens=tokens, temperature=0.0, seed=0, ignore_eos=True, **field
        )
        ids = self.draw.integers(100, 10_000, 16).tolist()
        return Submit(key=self.key, prompt_ids=ids, params=params)

    def receive(self, _):
        """What comes between two steps."""
        now = time.perf_counter(), time.process_time()
        if self.counts and self.answers == self.before == BATCH:
            self.taken.append([now[at] - self.began[at] for at in range(2)])
        if not self.left:
            if self.taken:
                self.turns.append(self.taken)
            if not self.todo:
                return [Shutdown()]
            made = [Abort(key) for key in (*self.running, *self.others)]
            self.kind, self.left, self.taken = self.todo.pop(0), self.length, []
            self.running, self.others, self.lost = {}, set(), list(range(BATCH))
        else:
            made = []
        sources, tried = self.kinds[self.kind]
        for at in self.lost:
            source = sources[at % len(sources)] if sources else None
            made.append(self.submit(300, "json_schema", source))
            self.running[self.key] = at
        self.lost = []
        calm = not made
        if tried and len(self.others) < 2:  # new each time: verdicts are kept
            kind, source = tried[self.key % len(tried)]
            made.append(self.submit(1, kind, source.replace("NUMBER", str(self.key))))
            self.others.add(self.key)
        self.left -= calm and self.answers == BATCH
        self.counts = calm
        if calm and sources and self.left % 2:
            self.counts = False
            self.make_bare()
        self.before, self.answers = self.answers, 0
        self.began = time.perf_counter(), time.process_time()
        return made

    counts, began = False, (0.0, 0.0)

    def make_bare(self):
        """Make the masks of all that run, one by one."""
        requests = [self.core.scheduler.find(key) for key in self.running]
        raws = [request.matcher.state for request in requests if request and request.matcher]
        began = time.perf_counter(), time.process_time()
        for at, raw in enumerate(raws):
            raw.unsafe_compute_mask_ptr(self.bits[at].ctypes.data, self.words * 4)
        if len(raws) == BATCH and len(self.turns) > 1:
            self.bare.append((time.perf_counter() - began[0], time.process_time() - began[1]))

    def send(self, message):
        """Take what a step gave."""
        for output in getattr(message, "outputs", ()):
            self.answers += output.key in self.running
            if output.finish or output.error:
                self.others.discard(output.key)
                if output.key in self.running:
                    self.lost.append(self.running.pop(output.key))


def ratio(pairs, clock):
    """Of a median step in the second turn by one in the first; the first's; the difference.

    Medians over all pairs.
    """
    firsts, seconds = (
        [statistics.median(step[clock] for step in pair[at]) for pair in pairs] for at in range(2)
    )
    ratios = [b / a for a, b in zip(firsts, seconds, strict=True)]
    extra = statistics.median(b - a for a, b in zip(firsts, seconds, strict=True))
    return statistics.median(ratios), statistics.median(firsts), extra


def steps(what, model, sources, length, pairs):
    """Steps of a batch, free and constrained, and the difference in bare masks of its states."""
    turns, bare = Turns(model, ((None, ()), (sources, ())), length, pairs).run()
    for clock, name in enumerate(("wall", "processor")):
        times, free, extra = ratio(turns, clock)
        own = statistics.median(made[clock] for made in bare)
        print(
            f"{what}, {name} time: free {free * 1e6:.0f} us, constrained {times:.3f} times that; "
            f"the difference {extra * 1e6:.0f} us is {extra / own:.2f} times its bare masks "
            f"({own * 1e6:.0f} us)"
        )


def hostile(what, model, length, pairs):
    """Steps of free requests while two hostile grammars at a time are tried, and while none is."""
    turns, _ = Turns(model, ((None, ()), (None, HOSTILE)), length, pairs).run()
    times, alone, _ = ratio(turns, 0)
    print(f"{what}: {alone * 1e3:.2f} ms, {times:.3f} times that while hostile grammars are tried")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--schemas", type=Path, help="lines of {id: ..., schema: ...}")
    parser.add_argument("--steps", type=int, default=12, help="of a turn, on the model")
    parser.add_argument("--rounds", type=int, default=5)
    parts = ("coverage", "compile", "masks", "steps", "tiny", "hostile")
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
    compiler = GrammarCompiler(*about, mask_threads=2)
    if lines and "coverage" in only:
        coverage(compiler, lines)
    if lines and "compile" in only:
        compiling(about, lines)
    sources = [json.dumps(line["schema"]) for line in lines]
    sources = [s for s in sources if compiler.ask("json_schema", s).exception() is None]
    real = sources[::5][:BATCH]
    if real and "masks" in only:
        bare, own = masks(compiler, about[1], real)
        print(
            f"{BATCH} masks of real schemas: bare {bare:.0f} us, {bare / BATCH:.1f} a token; "
            f"ours {own:.0f} us, {own / BATCH:.1f} a token; ratio {own / bare:.2f}"
        )
    batches = {"texts in JSON": [WORDS]}
    if lines:
        batches[f"{BATCH} real schemas"] = list(endless(compiler, lines))[::3][:BATCH]
    compiler.close()
    with tempfile.TemporaryDirectory() as place:
        tiny = make_tiny(Path(place), folder)
        for name, batch in batches.items():
            if "steps" in only:
                steps(f"step of {BATCH}, {name}", folder, batch, args.steps, args.rounds)
            if "tiny" in only:
                steps(f"tiny step of {BATCH}, {name}", tiny, batch, 30, 4 * args.rounds)
        if "hostile" in only:
            hostile(f"step of {BATCH}", folder, args.steps, args.rounds)
            hostile(f"tiny step of {BATCH}", tiny, 100, 2 * args.rounds)


if __name__ == "__main__":
    main()
