"""What the examples share: where a program runs, and what the tree saved."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import boughs

MODEL = "smollm2-135m"


@dataclass
class Report:
    """Adds up what the programs of one run asked for and what the cache already had."""

    title: str
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    requests: int = 0
    started: float = field(default_factory=time.perf_counter)

    def add(self, states: Iterable[boughs.ProgramState]) -> None:
        """Count the requests of these programs."""
        for state in states:
            usage = state.usage
            self.prompt += usage.prompt_tokens
            self.cached += usage.cached_tokens
            self.generated += usage.completion_tokens
            self.requests += usage.requests

    def show(self) -> None:
        """Print one line."""
        seconds = time.perf_counter() - self.started
        rate = self.cached / self.prompt if self.prompt else 0.0
        print(
            f"[{self.title}] {self.requests} requests, {self.prompt} prompt tokens, "
            f"{self.cached} from the tree ({rate:.0%}), {self.generated} generated, {seconds:.1f} s"
        )


@contextmanager
def report(title: str = "tree") -> Iterator[Report]:
    """Time a block; the programs added to the report inside are summed up at its end."""
    counted = Report(title)
    yield counted
    counted.show()


@contextmanager
def backend() -> Iterator[None]:
    """Give programs a backend: the one of `boughs run`, an endpoint, or an engine of our own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", help="URL of a running `boughs serve`")
    parser.add_argument("--model", default=MODEL, help=f"model to run here (default {MODEL})")
    args = parser.parse_args()
    if boughs.global_config.default_backend is not None:
        yield
    elif args.endpoint:
        boughs.set_default_backend(boughs.RuntimeEndpoint(args.endpoint))
        yield
    else:
        with boughs.Engine(model_path=args.model) as engine:
            boughs.set_default_backend(engine)
            yield
