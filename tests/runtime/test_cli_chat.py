"""`boughs chat` and `boughs run` as processes, before a server without a model."""

import importlib.util
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_path = Path(__file__).parents[1] / "fixtures" / "fake_engine.py"
_spec = importlib.util.spec_from_file_location("fake_engine", _path)
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)

ENV = {**os.environ, "PYTHONSAFEPATH": "1", "TERM": "dumb", "COLUMNS": "200"}


@pytest.fixture
def site():
    with fake.served(keep_alive=0.5) as site:
        yield site


def command(site, *argv):
    return [sys.executable, "-m", "boughs", *argv, "--endpoint", site.url]


def chat(site, text, *argv):
    """(status, answers, notes) of a chat whose turns come from a pipe."""
    done = subprocess.run(
        command(site, "chat", *argv),
        input=text,
        capture_output=True,
        text=True,
        timeout=60,
        env=ENV,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def prompts(site):
    """What the engine was asked to continue; requests that only prefill are left out."""
    seen = [one for one in site.engine.seen if one.params.max_new_tokens]
    return [fake.text_of(one.prompt) for one in seen]


def user(text):
    return f"<user begin>{text}<user end>"


def assistant(text):
    return f"<assistant begin>{text}<assistant end>"


BEGIN = "<assistant begin>"


def test_piped_turns(site):
    site.engine.replies = {user("hi") + BEGIN: "hello [b]you[/b] ☃"}
    status, answers, notes = chat(site, "hi\n\n  and now? \n", "--max-tokens", "9")
    assert status == 0
    assert answers == "hello [b]\nThe quick\n"  # cut at the limit, and not taken for markup
    first = user("hi")
    assert prompts(site) == [
        first + BEGIN,
        first + assistant("hello [b]") + user("and now?") + BEGIN,
    ]
    assert notes.count("prompt tokens from the tree") == 2
    assert f"of {len(first + BEGIN)} prompt tokens" in notes


def test_options(site):
    argv = ["--system", "Be brief.", "--temperature", "0", "--top-p", "0.5", "--seed", "7"]
    assert chat(site, "hi\n", *argv, "--max-tokens", "3")[0] == 0
    assert prompts(site) == ["<system begin>Be brief.<system end>" + user("hi") + BEGIN]
    params = site.engine.seen[-1].params
    assert (params.temperature, params.top_p, params.seed) == (0, 0.5, 7)
    assert params.max_new_tokens == 3


def test_commands(site):
    lines = ["hi", "/reset", "one", "/system S", "two", "/what", "/exit", "three"]
    status, _, notes = chat(site, "\n".join(lines), "--max-tokens", "2")
    assert status == 0
    assert prompts(site) == [
        user("hi") + BEGIN,
        user("one") + BEGIN,
        "<system begin>S<system end>" + user("two") + BEGIN,
    ]
    assert notes.count("a new conversation") == 2
    assert "there is no /what" in notes


def test_error_ends_a_pipe(site):
    fake.ERRORS[user("now") + BEGIN] = fake.Unservable("the prompt is too long")
    try:
        status, answers, notes = chat(site, "now\nlater\n")
    finally:
        del fake.ERRORS[user("now") + BEGIN]
    assert status == 1
    assert answers == ""
    assert "boughs: error: " in notes
    assert "the prompt is too long" in notes


class Terminal:
    """A chat in a pseudo-terminal."""

    def __init__(self, site, *argv):
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            command(site, "chat", *argv), stdin=theirs, stdout=theirs, stderr=theirs, env=ENV
        )
        os.close(theirs)
        self.seen = ""

    def wait_for(self, text):
        """Read until the text has come; what came before and with it."""
        while text not in self.seen:
            try:
                got = os.read(self.ours, 1000)
            except OSError:  # how a pseudo-terminal says that its other end has gone
                got = b""
            assert got, f"{text!r} did not come, but {self.seen!r}"
            self.seen += got.decode()
        before, _, self.seen = self.seen.partition(text)
        return before + text

    def say(self, line):
        os.write(self.ours, line.encode() + b"\n")

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def end(self):
        status = self.process.wait(20)
        os.close(self.ours)
        return status


def test_terminal(site):
    site.engine.chars = 1
    chat = Terminal(site, "--max-tokens", "30")
    assert "commands: /system" in chat.wait_for("> ")
    chat.say("hi")
    printed = chat.wait_for("> ")
    assert "The quick brown fox jumps over" in printed
    assert "30 tokens" in printed
    # Ctrl-C ends an answer; the conversation goes on with what there was of it.
    site.engine.hold(after=9)
    chat.say("more")
    chat.wait_for("The quick")
    chat.interrupt()
    chat.wait_for("> ")
    until(lambda: not site.engine.running)
    site.engine.held = None
    chat.say("again")
    chat.wait_for("> ")
    whole = "The quick brown fox jumps over"
    past = user("hi") + assistant(whole) + user("more") + assistant("The quick")
    assert prompts(site)[-1] == past + user("again") + BEGIN
    # An error begins anew, and does not end it.
    after = prompts(site)[-1] + whole + "<assistant end>" + user("x") + BEGIN
    fake.ERRORS[after] = fake.Overloaded("it is full")
    chat.say("x")
    assert "it is full" in chat.wait_for("a new conversation")
    chat.wait_for("> ")
    chat.say("y")
    chat.wait_for("> ")
    assert prompts(site)[-1] == user("y") + BEGIN
    # Ctrl-C where nothing is made leaves. (Python loses one between its prompt and its read.)
    time.sleep(0.3)
    chat.interrupt()
    assert chat.end() == 130
    assert "Traceback" not in chat.seen


def test_terminal_ends_with_its_input(site):
    chat = Terminal(site)
    chat.wait_for("> ")
    os.write(chat.ours, b"\x04")
    assert chat.end() == 0


SCRIPT = """
import sys
import boughs

@boughs.function
def ask(s, text):
    s += text + boughs.gen("x", max_tokens=9)

print(ask.run(text="hi")["x"], *sys.argv[1:])
"""


def test_run_on_an_endpoint(site, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [*command(site, "run", str(path)), "--", "--a", "b"],
        capture_output=True, text=True, timeout=60, env=ENV,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "The quick --a b\n"


def test_run_is_interrupted(site, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    site.engine.hold()
    process = subprocess.Popen(
        command(site, "run", str(path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENV
    )
    until(lambda: site.engine.running)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (130, b"", b"")
    until(lambda: not site.engine.running)
