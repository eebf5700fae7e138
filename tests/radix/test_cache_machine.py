"""The same operations as in `test_cache_random`, drawn and shrunk by Hypothesis."""

import random
from collections import Counter

import pytest
from boughs_fixtures_cache_world import OPERATIONS, World
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

RANDOMS = st.randoms(use_true_random=False)


def machine(steps):
    """A machine whose rules are the operations of `World`; it counts in `steps` what was done."""

    class Machine(RuleBasedStateMachine):
        @initialize(
            page_size=st.sampled_from([1, 2, 4, 8, 16]),
            spare=st.integers(0, 12),
            policy=st.sampled_from(["lru", "lfu", "fifo", "priority"]),
            enabled=st.sampled_from([True, True, True, False]),
        )
        def start(self, page_size, spare, policy, enabled):
            pages = 36 // page_size + 4 + spare
            self.world = World(num_pages=pages, page_size=page_size, policy=policy, enabled=enabled)

        @invariant()
        def holds(self):
            if hasattr(self, "world"):
                # What `verify` draws for itself shall not disturb shrinking.
                self.world.rng = random.Random(0)
                self.world.verify()

    def operation(name):
        @rule(rng=RANDOMS)
        def run(self, rng):
            self.world.rng = rng
            getattr(self.world, name)()
            steps[name] += 1

        return run

    for name in OPERATIONS:
        setattr(Machine, name, operation(name))
    return Machine


def run(examples):
    """Lives of up to 50 operations; how often each operation was done, and then checked."""
    steps = Counter()
    run_state_machine_as_test(
        machine(steps),
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    return steps


def test_every_operation_in_any_order():
    steps = run(300)
    assert steps.total() >= 10_000
    assert steps.keys() == OPERATIONS.keys() >= {
        "add", "grow", "finish", "abort", "retract", "fork", "pin", "unpin", "match", "evict",
        "flush", "salt",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_operation_in_any_order_at_length():
    assert run(2000).total() >= 50_000
