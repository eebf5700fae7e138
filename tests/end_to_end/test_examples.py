"""The examples run: in process, and all at once against one endpoint."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != "common")
SUMMARY = re.compile(r"\[.+\] (\d+) requests, (\d+) prompt tokens, (\d+) from the tree \((\d+)%\)")


def start(name, *args, boughs_run=False):
    command = ["-m", "boughs", "run"] if boughs_run else []
    env = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    return subprocess.Popen(
        [
            sys.executable,
            *command,
            *args[: 2 * boughs_run],
            str(EXAMPLES / f"{name}.py"),
            *args[2 * boughs_run :],
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=EXAMPLES,  # the folder above a clone called `boughs` would hide the package
    )


def finish(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    summaries = SUMMARY.findall(out)
    assert summaries, out
    for requests, prompt, cached, _ in summaries:
        assert int(requests) > 0
        assert int(cached) < int(prompt)
    return out, summaries


def test_there_is_an_example_of_each_kind():
    assert len(NAMES) >= 7


@pytest.mark.slow  # the endpoint's test runs each of them as well, and shares one model's loading
@pytest.mark.parametrize("name", NAMES)
def test_in_process(demo_model, name):
    del demo_model  # it is there, so that no example pulls it
    out, _ = finish(start(name))
    assert len(out.splitlines()) >= 3


@pytest.mark.parametrize("name", ["multi_turn", "extraction"])
def test_with_boughs_run(demo_model, name):
    _out, summaries = finish(start(name, "--model", str(demo_model), boughs_run=True))
    assert int(summaries[0][2]) > 0, "turns or items share nothing"


def test_all_at_once_on_one_endpoint(demo_server):
    processes = [start(name, "--endpoint", demo_server.url) for name in NAMES]
    for process in processes:
        finish(process)
    again = finish(start("few_shot", "--endpoint", demo_server.url, boughs_run=True))[1]
    requests, prompt, cached, _ = map(int, again[-1])
    # A second run computes the last token of each prompt, and what it gave back to be spelt anew.
    assert cached == prompt - 2 * requests
