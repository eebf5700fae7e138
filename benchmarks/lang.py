"""What the language itself costs: programs on a backend that answers at once, and on an engine.

    python benchmarks/lang.py

The first table has the time of programs, the time of the same requests without the language, and
what a `gen` costs more. The second has a batch of programs of one `gen` beside one list request for
the same prompts, in turns, on the demo model and on a tiny one, where the language's cost shows.
The third has what each turn of a chat computes of its prompt.
"""

import asyncio
import runpy
import statistics
import tempfile
import time
from pathlib import Path

import boughs
from boughs.lang import loop
from boughs.lang.results import collect
from boughs.testing import MockBackend

ROUNDS = 5
CHAINS, LENGTH = 20, 50
FORKS = 1000
ITEMS = 1000
TOKENS, TURNS = 16, 6


@boughs.function
def chain(s):
    for i in range(LENGTH):
        s += "x" + boughs.gen(f"v{i % 10}")


@boughs.function
def reading(s):
    for _ in range(LENGTH):
        s += "x" + boughs.gen("v")
        assert s["v"] == "ok"


@boughs.function
def one(s, question):
    s += "Q: " + question + "\nA:"
    s += boughs.gen("answer")


@boughs.function
def forks(s):
    s += "shared"
    branches = s.fork(FORKS)
    branches += lambda i: f"{i}" + boughs.gen("v")
    branches.join()
    assert len(s["v"]) == FORKS


@boughs.function
def chat(s, turns):
    for turn in range(turns):
        s += f"Question {turn}: what is a fox, and what is a dog?\n"
        s += boughs.gen(f"a{turn}", max_tokens=TOKENS, ignore_eos=True) + "\n"


def many(program):
    def run(backend):
        for _ in range(CHAINS):
            program.run(backend=backend)

    return run


def batch(backend):
    one.run_batch([{"question": f"What is {i}?"} for i in range(ITEMS)], backend=backend)


def fork(backend):
    forks.run(backend=backend)


def replay(requests, *, at_once):
    """The same requests, without the language."""
    backend = MockBackend()

    async def ask(request):
        await collect(backend.generate(request))

    async def ask_all():
        if at_once:
            await asyncio.gather(*map(ask, requests))
            return
        for request in requests:
            await ask(request)

    loop.run(ask_all())


def median(action):
    return statistics.median(timed(action) for _ in range(ROUNDS))


def beside_a_list(engine, name, rounds):
    """A row: a batch of programs of one gen, and one list request for the same prompts."""
    params = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    items = [{"question": f"What is {i}?"} for i in range(ITEMS)]
    prompts = [f"Q: {item['question']}\nA:" for item in items]

    def listed():
        engine.flush_cache(10)
        return [answer["text"] for answer in engine.generate(prompts, params, heal=True)]

    def batched():
        engine.flush_cache(10)
        states = one.run_batch(items, backend=engine, **params)
        return [state["answer"] for state in states]

    assert listed() == batched()
    pairs = [(timed(listed), timed(batched)) for _ in range(rounds)]
    ratio = statistics.median(batch / alone for alone, batch in pairs)
    alone, batch = (statistics.median(each) for each in zip(*pairs, strict=True))
    print(f"| {name} | {alone:.2f} s | {batch:.2f} s | {ratio:.2f} |")


def on_engines():
    """A batch beside a list request, on two models, and the turns of a chat."""
    make_model = runpy.run_path(str(Path(__file__).with_name("host.py")))["make_model"]
    print()
    print(f"| {ITEMS} prompts of {TOKENS} tokens | one list | run_batch | ratio |")
    print("|---|---|---|---|")
    with boughs.Engine(model_path="smollm2-135m") as engine:
        beside_a_list(engine, "the demo model", 2)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        with boughs.Engine(model_path=folder, kv_memory="256M") as engine:
            beside_a_list(engine, "a tiny engine", ROUNDS)
            state = chat.run(TURNS, backend=engine, temperature=0)
    metas = [state.get_meta_info(f"a{turn}") for turn in range(TURNS)]
    print()
    print("| turn | prompt | cached | new text and one token |")
    print("|---|---|---|---|")
    for turn, meta in enumerate(metas):
        prompt, cached = meta["prompt_tokens"], meta["cached_tokens"]
        before = metas[turn - 1]["prompt_tokens"] + TOKENS if turn else 0
        print(f"| {turn + 1} | {prompt} | {cached} | {prompt - before + bool(turn)} |")


def timed(action):
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main():
    print("| what | requests alone | programs | a gen costs |")
    print("|---|---|---|---|")
    for what, run, at_once in (
        (f"{CHAINS} programs of {LENGTH} gens", many(chain), False),
        (f"{CHAINS} programs of {LENGTH} gens, each read", many(reading), False),
        (f"a batch of {ITEMS} programs of one gen", batch, True),
        (f"a fork into {FORKS} branches of one gen, joined", fork, True),
    ):
        recorder = MockBackend()
        run(recorder)
        requests = [call.request for call in recorder.calls]
        seconds = median(lambda run=run: run(MockBackend()))
        alone = median(lambda r=requests, a=at_once: replay(r, at_once=a))
        cost = (seconds - alone) / len(requests) * 1e3
        print(f"| {what} | {alone:.3f} s | {seconds:.3f} s | {cost:.3f} ms |")
    on_engines()


if __name__ == "__main__":
    main()
