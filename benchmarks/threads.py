"""Two cores and one of them taken: what threads lose that must not wait for one another.

    python benchmarks/threads.py [--rounds 7] [--clients 8]

The demo model decodes and prefills, alternately with the machine to itself and beside a process
that keeps one core busy; and as many clients ask a server at once as one list asks of an engine in
this process. Medians of alternating rounds; read the ratios. With two threads and a third task the
fair ratio is 1.5; a barrier that spins while its other thread has no core costs many times more.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.table import Table

import boughs

MODEL = "smollm2-135m"
WORDS = "Once there was a fox who lived beside a river and told every traveller what it had seen. "

Work = Callable[[boughs.Engine, int], object]


def params(tokens: int) -> dict[str, object]:
    """Greedy, and never shorter than asked."""
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}


WORKS: dict[str, Work] = {
    "decode of 1 request, 96 tokens": lambda engine, _: engine.generate(WORDS, params(96)),
    "decode of 8 requests, 48 tokens": lambda engine, _: engine.generate([WORDS] * 8, params(48)),
    # A number of its own in front, so that no round finds its prompt in the tree.
    "prefill of 1,500 tokens": lambda engine, at: engine.generate(f"{at} {WORDS * 76}", params(1)),
}


def spin() -> None:
    """Keep a core busy."""
    while True:
        pass


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """A process that keeps a core busy."""
    process = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
    process.start()
    time.sleep(0.5)
    try:
        yield
    finally:
        process.kill()
        process.join()


def seconds(run: Callable[[], object]) -> float:
    """How long `run` takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def beside_a_busy_core(rounds: int) -> Iterator[tuple[str, float, float]]:
    """(what, seconds alone, seconds beside a busy core)."""
    with boughs.Engine(model_path=MODEL) as engine:
        for name, work in WORKS.items():
            work(engine, -1)
            alone, beside = [], []
            for at in range(rounds):
                alone.append(seconds(lambda at=at, work=work: work(engine, 2 * at)))
                with busy():
                    beside.append(seconds(lambda at=at, work=work: work(engine, 2 * at + 1)))
            yield name, statistics.median(alone), statistics.median(beside)


@boughs.function
def tell(s, topic):
    """A client's program."""
    s += f"{WORDS}It also spoke of {topic}:"
    s += boughs.gen("x", 32, temperature=0, ignore_eos=True, heal=False)


def behind_a_server(rounds: int, clients: int) -> tuple[str, float, float]:
    """(what, seconds of one list in this process, seconds of as many clients of a server)."""
    topics = [f"the number {at}" for at in range(clients)]
    prompts = [f"{WORDS}It also spoke of {topic}:" for topic in topics]
    listed, served = [], []
    with boughs.Engine(model_path=MODEL) as engine:
        server = boughs.Runtime(model_path=MODEL)
        try:
            for _ in range(rounds + 1):
                listed.append(seconds(lambda: engine.generate(prompts, params(32))))
                served.append(
                    seconds(
                        lambda: tell.run_batch(
                            [{"topic": topic} for topic in topics],
                            num_threads=clients,
                            backend=server.endpoint,
                        )
                    )
                )
        finally:
            server.shutdown()
    what = f"{clients} clients of a server, 32 tokens each, against one list"
    return what, statistics.median(listed[1:]), statistics.median(served[1:])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clients", type=int, default=8)
    args = parser.parse_args()
    table = Table("what", "alone", "with more to do", "ratio")
    for name, alone, beside in (
        *beside_a_busy_core(args.rounds),
        behind_a_server(args.rounds, args.clients),
    ):
        table.add_row(name, f"{alone:.3f} s", f"{beside:.3f} s", f"{beside / alone:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
