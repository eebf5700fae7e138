"""The command line: what it accepts, what it refuses, and its exit codes."""

import argparse
import os
import subprocess
import sys
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from boughs.lang.errors import InvalidRequest, NotFound
from boughs.runtime.cli import COMMANDS, main, run, serve
from boughs.runtime.cli.flags import add_flags, given_flags, read_flags
from boughs.runtime.config import EngineConfig
from boughs.runtime.server.config import ServerConfig

NAMES = ("pull", "serve", "run", "chat", "tree")


def refused(capsys, *argv):
    """What a wrong command line prints; its status is 2."""
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_help_of_all(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"    {name}" in printed for name in NAMES)
    assert len(NAMES) == len(COMMANDS)


@pytest.mark.parametrize("name", NAMES)
def test_help_of_each(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert "examples:" in printed
    assert f"boughs {name}" in printed


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith("boughs 0.")


def test_import_is_light():
    """`boughs --help` waits for nothing heavy."""
    code = (
        "import sys, boughs.runtime.cli as cli\n"
        "try: cli.main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numba', 'llguidance', 'aiohttp', 'zmq', 'tokenizers'}\n"
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "required: COMMAND"),
        (["nope"], "invalid choice: 'nope'"),
        (["serve"], "required: MODEL"),
        (["serve", "m", "--nope"], "unknown: --nope"),
        (["serve", "m", "--port", "x"], "--port: invalid int value"),
        (["serve", "m", "--port", "70000"], "--port must be from 0 to 65535"),
        (["serve", "m", "--page-size", "0"], "--page-size must be at least 1"),
        (["serve", "m", "--kv-memory", "lots"], "--kv-memory must be a size"),
        (["serve", "m", "--max-body-size", "lots"], "--max-body-size must be a size"),
        (["serve", "m", "--schedule-policy", "random"], "--schedule-policy: invalid choice"),
        (["serve", "m", "--api-key", ""], "--api-key must not be empty"),
        (["serve", "m", "--", "x"], "nothing may follow --"),
        (["run"], "required: SCRIPT"),
        (["run", "s.py", "x"], "unknown: x; a script's own go behind --"),
        (["chat", "a", "b"], "unknown: b"),
    ],
)
def test_wrong_command_lines(argv, words, capsys):
    assert words in refused(capsys, *argv)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--endpoint", "http://localhost:1", "--page-size", "3"], "--page-size says nothing"),
        (["--endpoint", "http://localhost:1", "--model", "m"], "not both"),
        (["--api-key", "x"], "--api-key needs --endpoint"),
        (["--page-size", "0"], "--page-size must be at least 1"),
    ],
)
def test_contradicting_flags(argv, words, capsys, tmp_path):
    script = tmp_path / "s.py"
    script.touch()
    assert words in refused(capsys, "run", str(script), *argv)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["serve", "no-such-model", "--port", "0"], "no model is called 'no-such-model'"),
        (["chat", "no-such-model"], "no model is called 'no-such-model'"),
        (["run", "/no/such/script.py"], "there is no script /no/such/script.py"),
        (["chat", "--endpoint", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1"),
        (["chat", "--temperature", "-1"], "temperature must be"),
        (["serve", "m", "--host", "no.such.host.invalid"], "is no address"),
    ],
)
def test_errors(argv, words, capsys):
    assert main(argv) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("boughs: error: ")
    assert words in printed
    assert "Traceback" not in printed


def test_interrupt(monkeypatch, capsys):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(serve, "run", interrupted)
    assert main(["serve", "m"]) == 130
    assert capsys.readouterr() == ("", "")


# ---- flags ----


class Config(msgspec.Struct, frozen=True, kw_only=True):
    name: Annotated[str, Meta(description="100 % of a name")]
    page_size: Annotated[int, Meta(description="tokens")] = 16
    seconds: Annotated[float, Meta(description="time")] = 0.5
    memory: Annotated[str | None, Meta(description="size")] = None
    threads: Annotated[int | None, Meta(description="cores")] = None
    policy: Annotated[Literal["a", "b"], Meta(description="which")] = "a"
    check: Annotated[bool, Meta(description="slow")] = False
    origins: Annotated[tuple[str, ...], Meta(description="many")] = ()


