"""Leases through the front: they begin computed, end with their owner, and outlive a core."""

import asyncio
import importlib.util
from contextlib import aclosing
from pathlib import Path

import pytest

from boughs.lang.errors import EngineDied, InvalidRequest, RequestTimeout, Unsupported
from boughs.lang.requests import GenerateRequest, PinRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.runtime.messages import Call, LeaseEnded


def load(name):
    path = Path(__file__).parents[1] / "fixtures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")
running_front, run = fronts.running_front, fronts.run
shared, front, log = fronts.shared, fronts.front, fronts.log

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")

PROMPT = [70, 71, 72, 73]


def pinned(seconds=1000.0, prompt=PROMPT, **fields):
    return PinRequest(prompt=prompt, seconds=seconds, **fields)


async def _last(states):
    async for _ in states:
        pass


def test_a_lease_is_held_while_it_is_iterated(front, shared):
    async def hold():
        async with aclosing(front.pin(pinned())) as states:
            state = await anext(states)
            assert (state.state, state.tokens) == ("held", len(PROMPT))
            assert list(shared[1].leases.values()) == [PROMPT]
        await front.check()  # it refuses while leases are held
        assert not shared[1].leases

    run(hold())


def test_a_lease_ends_at_its_deadline(front):
    async def states():
        return [state.state async for state in front.pin(pinned(0.05))]

    assert run(states())[-1] == "expired"  # on a busy machine it may be over before it is held


def test_the_core_tells_of_a_broken_lease(front, shared):
    async def states():
        seen = []
        async for state in front.pin(pinned()):
            seen.append(state.state)
            for lease in shared[1].leases:
                front._core.leases.end(LeaseEnded(lease, "broken"))
            shared[1].leases.clear()
        return seen

    assert run(states()) == ["held", "broken"]


def test_a_lease_is_taken_again_on_the_next_core():
    """With what it holds computed again: the new core's tree is empty."""
    cores = []

    async def over_a_death(front):
        seen = []
        async with aclosing(front.pin(pinned())) as states:
            seen.append(await anext(states))
            with pytest.raises(EngineDied):
                await collect(front.generate(GenerateRequest(prompt=[300])))
            seen.append(await anext(states))
            assert list(cores[-1].leases.values()) == [PROMPT]
        await front.check()
        return seen

    def make_deadly():
        cores.append(fake.FakeCore(die_on=300 if len(cores) < 3 else None, log=[]))
        return cores[-1]

    with running_front(make_deadly) as front:
        seen = run(over_a_death(front))
    assert [(state.state, state.tokens) for state in seen] == [("held", 4), ("held", 4)]
    assert len(cores) == 4


@pytest.mark.parametrize("owner_leaves", [False, True])
@pytest.mark.parametrize("during", ["compute", "pin"])
def test_no_lease_is_left_of_a_core_that_died_while_it_was_taken(during, owner_leaves):
    """The next core is asked again for what the dead one had not answered."""
    cores = []

    class Once(fake.FakeCore):
        def dies(self):
            return self is cores[0]

        def take(self, submit):
            if during == "compute" and self.dies():
                raise fake.Crash("while it computes")
            super().take(submit)

        def call(self, call):
            if call.method == "pin" and self.dies():
                raise fake.Crash("while it pins")
            return super().call(call)

    def make():
        cores.append(Once(log=[]))
        return cores[-1]

    async def hold(front):
        states = front.pin(pinned())
        if owner_leaves:
            task = asyncio.ensure_future(anext(states))
            while not (len(cores) > 1 and cores[1].leases):  # noqa: ASYNC110 -- no event
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            state = await anext(states)
            assert (state.state, state.tokens) == ("held", len(PROMPT))
            await front.stats()  # what was sent before has been read
            assert list(cores[1].leases.values()) == [PROMPT]
        await states.aclose()
        await front.check()  # it refuses while leases are held

    with running_front(make) as front:
        run(hold(front))
    assert len(cores) == 2


def test_a_lease_whose_core_is_gone_for_good_ends_with_that_error():
    class Dying(fake.FakeCore):
        def call(self, call):
            if call.method == "stats":
                raise fake.Crash("no reason")
            return super().call(call)

    async def hold(front):
        async with aclosing(front.pin(pinned())) as states:
            await anext(states)
            with pytest.raises(EngineDied):
                await front.stats()
            with pytest.raises(EngineDied):
                await asyncio.wait_for(_last(states), 20)

    with running_front(lambda: Dying(log=[])) as front:
        run(hold(front))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), "9", True, 1e9])
