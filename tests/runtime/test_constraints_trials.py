"""The process in which grammars are tried: its bounds, its deaths, and what is remembered of it."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from boughs.lang.errors import BackendError, GrammarError, Unsupported
from boughs.runtime.constraints import verdicts
from boughs.runtime.constraints.compiler import GrammarCompiler
from boughs.runtime.constraints.trials import Trials
from boughs.runtime.constraints.worker import Bounds

VOCAB, EOS = 384, 2
HEAVY = "((((a{100}){100}){100}){100})"
"""More than a second of work, and no grammar in the end."""
ENUM = '{"enum": [' + ", ".join(f'"{i * 7919 % 1000003:07d}"' for i in range(20_000)) + "]}"


@pytest.fixture
def compiler_of(tiny_model):
    made = []

    def make(seconds=20.0, memory=1 << 30, cache=None):
        bounds = Bounds(seconds, memory)
        made.append(GrammarCompiler(tiny_model, VOCAB, (EOS,), bounds, cache))
        return made[-1]

    yield make
    for compiler in made:
        compiler.close()


def test_a_trial_that_takes_too_long_is_killed_and_the_next_one_runs(compiler_of, tmp_path):
    grammars = compiler_of(seconds=0.2, cache=tmp_path)
    with pytest.raises(GrammarError, match=r"regex: it takes more than 0.2 seconds.*timeout"):
        grammars.matcher("regex", HEAVY)
    assert list(tmp_path.iterdir()) == []  # another time it may be fast enough
    assert not grammars.matcher("regex", "a").complete


ATTEMPTS = """
import os
import time
from boughs.runtime.constraints import worker
from boughs.runtime.constraints.trial import Verdict

def attempt(job):
    if job.source == "spins":
        while True:
            pass
    if job.source == "falls back":
        while os.getpriority(os.PRIO_PROCESS, 0) < worker.LAST:
            time.sleep(0.01)
        return Verdict(job.source)
    time.sleep(float(job.source))
    return Verdict(job.source)

