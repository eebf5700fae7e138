"""Random programs over a pool that is far too small: all finish, right, and no page is lost."""

import random

import pytest

import boughs

WORDS = "apples Monday Paris money village books fox twelve answer user system lazy dog".split()


@pytest.fixture(scope="module")
def roomy(tiny_model):
    with boughs.Engine(model_path=tiny_model, in_process=True, kv_memory="64M") as engine:
        yield engine


@pytest.fixture(scope="module")
def tight(tiny_model):
    """128 pages of 4 tokens, of which the longest program alone takes most."""
    per_page = 2 * 2 * 4 * 2 * 16 * 4
    with boughs.Engine(
        model_path=tiny_model,
        in_process=True,
        kv_memory=str(129 * per_page),
        check_invariants=True,
        max_batched_tokens=48,
        page_size=4,
    ) as engine:
        yield engine


def text(rng, most):
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


@boughs.function
def wander(s, seed):
    """A program whose shape is drawn: turns, choices, forks."""
    rng = random.Random(seed)
    s += boughs.system(text(random.Random(seed % 3), 12))
    for turn in range(rng.randint(1, 3)):
        s += boughs.user(text(rng, 8))
        kind = rng.choice(["gen", "gen", "select", "fork", "regex"])
        if kind == "gen":
            s += boughs.assistant(
                boughs.gen(
                    f"gen{turn}", max_tokens=rng.randint(1, 64), temperature=0, ignore_eos=True
                )
            )
        elif kind == "regex":
            s += boughs.assistant(
                boughs.gen(f"regex{turn}", regex="[a-c]{2,6}", max_tokens=8, temperature=0)
            )
        elif kind == "select":
            s += boughs.assistant(boughs.select(f"select{turn}", choices=rng.sample(WORDS, 3)))
        else:
            branches = s.fork(rng.randint(2, 3))
            for branch in branches:
                branch += boughs.assistant(
                    text(rng, 2)
                    + boughs.gen(f"fork{turn}", max_tokens=rng.randint(1, 6), temperature=0)
                )
            branches.join()
            s += boughs.assistant(text(rng, 2))


def variables(state):
    names = [f"{kind}{turn}" for kind in ("gen", "select", "fork", "regex") for turn in range(3)]
    return {name: state[name] for name in names if name in state}


def test_programs_on_a_tiny_pool_give_what_they_give_alone(roomy, tight):
    seeds = range(24)
    expected = [variables(wander.run(seed=seed, backend=roomy)) for seed in seeds]
    assert sum(map(len, expected)) >= len(seeds)
    for _ in range(2):  # cold, then with a tree full of the last round's leavings
        states = wander.run_batch([{"seed": seed} for seed in seeds], backend=tight)
        assert [variables(state) for state in states] == expected
    stats = tight.stats()
    assert stats["retractions"] > 0
    assert stats["running"] == stats["waiting"] == stats["unconfirmed"] == 0
    assert stats["cache"]["private"] == 0


def test_sampled_programs_draw_the_same_in_any_company(roomy, tight):
    @boughs.function
    def sample(s, seed):
        s += text(random.Random(seed % 4), 30)
        s += boughs.gen("x", max_tokens=12, temperature=8.0, seed=seed, ignore_eos=True)

    expected = [sample.run(seed=seed, backend=roomy)["x"] for seed in range(16)]
    states = sample.run_batch([{"seed": seed} for seed in range(16)], backend=tight)
    assert [state["x"] for state in states] == expected
    assert len(set(expected)) > 12
