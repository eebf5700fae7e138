"""A program that runs by itself ends early when nobody can read it any more, and not before."""

import asyncio
import gc
import threading
from contextlib import aclosing

import pytest

import boughs
from boughs.lang.errors import RequestAborted
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(30)


class Watched(MockBackend):
    """Says when its requests begin and end."""

    def __init__(self, text, **options):
        super().__init__(text, **options)
        self.begun, self.ended = threading.Event(), threading.Event()

    async def generate(self, request):
        self.begun.set()
        try:
            async with aclosing(super().generate(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.ended.set()


LONG = "abcd" * 100_000


@boughs.function
def plain(s, seen):
    try:
        s += "Go: " + boughs.gen("x")
        seen.append(s["x"])
    except BaseException as error:
        seen.append(error)
        raise


@boughs.function
async def coroutine(s, seen):
    try:
        s += "Go: " + boughs.gen("x")
        seen.append(await s.get("x"))
    except BaseException as error:
        seen.append(error)
        raise


@boughs.function
def forked(s, seen):
    s += "Go: "
    branches = s.fork(3)
    branches += boughs.gen("x")
    seen.append(branches.join())


programs = pytest.mark.parametrize("program", [plain, coroutine, forked])


@programs
def test_a_state_that_is_dropped_unread_ends_its_requests(program):
    backend = Watched(LONG, delay=0.001)
    state = program.run([], backend=backend, stream=True)
    assert backend.begun.wait(20)
    assert not backend.ended.is_set()
    del state
    gc.collect()
    assert backend.ended.wait(20)


def test_the_body_gets_the_abort_at_its_next_read():
    backend, seen = Watched(LONG, delay=0.001), []
    state = plain.run(seen, backend=backend, stream=True)
    assert backend.begun.wait(20)
    del state
    gc.collect()
    assert backend.ended.wait(20)
    for thread in threading.enumerate():
        if thread.name == "boughs-plain":
            thread.join(20)
    assert isinstance(seen[0], RequestAborted)


def test_a_reader_that_is_dropped_with_its_state_ends_it():
    backend = Watched(LONG, delay=0.001)

    def read():
        reader = plain.run([], backend=backend, stream=True).text_iter("x")
        return next(reader)

    assert read() == "abcd"
    gc.collect()
    assert backend.ended.wait(20)


@pytest.mark.parametrize("name", ["x", None])
def test_a_reader_alone_keeps_it_running(name):
    backend = Watched("abcd" * 50, delay=0.0005)
    reader = plain.run([], backend=backend, stream=True).text_iter(name)
    first = next(reader)
    gc.collect()
    assert (first + "".join(reader)).removeprefix("Go: ") == "abcd" * 50


def test_an_async_reader_alone_keeps_it_running():
    async def read():
        backend = Watched("abcd" * 50, delay=0.0005)
        state = await coroutine.run_async([], backend=backend, stream=True)
        reader = state.text_async_iter("x")
        del state
        pieces = []
        async for piece in reader:
            gc.collect(0)
            pieces.append(piece)
        return "".join(pieces)

    assert asyncio.run(read()) == "abcd" * 50


@programs
def test_one_that_has_ended_is_left_alone(program):
    seen = []
    backend = Watched("ab")
    state = program.run(seen, backend=backend, stream=True)
    state.sync()
    state.error()
    text = state.text()
    del state
    gc.collect()
    assert text.startswith("Go: ")
    assert not any(isinstance(item, BaseException) for item in seen)


def test_what_is_awaited_is_held():
    async def run():
        return await plain.run_async([], backend=Watched("abcd" * 20, delay=0.0005))

    assert asyncio.run(run())["x"] == "abcd" * 20