def parse(*argv):
    parser = argparse.ArgumentParser()
    add_flags(parser, Config, "flags", skip={"name"})
    return parser.parse_args(argv)


def test_flags_give_what_the_struct_holds():
    args = parse(
        "--page-size", "8", "--seconds", "1", "--memory", "2G", "--threads", "3", "--policy", "b",
        "--check", "--origins", "x", "--origins", "y",
    )  # fmt: skip
    assert read_flags(args, Config, name="n") == Config(
        name="n", page_size=8, seconds=1.0, memory="2G", threads=3, policy="b", check=True,
        origins=("x", "y"),
    )  # fmt: skip


def test_flags_not_given_are_the_struct_s_own():
    assert given_flags(parse(), Config) == {}
    assert read_flags(parse(), Config, name="n") == Config(name="n")


def test_help_says_the_default():
    parser = argparse.ArgumentParser()
    add_flags(parser, Config, "flags")
    printed = " ".join(parser.format_help().split())
    assert "100 % of a name" in printed
    assert "tokens (default 16)" in printed
    assert "{a,b}" in printed
    assert "(default None)" not in printed
    assert "(default ())" not in printed


@pytest.mark.parametrize("config", [EngineConfig, ServerConfig])
def test_every_field_is_a_flag_with_help(config, capsys):
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    printed = capsys.readouterr().out
    for name in config.__struct_fields__:
        if name != "model_path":
            assert f"--{name.replace('_', '-')}" in printed
    for field in msgspec.inspect.type_info(config).fields:
        assert field.type.extra_json_schema["description"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1},
        {"keep_alive": 0},
        {"client_timeout": float("nan")},
        {"shutdown_timeout": float("inf")},
        {"max_body_size": "none"},
        {"api_key": ""},
    ],
)
def test_wrong_server_configs(wrong):
    with pytest.raises(InvalidRequest, match=next(iter(wrong))):
        ServerConfig(**wrong)


# ---- scripts ----


def script(tmp_path, text):
    path = tmp_path / "a script.py"
    path.write_text(text)
    return path


def test_script_is_main(tmp_path, capsys):
    (tmp_path / "beside.py").write_text("WORD = 'found'")
    path = script(
        tmp_path,
        "import sys, beside\nprint(__name__, sys.argv[1:], beside.WORD, sys.modules['__main__'])",
    )
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    assert run.run_script(path, ["a", "--b"]) == 0
    assert (sys.argv, sys.path, sys.modules["__main__"]) == before
    sys.modules.pop("beside")
    printed = capsys.readouterr().out
    assert printed.startswith("__main__ ['a', '--b'] found")


@pytest.mark.parametrize(
    ("line", "status", "printed"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit(True)", 1, ""),
        ("sys.exit('bad luck')", 1, "bad luck\n"),
        ("pass", 0, ""),
    ],
)
def test_script_s_status(tmp_path, capsys, line, status, printed):
    assert run.run_script(script(tmp_path, f"import sys\n{line}"), []) == status
    assert capsys.readouterr().err == printed


def test_script_s_error(tmp_path, capsys):
    path = script(tmp_path, "def f():\n    raise ValueError('oops')\n\nf()\n")
    assert run.run_script(path, []) == 1
    printed = capsys.readouterr().err
    assert printed.splitlines()[-1] == "ValueError: oops"
    assert printed.count("File ") == 2  # its own two frames
    assert "runpy" not in printed


def test_script_that_does_not_compile(tmp_path, capsys):
    assert run.run_script(script(tmp_path, "def f(:\n"), []) == 1
    printed = capsys.readouterr().err
    assert "SyntaxError" in printed
    assert "runpy" not in printed


def test_error_of_ours_in_a_script(tmp_path, capsys):
    """It is the script's: with its place, not as a message of the command."""
    path = script(tmp_path, "from boughs import InvalidRequest\nraise InvalidRequest('wrong')\n")
    assert run.run_script(path, []) == 1
    assert "line 2" in capsys.readouterr().err


def test_interrupt_in_a_script(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run.run_script(script(tmp_path, "raise KeyboardInterrupt"), [])


def test_missing_script():
    args = argparse.Namespace(script="/no/such")
    with pytest.raises(NotFound):
        run.run(args)
