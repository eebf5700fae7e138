"""A server of one's own: it starts, serves, tells why it cannot, and never stays behind."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import boughs
from boughs.lang.errors import BackendError, InvalidRequest, RequestTimeout, Unsupported

pytestmark = pytest.mark.timeout(170)

SCRIPT = """
import sys, time
import boughs

@boughs.function
def program(s):
    s += boughs.user("hi") + boughs.assistant(boughs.gen("x", max_tokens=3))

runtime = boughs.Runtime(sys.argv[1], kv_memory="16M", attention_backend="reference")
state = program.run(backend=runtime)
assert state.usage.completion_tokens == 3, state.usage
assert "hi" in state.text()
print(runtime.pid, flush=True)
time.sleep(100)
"""


def alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def gone(pid, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not alive(pid):
            return True
        time.sleep(0.05)
    return False


def test_a_server_serves_and_ends_with_a_parent_that_was_killed(tiny_model):
    command = [sys.executable, "-P", "-c", SCRIPT, str(tiny_model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        line = parent.stdout.readline()
        parent.send_signal(signal.SIGKILL)
    assert gone(int(line), 30)


def test_the_methods_that_scripts_for_sglang_call(tiny_model):
    async def streamed(runtime):
        params = {"max_new_tokens": 6, "temperature": 0}
        pieces = [piece async for piece in runtime.async_generate("A fox", params)]
        with pytest.raises(InvalidRequest, match=r"sampling_params\.top_p"):
            await anext(runtime.add_request("A fox", {"top_p": 3}))
        return "".join(pieces), await runtime.get_server_info()

    with boughs.Runtime(str(tiny_model), kv_memory="16M", attention_backend="reference") as runtime:
        runtime.cache_prefix("A fox and a dog")
        answer = json.loads(
            runtime.generate("A fox", {"max_new_tokens": 6, "temperature": 0}, return_logprob=True)
        )
        assert answer["meta_info"]["cached_tokens"] > 0
        assert len(answer["meta_info"]["output_token_logprobs"]) == 6
        both = json.loads(runtime.generate(["A fox", "A dog"], {"max_new_tokens": 1}))
        assert [one["meta_info"]["completion_tokens"] for one in both] == [1, 1]
        text, info = asyncio.run(streamed(runtime))
        assert text == answer["text"]
        assert info["model_path"] == str(tiny_model)
        assert len(json.loads(runtime.encode("A fox"))["embedding"]) > 1
        tokenizer = runtime.get_tokenizer()
        ids = tokenizer.encode("A fox")
        assert len(ids) == answer["meta_info"]["prompt_tokens"]
        assert tokenizer.decode(ids, skip_special_tokens=True) == "A fox"
        for profile in (runtime.start_profile, runtime.stop_profile):
            with pytest.raises(Unsupported, match=rf"get_server_info.*{runtime.pid}"):
                profile()
        with pytest.raises(Unsupported, match="lora_path"):
            runtime.generate("A fox", lora_path="x")


def test_a_server_that_cannot_start_says_why():
    with pytest.raises(BackendError, match=r"(?s)could not start.*no model is called 'nonesuch'"):
        boughs.Runtime("nonesuch")
    with pytest.raises(BackendError, match="page-size"):
        boughs.Runtime("nonesuch", page_size="many")
    with pytest.raises(InvalidRequest, match="model_path"):
        boughs.Runtime(5)


def test_a_server_that_is_not_ready_in_time_is_ended(monkeypatch):
    from boughs.lang import launch

    command = [sys.executable, "-c", "import time; print('x', flush=True); time.sleep(60)"]
    monkeypatch.setattr(launch, "_command", lambda *_: command)
    pids = []
    popen = subprocess.Popen

    def spawn(*args, **kwargs):
        process = popen(*args, **kwargs)
        pids.append(process.pid)
        return process

    monkeypatch.setattr(launch.subprocess, "Popen", spawn)
    with pytest.raises(RequestTimeout, match=r"not ready within 0\.5 s"):
        boughs.Runtime("any", launch_timeout=0.5)
    assert gone(pids[0], 5)
