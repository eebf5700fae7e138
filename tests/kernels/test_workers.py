"""The threads that share tasks: each done once, errors handed on, no more threads than asked."""

import threading
import time

import pytest

from boughs.kernels.workers import Workers


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_each_task_is_done_once(threads):
    workers = Workers(threads)
    for count in (0, 1, 2, 3, 200):
        done, seen = [], set()

        def work(task, done=done, seen=seen):
            seen.add(threading.get_ident())
            done.append(task)

        workers.run(work, range(count))
        assert sorted(done) == list(range(count))
        assert len(seen) <= threads


def test_threads_work_at_the_same_time():
    together = threading.Barrier(3, timeout=30)
    Workers(3).run(lambda _: together.wait(), range(3))


def test_an_error_is_raised_after_all_have_stopped():
    workers = Workers(3)
    running = []

    def work(task):
        running.append(task)
        time.sleep(0.02)
        running.remove(task)
        if task == 1:
            raise KeyError(task)

    for _ in range(5):
        with pytest.raises(KeyError):
            workers.run(work, range(6))
        assert not running
    workers.run(running.append, [7])
    assert running == [7]


def test_several_may_ask_at_once():
    workers = Workers(3)
    done = [[] for _ in range(4)]

    def ask(number):
        for _ in range(20):
            workers.run(done[number].append, range(5))

    askers = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(timeout=30)
    assert all(sorted(mine) == sorted([*range(5)] * 20) for mine in done)


def test_the_threads_end_with_their_object():
    before = set(threading.enumerate())
    workers = Workers(4)
    started = set(threading.enumerate()) - before
    assert len(started) == 3
    workers.run(lambda _: None, range(9))
    del workers
    for thread in started:
        thread.join(timeout=30)
        assert not thread.is_alive()


def test_refuses_no_threads():
    with pytest.raises(ValueError):
        Workers(0)
