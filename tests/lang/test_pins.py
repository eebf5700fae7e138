"""Leases that programs take on what their states hold."""

import asyncio
import importlib.util
import time
from pathlib import Path

import pytest

import boughs
from boughs.lang import loop
from boughs.lang.errors import BackendError, InvalidRequest, Unsupported
from boughs.lang.lease import Lease
from boughs.lang.requests import PinRequest
from boughs.lang.results import LeaseState
from boughs.testing import MockBackend

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)


def until(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_pin_holds_what_the_state_has_until_the_run_ends():
    backend = MockBackend("ok")
    held = []

    @boughs.function
    def program(s):
        s += "A long prefix."
        s.pin(60)
        s += boughs.gen("x")
        assert s["x"] == "ok"
        held.append(list(backend.pinned))

    program.run(backend=backend)
    assert held == [["A long prefix."]]
    until(lambda: not backend.pinned)


def test_a_pin_of_a_program_that_fails_ends_too():
    backend = MockBackend("ok")

    @boughs.function
    def program(s):
        s += "Prefix."
        s.pin()
        s.sync()
        assert backend.pinned == ["Prefix."]
        raise RuntimeError("oh")

    with pytest.raises(RuntimeError, match="oh"):
        program.run(backend=backend)
    until(lambda: not backend.pinned)


def test_branches_and_async_programs_pin_too():
    backend = MockBackend("ok")

    @boughs.function
    async def program(s):
        s += "a"
        for branch in s.fork(2):
            branch += "b"
            branch.pin()
            await branch.wait()
        assert backend.pinned == ["ab", "ab"]

    program.run(backend=backend)
    until(lambda: not backend.pinned)


@pytest.mark.parametrize("seconds", [0, -3, float("nan"), "9", None, True, 1e9])
def test_a_wrong_number_of_seconds_is_refused_where_it_is_written(seconds):
    @boughs.function
    def program(s):
        s += "a"
        with pytest.raises(InvalidRequest, match=r"^seconds"):
            s.pin(seconds)

    program.run(backend=MockBackend())


class _Plain:
    """A backend that can do what every backend must."""

    def __init__(self):
        self._mock = MockBackend("ok")
        self.generate, self.score = self._mock.generate, self._mock.score
        self.flush_cache = self._mock.flush_cache
        self.get_server_info = self._mock.get_server_info


class _Broken(MockBackend):
    async def pin(self, request):
        raise BackendError("no lease today")
        yield


@pytest.mark.parametrize(
    ("backend", "kind", "message"),
    [
        (_Plain(), Unsupported, "program program, pin for 600 s: pin: a _Plain has no cache"),
        (_Broken(), BackendError, "program program, pin for 600 s: no lease today"),
    ],
)
def test_a_pin_that_cannot_be_had_is_an_error_with_its_place(backend, kind, message):
    @boughs.function
    def program(s):
        s += "a"
        s.pin()

    with pytest.raises(kind, match=message):
        program.run(backend=backend)


def test_a_traced_program_shows_its_pins():
    @boughs.function
    def program(s):
        s += "a"
        s.pin(9)

    assert "pin for 9 s" in str(program.trace())


def test_a_lease_that_is_lost_later_disturbs_nobody():
    async def states():
        yield LeaseState(state="held", tokens=3)
        await asyncio.sleep(0.01)
        raise BackendError("the server has gone")

    async def hold():
        lease = await Lease.take(states())
        assert lease.state.tokens == 3
        assert await lease.ended(10)
        await lease.released()

    loop.run(hold())


def test_pins_flushes_and_trees_over_http():
    with fake.served() as site:
        endpoint = boughs.RuntimeEndpoint(site.url)

        @boughs.function
        def program(s):
            s += "Prefix. "
            s.pin(50)
            s.sync()
            assert site.engine.pinned == ["Prefix. "]

        program.run(backend=endpoint)
        until(lambda: not site.engine.pinned)
        assert boughs.flush_cache(endpoint, timeout=3) is True
        assert site.engine.flushed == 1
        assert len(loop.run(endpoint.tree(2, 5))["segments"]) == 2

        async def ended():
            request = PinRequest(prompt="a", seconds=0.01)
            return [state async for state in endpoint.pin(request)]

        assert loop.run(ended()) == [
            LeaseState(state="held", tokens=1),
            LeaseState(state="expired", tokens=0),
        ]
        with pytest.raises(InvalidRequest, match="seconds"):
            loop.run(anext(endpoint.pin(PinRequest(prompt="a", seconds=-1.0))))
        endpoint.close()
