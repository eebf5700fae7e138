"""Scripts that share one endpoint: prefixes, killed clients, errors."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import boughs

PREFIX = "The assistant helps the user; the system tells it how. " * 6

SCRIPT = """
import json, sys
import boughs

@boughs.function
def ask(s, question):
    s += sys.argv[2]
    s += question
    s += boughs.gen("answer", max_tokens=6, temperature=0, ignore_eos=True)

boughs.set_default_backend(boughs.RuntimeEndpoint(sys.argv[1]))
state = ask.run(question=sys.argv[3])
info = state.get_meta_info("answer")
print(json.dumps([info["prompt_tokens"], info["cached_tokens"], state["answer"]]))
"""

STREAMER = """
import sys
import boughs

@boughs.function
def long(s):
    s += sys.argv[2]
    s += boughs.gen("text", max_tokens=3000, temperature=0, ignore_eos=True)

boughs.set_default_backend(boughs.RuntimeEndpoint(sys.argv[1]))
for piece in long.run(stream=True).text_iter("text"):
    print("piece", flush=True)
"""


def get(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


def post(url, body):
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def script(code, *args):
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=subprocess.PIPE, text=True, env=os.environ
    )


def test_two_scripts_share_their_prefix(tiny_server):
    first = script(SCRIPT, tiny_server.url, PREFIX, "How many apples?")
    prompt, cached, _ = json.loads(first.communicate(timeout=60)[0])
    assert cached == 0
    second = script(SCRIPT, tiny_server.url, PREFIX, "Is it Monday?")
    prompt, cached, _ = json.loads(second.communicate(timeout=60)[0])
    assert prompt - 16 < cached + 8 < prompt + 8  # all but the question is cached
    assert first.returncode == second.returncode == 0


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_client_ends_its_requests_and_frees_its_pages(tiny_server, wait_until, sent):
    stats = lambda: get(tiny_server.url + "/server_info")["stats"]  # noqa: E731
    before = stats()
    client = script(STREAMER, tiny_server.url, PREFIX)
    assert client.stdout.readline() == "piece\n"
    assert stats()["running"] == 1
    client.send_signal(sent)
    client.wait(10)
    wait_until(lambda: stats()["running"] == 0, seconds=5)
    after = stats()
    assert after["aborted"] == before["aborted"] + 1
    assert after["cache"]["private"] == 0
    assert after["waiting"] == after["unconfirmed"] == 0


def test_a_request_that_is_not_streamed_ends_with_its_connection(tiny_server, wait_until):
    stats = lambda: get(tiny_server.url + "/server_info")["stats"]  # noqa: E731
    host, port = tiny_server.url.removeprefix("http://").split(":")
    body = json.dumps(
        {"text": PREFIX, "sampling_params": {"max_new_tokens": 3000, "ignore_eos": True}}
    )
    before = stats()["aborted"]
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /generate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        wait_until(lambda: stats()["running"] == 1)
    wait_until(lambda: stats()["running"] == 0, seconds=5)
    assert stats()["aborted"] == before + 1


def test_a_prompt_longer_than_the_context_is_refused_by_both_numbers(tiny_server):
    status, answer = post(tiny_server.url + "/generate", {"input_ids": [5] * 5000})
    assert status == 400
    assert "5000" in answer["error"]["message"]
    assert "4096" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"tempurature": 1}, "tempurature"),
        ({"top_p": 0}, "top_p"),
        ({"regex": "("}, "regex"),
        ({"stop_regex": "("}, "stop_regex"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"n": 0}, "n"),
    ],
)
def test_a_wrong_parameter_is_named(tiny_server, params, name):
    status, answer = post(tiny_server.url + "/generate", {"text": "a", "sampling_params": params})
    assert status == 400
    assert name in answer["error"]["message"]


def test_a_port_in_use_is_one_clear_message(tiny_server, tiny_model):
    port = tiny_server.url.rsplit(":", 1)[1]
    result = subprocess.run(
        [sys.executable, "-m", "boughs", "serve", str(tiny_model), "--port", port],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert result.returncode == 1
    assert f"{port}" in result.stderr
    assert "in use" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_model_lists_what_there_is():
    result = subprocess.run(
        [sys.executable, "-m", "boughs", "serve", "no-such-model", "--port", "0"],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert result.returncode == 1
    assert "smollm2-135m" in result.stderr
    assert "Traceback" not in result.stderr


def test_nothing_listens():
    with pytest.raises(boughs.BoughsError, match=r"127\.0\.0\.1:9"):
        boughs.RuntimeEndpoint("http://127.0.0.1:9")
