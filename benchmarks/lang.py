"""What the language itself costs: programs on a backend that answers at once.

    python benchmarks/lang.py

Prints a table: the time of programs, the time of the same requests without the language, and what
a `gen` costs more.
"""

import asyncio
import statistics
import time

import boughs
from boughs.lang import loop
from boughs.lang.results import collect
from boughs.testing import MockBackend

ROUNDS = 5
CHAINS, LENGTH = 20, 50
FORKS = 1000
ITEMS = 1000


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
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


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


if __name__ == "__main__":
    main()
