"""The progress bar of `run_batch`, and the usage of a batch: on a terminal, piped, broken off."""

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import boughs
from boughs.lang.errors import Overloaded
from boughs.lang.usage import Usage
from boughs.testing import MockBackend

pytestmark = pytest.mark.timeout(60)


@boughs.function
def ask(s, question):
    s += question
    branches = s.fork(2)
    branches += boughs.gen("answer")
    branches.join()
    s += boughs.gen("last")


def answer(call):
    if call.text.startswith("bad") and call.text != "bad":
        return Overloaded("full")
    return call.text


# ---- the usage of a batch ----


def test_a_batchs_usage_is_that_of_its_items():
    items = [(f"q{i}",) for i in range(20)]
    states = ask.run_batch(items, backend=MockBackend(answer))
    assert states.usage == Usage.total(state.usage for state in states)
    assert states.usage.requests == 4 * len(items)
    assert ask.run_batch([], backend=MockBackend()).usage == Usage()


def test_a_failed_items_requests_count():
    def said(call):
        return (
            Overloaded("full") if call.text.endswith("no") else "no" if "bad" in call.text else ""
        )

    backend = MockBackend(said)
    program = boughs.function(lambda s, q: s.__iadd__(q + boughs.gen("a") + boughs.gen("b")))
    results = program.run_batch([("q",), ("bad",)], backend=backend, return_exceptions=True)
    assert isinstance(results[1], Overloaded)
    assert results.usage.requests == 3  # the second of `bad` was answered by an error
    assert results.usage.prompt_tokens == 1 + 1 + 3


def test_a_stream_of_results_tells_its_usage_as_it_goes():
    seen = []
    states = ask.run_batch(
        [(f"q{i}",) for i in range(5)],
        backend=MockBackend(answer),
        num_threads=1,
        generator_style=True,
        on_result=lambda i, _: seen.append((i, states.usage.requests)),
    )
    assert states.usage == Usage()  # nothing has begun
    assert [state["last"] is not None for state in states] == [True] * 5
    assert states.usage.requests == 20
    assert [i for i, _ in seen] == list(range(5))
    assert all(requests >= 4 * (i + 1) for i, requests in seen)


def test_a_stream_that_is_closed_ends_what_runs():
    backend = MockBackend(answer, delay=0.01)
    states = ask.run_batch([("q",)] * 50, backend=backend, num_threads=2, generator_style=True)
    next(states)
    states.close()
    assert list(states) == []
    time.sleep(0.1)
    count = len(backend.calls)
    time.sleep(0.1)
    assert len(backend.calls) == count < 4 * 50


def test_a_running_items_requests_count():
    reached, goes_on = threading.Event(), threading.Event()

    @boughs.function
    def slow(s):
        s += "abc" + boughs.gen("x")
        s.sync()
        reached.set()
        goes_on.wait(20)

    states = slow.run_batch([{}], backend=MockBackend(), generator_style=True)
    reader = threading.Thread(target=list, args=(states,))
    reader.start()
    assert reached.wait(20)
    assert states.usage.prompt_tokens == 3
    goes_on.set()
    reader.join()
    assert states.usage.prompt_tokens == 3


# ---- the bar ----

SCRIPT = """
import sys, threading
import boughs
from boughs.testing import MockBackend

how = sys.argv[1]
program = boughs.function(lambda s, i: s.__iadd__("prompt" + str(i) + boughs.gen("x")))

def answer(call):
    if "prompt7" in call.text and how != "interrupt":
        raise ValueError("broken")
    return "said"

def note(i, outcome):
    print("item", i, flush=True)
    if how == "on_result" and i == 3:
        raise KeyError("mine")

batch = program.run_batch(
    [(i,) for i in range(10_000 if how == "interrupt" else 10)],
    backend=MockBackend(answer, delay=0.02),
    num_threads=2,
    progress_bar=True,
    on_result=note,
    generator_style=how == "generator",
    return_exceptions=how == "kept",
)
if how == "generator":
    for state in batch:
        print("got", flush=True)
        if state["x"] and "4" in state.text():
            break
    batch.close()
print("end", flush=True)
"""


def start(how, **options):
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
    for name in ("NO_COLOR", "FORCE_COLOR"):
        env.pop(name, None)
    return subprocess.Popen([sys.executable, "-c", SCRIPT, how], env=env, **options)


class Terminal:
    """A terminal on which a script writes its errors, and its output too."""

    def __init__(self, how):
        self._ours, theirs = pty.openpty()
        self.process = start(how, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.text = ""

    def read_until(self, pattern):
        """Read until a pattern has come; None reads to the end."""
        while pattern is None or not re.search(pattern, self.text):
            try:
                data = os.read(self._ours, 10_000)
            except OSError:  # nobody writes there any more
                data = b""
            if not data:
                assert pattern is None, self.text
                break
            self.text += data.decode("utf-8", "replace")

    def finish(self):
        self.read_until(None)
        os.close(self._ours)
        return self.process.wait(20)


@pytest.mark.parametrize("how", ["kept", "raised", "on_result", "generator", "interrupt"])
def test_a_terminal_is_left_clean(how):
    terminal = Terminal(how)
    if how == "interrupt":
        terminal.read_until(r"[1-9]\d*/10000")
        terminal.process.send_signal(signal.SIGINT)
    status = terminal.finish()
    text = terminal.text
    assert "\x1b[?25l" in text, "a bar hides the cursor"
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"), "and it comes back"
    assert "tokens/s" in text
    assert "% cached" in text
    assert "item 0" in text
    error = {"raised": "broken", "on_result": "mine", "interrupt": "KeyboardInterrupt"}.get(how)
    if error is None:
        assert status == 0
        assert text.rstrip().endswith("end")
    else:
        assert status != 0
        assert error in text[text.rfind("\x1b[?25h") :], "what is printed last is the error"
    if how == "kept":
        assert "10/10" in text
        assert "1 failed" in text


@pytest.mark.parametrize("how", ["kept", "raised", "generator"])
def test_without_a_terminal_there_is_one_line_at_the_end(how):
    process = start(how, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=30)
    assert "item" in out
    assert "\x1b" not in out + err
    assert "\r" not in out + err
    bars = [line for line in err.splitlines() if "tokens/s" in line]
    assert len(bars) == 1
    count = r"\d+" if how == "generator" else "10"
    assert re.fullmatch(rf"<lambda>: {count}/10, \d+ tokens/s, \d+% cached(, 1 failed)?", bars[0])
    assert how == "generator" or "1 failed" in bars[0]
    if how != "raised":
        assert err.splitlines() == bars


def test_bars_of_batches_inside_of_batches_do_not_break_each_other(capsys):
    @boughs.function
    def outer(s, i):
        inner = ask.run_batch([(f"q{i}",)], backend=MockBackend(answer), progress_bar=True)
        s += inner[0]["last"]

    states = outer.run_batch([(i,) for i in range(4)], backend=MockBackend(), progress_bar=True)
    assert len(states) == 4
    assert capsys.readouterr().err.count("tokens/s") == 5


def test_the_name_of_a_program_is_no_markup(capsys):
    def body(s):
        s += boughs.gen("x")

    body.__name__ = "[red]x[/blue]"
    with contextlib.suppress(boughs.BoughsError):
        boughs.function(body).run_batch([{}], backend=MockBackend(), progress_bar=True)
    assert "[red]x[/blue]: 1/1" in capsys.readouterr().err
