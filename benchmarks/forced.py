"""What forced tokens save: records of JSON with long keys, with and without jumping.

    python benchmarks/forced.py [--model smollm2-135m] [--counts 1 8] [--rounds 5]

Two cores in this process take the same records in turn. Processor time tells apart what the machine
does otherwise; wall time is what a user waits where it does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import threading
import time
from functools import partial
from itertools import product
from queue import Empty, Queue

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # as the core process does; before torch is loaded

from boughs.lang.sampling import SamplingParams
from boughs.runtime.config import EngineConfig
from boughs.runtime.core.core import Core
from boughs.runtime.core.runner import ModelRunner
from boughs.runtime.messages import Shutdown, Submit
from boughs.runtime.models.store import resolve

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


class Served:
    """A core in a thread of this process, so that this process's time is its time."""

    def __init__(self, model, jump):
        config = EngineConfig(
            model_path=str(model), kv_memory="256M", disable_jump_forward=not jump
        )
        self.core = Core(config, ModelRunner(config, model))
        self.asked, self.told = Queue(), Queue()
        run = partial(self.core.run, self.receive, self.told.put)
        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def receive(self, patience):
        """What comes between two steps."""
        try:
            return self.asked.get(timeout=patience)
        except Empty:
            return []

    def records(self, count, logprobs):
        """(wall, processor) seconds of so many records; tokens, forced ones, steps."""
        params = SamplingParams(
            max_new_tokens=200, temperature=0.0, seed=0, json_schema=json.dumps(RECORD)
        )
        asked = [
            Submit(key=at, prompt_ids=[100 + at] * 9, params=params, logprobs=logprobs)
            for at in range(count)
        ]
        left, tokens, forced, steps = count, 0, 0, 0
        began = time.perf_counter(), time.process_time()
        self.asked.put(asked)
        while left:
            for output in getattr(self.told.get(), "outputs", ()):
                assert output.error is None, output.error
                left -= output.finish is not None
                tokens, forced = tokens + len(output.ids), forced + output.forced
                steps = max(steps, output.forward_steps)
        took = time.perf_counter() - began[0], time.process_time() - began[1]
        return took, (tokens, forced, steps)


def measure(model, counts, rounds):
    """Records a second with long keys, with and without jumping: in pairs, each first in turn."""
    cores = [Served(model, jump) for jump in (False, True)]
    for count, logprobs in product(counts, (False, True)):
        pairs, counts = [], [(), ()]
        for at in range(2 * rounds + 2):
            took = [(), ()]
            for which in (at % 2, 1 - at % 2):
                took[which], counts[which] = cores[which].records(count, logprobs)
            pairs.append(took)
        (_, _, walked), (tokens, forced, jumped) = counts
        print(
            f"{count} records at once with long keys{', with logprobs' if logprobs else ''}: "
            f"{forced} of {tokens} tokens forced; {walked} steps walking, {jumped} jumping"
        )
        for clock, name in enumerate(("wall", "processor")):
            walking, jumping = (
                statistics.median(pair[which][clock] for pair in pairs[2:]) for which in (0, 1)
            )
            ratios = sorted(a[clock] / b[clock] for a, b in pairs[2:])
            print(
                f"  {name} time: {walking:.3f} s and {jumping:.3f} s, throughput "
                f"{statistics.median(ratios):.2f} times that of walking "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f}, {len(ratios)} pairs)"
            )
    for core in cores:
        core.asked.put([Shutdown()])
        core.thread.join()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 8], help="records at once")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    measure(resolve(args.model), args.counts, args.rounds)


if __name__ == "__main__":
    main()