def test_a_wrong_deadline_is_refused(front, log, seconds):
    async def hold():
        await anext(front.pin(pinned(seconds)))

    with pytest.raises(InvalidRequest, match="seconds") as caught:
        run(hold())
    assert caught.value.param == "seconds"
    assert not [message for message in log if isinstance(message, Call)]


@pytest.mark.parametrize(
    ("name", "value"),
    [("priority", None), ("priority", "1"), ("priority", 2**31), ("cache_salt", 5)],
)
def test_a_wrong_field_is_named(front, log, name, value):
    async def hold():
        await anext(front.pin(pinned(**{name: value})))

    with pytest.raises(InvalidRequest, match=name) as caught:
        run(hold())
    assert caught.value.param == name
    assert not log


def test_what_generate_refuses_is_refused(front):
    async def hold(prompt):
        await anext(front.pin(pinned(prompt=prompt)))

    for prompt in ("", [10**6], "x" * 10**6):
        with pytest.raises(InvalidRequest, match=r"prompt|segments\[0\]"):
            run(hold(prompt))


def test_without_a_cache_there_is_nothing_to_pin():
    async def hold(front):
        await anext(front.pin(pinned()))

    with (
        running_front(fake.FakeCore, disable_radix_cache=True) as front,
        pytest.raises(Unsupported, match="disable_radix_cache"),
    ):
        run(hold(front))


def test_a_flush_may_wait(front, log):
    run(front.flush_cache(5.0))
    assert [m.args for m in log if isinstance(m, Call) and m.method == "flush"] == [{"wait": 5.0}]
    for wrong in (-1.0, float("nan"), "1", None):
        with pytest.raises(InvalidRequest, match="timeout must be"):
            run(front.flush_cache(wrong))


@pytest.mark.parametrize("value", [-1, 10**6, 1.5, "3", None])
@pytest.mark.parametrize("name", ["max_segments", "max_tokens"])
def test_a_wrong_size_of_a_picture_is_named(front, name, value):
    with pytest.raises(InvalidRequest, match=f"{name} must be a whole number") as caught:
        run(front.tree(**{name: value}))
    assert caught.value.param == name


def test_a_flush_whose_caller_goes_is_taken_back(front, log, shared):
    """As `curl --max-time` does: else nobody would be admitted until its patience is over."""
    core, plain = shared[1], shared[1].call
    core.call = lambda call: fake.Reply(0) if call.method == "flush" else plain(call)

    async def leave():
        task = asyncio.ensure_future(front.flush_cache(1000.0))
        while not any(isinstance(m, Call) for m in log):  # noqa: ASYNC110 -- no event
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await front.stats()  # what was sent before has been read

    try:
        run(leave())
    finally:
        core.call = plain
    flush, forget, _ = [m for m in log if isinstance(m, Call)]
    assert (forget.method, forget.args) == ("forget", {"call": flush.id})


def test_the_cores_own_timeout_reaches_the_caller():
    core = fake.FakeCore()
    plain = core.call

    def call(message):
        if message.method != "flush":
            return plain(message)
        return fake.Reply(
            message.id, error=("RequestTimeout", "flush_cache: requests ran on", None)
        )

    core.call = call
    with (
        running_front(lambda: core) as front,
        pytest.raises(RequestTimeout, match=r"^flush_cache: requests ran on"),
    ):
        run(front.flush_cache(1.0))


def test_a_lease_computes_in_its_namespace_with_its_priority(front, log):
    async def hold():
        async with aclosing(front.pin(pinned(cache_salt="a", priority=3))) as states:
            await anext(states)

    run(hold())
    (submit,) = [message for message in log if isinstance(message, fake.Submit)]
    assert (submit.namespace, submit.params.priority) == ("a", 3)
    assert submit.params == SamplingParams(
        max_new_tokens=0, priority=3, cache_salt="a", seed=submit.params.seed
    )
    (pin,) = [m for m in log if isinstance(m, Call) and m.method == "pin"]
    assert (pin.args["namespace"], pin.args["tokens"]) == ("a", PROMPT)


def test_a_prompt_as_long_as_the_context_can_be_pinned(front):
    room = front.limits.context_length

    async def hold(prompt):
        async with aclosing(front.pin(pinned(prompt=prompt))) as states:
            return (await anext(states)).tokens

    assert run(hold([70] * room)) == room
    with pytest.raises(InvalidRequest, match=f"{room + 1} tokens do not fit the context"):
        run(hold([70] * (room + 1)))
    prefill = SamplingParams(max_new_tokens=0)
    assert run(collect(front.generate(GenerateRequest(prompt=[70] * room, params=prefill))))
    with pytest.raises(InvalidRequest, match="and one of output, do not fit"):
        run(collect(front.generate(GenerateRequest(prompt=[70] * room))))
