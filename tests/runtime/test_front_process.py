"""Cores as processes: started, killed, replaced, ended, and none left behind."""

import asyncio
import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from boughs.lang import loop
from boughs.lang.errors import EngineDied
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import collect
from boughs.lang.sampling import SamplingParams
from boughs.runtime.config import EngineConfig
from boughs.runtime.front import link as links
from boughs.runtime.front.link import CoreGone, ProcessLink, core_command
from boughs.runtime.messages import Ready, Submit

_fixtures = Path(__file__).parents[1] / "fixtures"


def load(name):
    spec = importlib.util.spec_from_file_location(name, _fixtures / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fake = load("fake_core")
fronts = load("fronts")
running_front, run = fronts.running_front, fronts.run


class Processes:
    """Links to fake core processes, one plan after the other, the last ones undisturbed."""

    def __init__(self, *plans, kill=False):
        self.plans = list(plans)
        self.kill = kill
        self.links = []

    def __call__(self, config):
        plan = self.plans.pop(0) if self.plans else {}
        self.links.append(ProcessLink(config, lambda _, address: self.command(address, plan)))
        return self.links[-1]

    def command(self, address, plan):
        command = [sys.executable, "-P", str(_fixtures / "fake_core.py"), "--address", address]
        command += ["--plan", json.dumps(plan)]
        return [*command, "--kill"] if self.kill else command


def script(tmp_path, text):
    """A link to a core that is this Python text; `ADDRESS` is the front's socket."""
    path = tmp_path / "core.py"
    path.write_text(f"import sys\nADDRESS = sys.argv[1]\n{text}")
    return lambda config: ProcessLink(
        config, lambda _, address: [sys.executable, str(path), address]
    )


def gone(pid):
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_core_process_answers_and_ends(capfd):
    processes = Processes()
    with running_front(None, connect=processes) as front:
        (answer,) = fronts.answers_of(
            front, GenerateRequest(prompt="Hello", params=SamplingParams(max_new_tokens=9))
        )
        start = front.tokenizer.encode("Hello", "start")
        assert answer.output_ids == fake.counting(start, 0)[:9]
        (link,) = processes.links
        folder = Path(link._folder.name)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert psutil.pid_exists(link.pid)
    assert not psutil.pid_exists(link.pid)
    assert not folder.exists()
    assert "the fake core says hello" in capfd.readouterr().err


def test_what_cannot_be_sent_fails_at_once_and_alone():
    """Its neighbours of the same turn of the loop are sent all the same."""
    with running_front(None, connect=Processes()) as front:

        async def ask():
            params = SamplingParams(max_new_tokens=9)
            request = GenerateRequest(prompt=[70], params=params)
            asked = [asyncio.create_task(collect(front.generate(request))) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(OverflowError):
                front._core.submit(Submit(key=0, prompt_ids=[2**70], params=params), print)
            with pytest.raises(OverflowError):
                await front._core.call("stats", {"size": 2**70})
            return [answer.output_ids for (answer,) in await asyncio.gather(*asked)]

        assert run(ask()) == [fake.counting([70], 0)[:9]] * 2
        assert run(front.stats())["in_flight"] == 0
        assert not front._core._calls


def test_a_killed_core_is_replaced_and_the_answer_goes_on():
    processes = Processes()
    with running_front(None, connect=processes) as front:

        async def ask():
            request = GenerateRequest(prompt=[70], params=SamplingParams(max_new_tokens=500))
            chunks = front.generate(request)
            ids = []
            async for chunk in chunks:
                if not ids:
                    os.kill(processes.links[0].pid, signal.SIGKILL)
                ids += chunk.output_ids
            return ids

        assert run(ask()) == fake.counting([70], 0)[:500]
        assert 1 <= len(processes.links) <= 2
        run(front.stats())
    assert all(not psutil.pid_exists(link.pid) for link in processes.links)


def test_how_a_core_died_is_told_with_what_it_printed():
    processes = Processes(*[{"die_on": 300}] * 4, kill=True)
    with running_front(None, connect=processes) as front:
        with pytest.raises(EngineDied, match=r"(?s)killed by signal 9.*crashed token 300"):
            fronts.answers_of(front, GenerateRequest(prompt=[300]))
        run(front.stats())  # the next one is there
    assert all(not psutil.pid_exists(link.pid) for link in processes.links)


def test_a_core_that_cannot_start_says_what_it_printed(tmp_path):
    connect = script(tmp_path, "print('no such device'); sys.exit(3)")
    with pytest.raises(EngineDied, match=r"(?s)could not start.*status 3.*no such device"):
        with running_front(None, connect=connect):
            pass


def test_a_command_that_is_none_is_an_error():
    def connect(config):
        return ProcessLink(config, lambda *_: ["/nonexistent/python"])

    with pytest.raises(OSError, match="nonexistent"), running_front(None, connect=connect):
        pass


def test_a_core_that_says_nonsense_is_given_up(tmp_path):
    connect = script(
        tmp_path,
        "import zmq, time\n"
        "s = zmq.Context().socket(zmq.PAIR)\n"
        "s.connect(ADDRESS); s.send(b'hello'); time.sleep(60)\n",
    )
    with pytest.raises(EngineDied, match="no message"), running_front(None, connect=connect):
        pass


STUBBORN = (
    "import zmq, time, signal\n"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "from boughs.runtime.messages import *\n"
    "limits = Limits('x', 384, 64, 64, 16, 5, (2,), 'x', 'float32')\n"
    "s = zmq.Context().socket(zmq.PAIR); s.connect(ADDRESS); s.send(encode(Ready(limits)))\n"
    "time.sleep(60)\n"
)


def test_a_core_that_will_not_end_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "SHUTDOWN_SECONDS", 0.1)
    monkeypatch.setattr(links, "KILL_SECONDS", 0.5)
    made = []
    connect = script(tmp_path, STUBBORN)

    def keep(config):
        made.append(connect(config))
        return made[-1]

    with running_front(None, connect=keep):
        pid = made[0].pid
        assert psutil.pid_exists(pid)
    assert not psutil.pid_exists(pid)


def test_a_link_tells_of_its_end_again_and_again():
    async def live():
        link = Processes()(EngineConfig(model_path="x"))
        await link.start()
        assert isinstance(await link.receive(), Ready)
        os.kill(link.pid, signal.SIGKILL)
        for _ in range(3):
            with pytest.raises(CoreGone, match="signal 9"):
                await link.receive()
        link.send(fake.Shutdown())
        await link.close()
        await link.close()

    run(live())


def test_large_messages_pass():
    with running_front(None, connect=Processes({"context": 200_000, "pool": 200_000})) as front:
        request = GenerateRequest(
            prompt=[70] * 100_000,
            params=SamplingParams(max_new_tokens=0),
            return_logprob=True,
            logprob_start_len=0,
        )
        (answer,) = fronts.answers_of(front, request)
        assert len(answer.prompt_logprobs) == 100_000


def test_the_command_keeps_the_working_directory_out():
    command = core_command(EngineConfig(model_path="m", threads=3), "ipc://a")
    assert command[1:4] == ["-P", "-m", "boughs.runtime.core"]
    settings = json.loads(command[command.index("--config") + 1])
    assert (settings["model_path"], settings["threads"]) == ("m", 3)
    assert command[command.index("--parent-pid") + 1] == str(os.getpid())


def test_a_core_process_ends_with_a_parent_that_is_killed(tmp_path):
    """The real core's entry point: it watches its parent from its first moment on."""
    made = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            "import os, subprocess, sys, time\n"
            "core = subprocess.Popen([sys.executable, '-P', '-m', 'boughs.runtime.core',"
            " '--address', sys.argv[1], '--config', sys.argv[2],"
            " '--parent-pid', str(os.getpid())])\n"
            "print(core.pid, flush=True)\n"
            "time.sleep(60)\n",
            f"ipc://{tmp_path}/core",
            json.dumps({"model_path": str(tmp_path)}),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    pid = int(made.stdout.readline())
    made.kill()
    made.wait()
    deadline = time.monotonic() + 30
    while not gone(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert gone(pid)


def test_many_requests_at_once():
    with running_front(None, connect=Processes()) as front:

        async def crowd():
            async def one(at):
                request = GenerateRequest(
                    prompt=[70, at], params=SamplingParams(max_new_tokens=20, stop=("#q",))
                )
                return (await collect(front.generate(request)))[0].output_ids

            return await asyncio.gather(*(one(100 + at) for at in range(100)))

        results = run(crowd())
        assert results == [fake.counting([70, 100 + at], 0)[:20] for at in range(100)]
        run(front.check())
    assert loop.background_loop().is_running()


def test_the_folders_of_killed_fronts_are_swept_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(links.tempfile, "tempdir", str(tmp_path))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    stale = tmp_path / f"boughs-{dead.pid}-x1"
    others = [
        tmp_path / f"boughs-{os.getpid()}-x1",
        tmp_path / "boughs-notes",
        tmp_path / "boughs-x-y",
    ]
    for folder in (stale, *others):
        folder.mkdir()
        (folder / "core").touch()
    with running_front(None, connect=Processes()):
        assert not stale.exists()
        assert len(list(tmp_path.iterdir())) == len(others) + 1
    assert sorted(tmp_path.iterdir()) == sorted(others)


def test_an_idle_core_uses_no_processor(tiny_model):
    """A real one: what it waits for costs nothing."""
    config = EngineConfig(model_path=str(tiny_model), kv_memory="8M", threads=1)
    made = []

    def connect(config):
        made.append(ProcessLink(config))
        return made[-1]

    front = fronts.Front(config, connect)
    run(front.start(), timeout=120)
    try:
        run(collect(front.generate(GenerateRequest(prompt="The", params=fronts.greedy()))))
        process = psutil.Process(made[0].pid)

        def used():
            times = process.cpu_times()
            return times.user + times.system

        before = used()
        time.sleep(1.0)
        assert used() - before <= 0.1  # a loop that turns would use all of the second
    finally:
        run(front.close())
