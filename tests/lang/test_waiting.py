"""Levels and streams: nobody is woken early, nobody is forgotten, no interrupt is lost."""

import asyncio
import random
import subprocess
import sys
import threading
import time

import pytest

from boughs.lang.waiting import Level, Stream


def test_waiters_in_threads_are_woken_at_their_level():
    level, seen = Level(), []

    def wait(target):
        level.wait(target)
        seen.append((target, level.value))

    threads = [threading.Thread(target=wait, args=(target,)) for target in range(1, 20)]
    random.Random(0).shuffle(threads)
    for thread in threads:
        thread.start()
    for value in (3, 3, 2, 9, 19):
        level.raise_to(value)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert all(at >= target for target, at in seen)
    assert len(seen) == 19
    assert not level._waiters


def test_waiters_on_several_loops_are_woken():
    level = Level()
    done = []

    async def wait_all():
        await asyncio.gather(*(level.reach(target) for target in range(5)))
        done.append(True)

    threads = [threading.Thread(target=lambda: asyncio.run(wait_all())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for value in range(5):
        level.raise_to(value)
    for thread in threads:
        thread.join(10)
    assert done == [True] * 3


def test_a_cancelled_waiter_is_forgotten():
    level = Level()

    async def give_up():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(level.reach(1), 0.01)

    asyncio.run(give_up())
    assert not level._waiters
    level.raise_to(1)


def test_waiting_uses_no_processor_time():
    level = Level()
    used = []

    def wait():
        before = time.thread_time()
        level.wait(1)
        used.append(time.thread_time() - before)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    level.raise_to(1)
    thread.join(10)
    assert used[0] < 0.05  # a loop that polls would have used 0.2


def test_every_reader_sees_everything():
    stream, read = Stream(), {}

    def reader(name):
        read[name] = [item for items in stream.read() for item in items]

    async def collect(name):
        read[name] = [item async for items in stream.read_async() for item in items]

    def async_reader(name):
        asyncio.run(collect(name))

    threads = [
        threading.Thread(target=kind, args=(f"{kind.__name__}{i}",))
        for i in range(3)
        for kind in (reader, async_reader)
    ]
    for thread in threads[:3]:
        thread.start()
    for item in range(100):
        stream.append(item)
    for thread in threads[3:]:
        thread.start()
    for item in range(100, 200):
        stream.append(item)
    stream.close()
    for thread in threads:
        thread.join(10)
    reader("late")
    assert len(read) == 7
    assert all(items == list(range(200)) for items in read.values())


def test_a_stream_that_broke_gives_its_items_and_then_the_error():
    stream = Stream()
    stream.append("a")
    stream.close(lambda: ValueError("broken"))
    stream.close()  # ends once
    for _ in range(2):
        reader = stream.read()
        assert next(reader) == ["a"]
        with pytest.raises(ValueError, match="broken"):
            next(reader)


INTERRUPTED = """
import asyncio, os, signal, sys, threading, time
from boughs.lang import loop
from boughs.lang.waiting import Level

waits = {
    "a level": lambda: Level().wait(1),
    "the loop": lambda: loop.run(asyncio.sleep(600)),
}

def interrupt():
    time.sleep(0.2)
    # To a thread that is not the main one: nothing wakes that, as in the moment before it waits.
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    waits[sys.argv[1]]()
except KeyboardInterrupt:
    os._exit(7)
"""


@pytest.mark.parametrize("what", ["a level", "the loop"])
def test_an_interrupt_that_wakes_nobody_is_seen(what):
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, what], timeout=60, check=False)
    assert done.returncode == 7
