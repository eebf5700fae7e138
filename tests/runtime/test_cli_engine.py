"""`boughs run` with an engine of its own, on a tiny model: no process stays behind."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

SCRIPT = """
import sys
import boughs

@boughs.function
def ask(s):
    s += "The quick" + boughs.gen("x", max_tokens=int(sys.argv[1]), temperature=0, ignore_eos=True)

print("begins", flush=True)
state = ask.run()
print(state.get_meta_info("x")["completion_tokens"])
sys.exit(7)
"""


@pytest.fixture
def start(tmp_path, tiny_model):
    """Starts the script with so many tokens to make, and waits until it begins."""
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    started = []

    def run(tokens):
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "boughs", "run", path, "--model", tiny_model),
                *("--kv-memory", "8M", "--attention-backend", "reference", "--threads", "1"),
                *("--", str(tokens)),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONSAFEPATH": "1"},
        )
        started.append(process)
        line = process.stdout.readline()
        assert line == "begins\n", process.communicate()[1]
        cores = psutil.Process(process.pid).children()
        assert len(cores) == 1
        return process, cores[0]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_script_with_an_engine(start):
    process, core = start(9)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (7, "9\n", "")
    assert not core.is_running()


def test_interrupted(start):
    process, core = start(3500)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    assert not core.is_running()
