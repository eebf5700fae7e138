"""The unmodified `sglang` package against a real server; skipped where it is not installed."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("sglang") is None, reason="sglang is not installed"
)
CLIENT = Path(__file__).parents[1] / "fixtures" / "sglang_client.py"
KEY = "a-key"


@pytest.fixture(scope="module")
def url(tiny_model):
    command = [sys.executable, "-P", "-m", "boughs", "serve", tiny_model, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--kv-memory", "32M", "--api-key", KEY], stdout=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        yield re.search(r"ready: (\S+)", line)[1]
    finally:
        process.terminate()
        assert process.wait(20) == 0


@pytest.fixture(scope="module")
def made(url):
    """What the script printed."""
    done = subprocess.run(
        [sys.executable, CLIENT, url, KEY],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def post(url, path, body):
    headers = {"Authorization": f"Bearer {KEY}"}
    request = urllib.request.Request(url + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def test_gen(url, made):
    body = {"text": "Once upon a time", "sampling_params": {"max_tokens": 12, "temperature": 0}}
    answer = post(url, "/generate", body)
    assert made["gen"]["plain"] == answer["text"]
    assert made["meta"]["completion_tokens"] == answer["meta_info"]["completion_tokens"]
    assert made["meta"]["finish_reason"] == answer["meta_info"]["finish_reason"]
    assert re.fullmatch("[0-9]{3}", made["gen"]["number"])
    assert "e" not in made["gen"]["stopped"]
    assert made["batch"] == [answer["text"]] * 2


def test_stream(made):
    assert "".join(made["pieces"]) == made["gen"]["plain"]
    assert made["text"][0] == made["text"][1]


def mean(numbers):
    return sum(numbers) / len(numbers)


def test_select(url, made):
    """By each method the choice that our own scores give; no method fails, whatever the prompt."""
    for case in made["select"]:
        scores = post(
            url,
            "/score",
            {"text": case["prompt"], "choices": case["choices"], "unconditional": True},
        )["choices"]
        values = {
            "length": [mean(s["logprobs"]) for s in scores],
            "greedy": [s["logprobs"][0] for s in scores],
            "unconditional": [
                mean([a - b for a, b in zip(s["logprobs"], s["unconditional"], strict=True)])
                for s in scores
            ],
        }[case["method"]]
        best = case["choices"][values.index(max(values))]
        assert case["choice"] == best, case
        tokens = [[entry[1] for entry in option] for option in case["meta"]["input_token_logprobs"]]
        assert tokens == [s["token_ids"] for s in scores], case
        # Of a prompt of one token, that client divides by one entry too few.
        if case["method"] != "greedy" and len(case["prompt"]) > 1:
            assert case["meta"]["normalized_prompt_logprobs"] == pytest.approx(
                [mean(s["logprobs"]) for s in scores], abs=1e-3
            )


def test_fork_and_flush(made):
    assert len(made["fork"]["steps"]) == 3
    assert len(made["fork"]["end"]) > 0
    assert made["flush"] is None  # what its endpoint gives when it succeeded