worker.PATIENCE = 40
worker.Server(attempt, worker.Bounds(0.1, 1 << 30)).run()
"""


def test_a_trial_is_bounded_by_the_processor_time_that_it_takes():
    """As on a machine so busy that it hardly runs: what waits for long is not refused."""
    trials = Trials([sys.executable, "-c", ATTEMPTS])
    sources = "spins", "0.5", "1000", "falls back"
    with ThreadPoolExecutor(4) as threads:
        spins, waits, waits_long, falls_back = threads.map(
            lambda source: trials.run("regex", source), sources
        )
    trials.close()
    assert falls_back.grammar == "falls back"  # behind all others, after a while
    assert waits.grammar == "0.5"
    assert "takes more than 0.1 seconds to compile (grammar_timeout)" in spins.error
    assert "no processor was free to compile it within 4 seconds" in waits_long.error
    assert not spins.final
    assert not waits_long.final


def test_a_trial_that_takes_too_much_memory_fails_and_the_next_one_runs(compiler_of):
    grammars = compiler_of(memory=8 << 20)
    with pytest.raises(GrammarError, match="json_schema: it takes more memory"):
        grammars.matcher("json_schema", ENUM)
    assert not grammars.matcher("regex", "a").complete


def test_a_verdict_is_looked_up_by_all_the_code_that_decides_it(tmp_path, monkeypatch):
    names = "[m.__file__ for n, m in sys.modules.items() if n.startswith('boughs.') and m.__doc__]"
    modules = "boughs.runtime.constraints.llguidance_backend, boughs.runtime.constraints.trial"
    imports = f"import sys, {modules}; print(*{names}, sep='\\n')"
    out = subprocess.run([sys.executable, "-P", "-c", imports], capture_output=True, text=True)
    used = {Path(name) for name in out.stdout.split()}
    beside = {path for path in used - {*verdicts.code()} if path.name != "__init__.py"}
    assert {path.name for path in beside} == {"errors.py"}
    copies = [tmp_path / str(at) for at in range(len(verdicts.code()))]
    for copy, path in zip(copies, verdicts.code(), strict=True):
        copy.write_bytes(path.read_bytes())
    seen = set()
    for copy in copies:
        fresh = tmp_path / f"{copy.name}-changed"
        fresh.write_bytes(copy.read_bytes() + b"#")
        files = [fresh if path == copy else path for path in copies]
        monkeypatch.setattr(verdicts, "code", lambda files=files: files)
        seen.add(verdicts.fingerprint("regex", "a"))
    assert len(seen) == len(copies)


def test_trials_do_not_wait_for_one_another(compiler_of):
    grammars = compiler_of()
    heavy = grammars.ask("regex", HEAVY)
    light = grammars.ask("regex", "b")
    light.result(20)
    assert not heavy.done()
    with pytest.raises(GrammarError, match="too many expressions"):
        heavy.result(20)


def test_a_source_is_compiled_once_for_all_who_ask(compiler_of):
    grammars = compiler_of()
    asked = [grammars.ask("regex", HEAVY) for _ in range(50)]
    assert all(compiled is asked[0] for compiled in asked)
    assert grammars.ask("ebnf", HEAVY) is not asked[0]


def test_matchers_of_a_grammar_go_on_apart(compiler_of):
    grammars = compiler_of()
    one, other = grammars.matcher("regex", "[ab]c"), grammars.matcher("regex", "[ab]c")
    before = other.mask(VOCAB)
    one.accept(int(before.nonzero()[0][0]))
    assert (other.mask(VOCAB) == before).all()
    assert not (one.mask(VOCAB) == before).all()


def test_a_verdict_on_disk_needs_no_trial(compiler_of, tmp_path):
    first = compiler_of(cache=tmp_path)
    first.matcher("regex", "[ab]c")
    with pytest.raises(GrammarError) as caught:
        first.matcher("regex", "(")
    assert len(list(tmp_path.iterdir())) == 2
    second = compiler_of(cache=tmp_path)
    second._trials = None
    assert (second.matcher("regex", "[ab]c").mask(VOCAB)).any()
    with pytest.raises(GrammarError) as again:
        second.matcher("regex", "(")
    assert str(again.value) == str(caught.value)
    second._trials = Trials([sys.executable, "-c", ""])


def test_a_broken_verdict_on_disk_is_made_again(compiler_of, tmp_path):
    compiler_of(cache=tmp_path).matcher("regex", "ab")
    (file,) = tmp_path.iterdir()
    file.write_text("{")
    assert compiler_of(cache=tmp_path).matcher("regex", "ab").mask(VOCAB).any()
    assert file.stat().st_size > 10


def test_a_folder_that_cannot_be_made_keeps_nothing(compiler_of, tmp_path):
    (tmp_path / "file").touch()
    grammars = compiler_of(cache=tmp_path / "file" / "folder")
    assert grammars.matcher("regex", "ab").mask(VOCAB).any()


def test_a_model_without_a_tokenizer_that_grammars_know_says_so(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    compiler = GrammarCompiler(tmp_path, VOCAB, (EOS,))
    with pytest.raises(Unsupported, match="regex: this model's tokenizer is of a kind"):
        compiler.matcher("regex", "a")
    compiler.close()


DIES = """
import json, pathlib, sys
for line in sys.stdin:
    job = json.loads(line)
    if job["source"] == "always" or not pathlib.Path(sys.argv[1]).exists():
        pathlib.Path(sys.argv[1]).touch()
        sys.exit(9)
    print(json.dumps({"id": job["id"], "grammar": job["source"]}), flush=True)
"""


def test_a_process_that_has_died_is_started_again(tmp_path):
    trials = Trials([sys.executable, "-c", DIES, str(tmp_path / "died")])
    assert trials.run("regex", "x").grammar == "x"
    answer = trials.run("regex", "always")
    assert (answer.grammar, answer.final) == (None, False)
    assert "the process that tries grammars ended" in answer.error
    assert trials.run("regex", "y").grammar == "y"
    trials.close()


def test_who_waits_when_it_is_closed_is_told(tmp_path):
    trials = Trials([sys.executable, "-c", "import time; time.sleep(60)"])
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(trials.run, "regex", "x")
        while not trials._waiting:
            pass
        trials.close()
        assert waiting.result(20).grammar is None
    assert trials.run("regex", "x").grammar is None


def test_a_fault_of_ours_fails_one_grammar_and_no_other(compiler_of, monkeypatch):
    """The core takes it as the error of a request; any other exception would end the core."""

    def fails(tokenizer, grammar):
        raise KeyError("x")

    grammars = compiler_of()
    with monkeypatch.context() as patch:
        patch.setattr("boughs.runtime.constraints.llguidance_backend.LLGuidance.build", fails)
        with pytest.raises(BackendError, match=r"regex: compiling it failed: KeyError\('x'\)"):
            grammars.matcher("regex", "a")
    assert not grammars.matcher("regex", "b").complete
