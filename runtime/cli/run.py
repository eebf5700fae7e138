"""`boughs run`: a script whose programs have a backend.

This module knows how a script is run, and nothing of what it does.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from boughs.lang.backend import Backend, Host
from boughs.lang.current import global_config, set_default_backend
from boughs.lang.errors import NotFound

from . import output
from .backends import DEFAULT_MODEL, add_backend_flags, open_backend

_EXAMPLES = """\
examples:
  boughs run examples/multi_turn.py
  boughs run examples/few_shot.py --model smollm2-135m --kv-memory 2G
  boughs run examples/judge.py --endpoint http://127.0.0.1:30000
  boughs run script.py -- --an-argument-of the-script

The script is run as by `python`; programs that name no backend run on the one given here, which
is ended after the script. The exit status is the script's.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the CLI."""
    parser = subparsers.add_parser(
        "run",
        help="run a script of programs",
        description="Run a Python script whose programs run on a model here, or on a server.",
        usage="boughs run [options] SCRIPT [-- ARGUMENT ...]",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("script", metavar="SCRIPT", help="a Python file")
    parser.add_argument(
        "--model",
        help="an alias, a folder, a GGUF file or a hub name "
        f"(default {DEFAULT_MODEL}, where there is no --endpoint)",
    )
    add_backend_flags(parser)
    parser.set_defaults(func=run, parser=parser, script_args=[])


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Errors are raised as what they are."""
    script = Path(args.script)
    if not script.is_file():
        raise NotFound(f"there is no script {args.script}")
    with open_backend(args, args.model) as backend, _default(backend):
        return run_script(script, args.script_args)


def run_script(script: Path, arguments: list[str]) -> int:
    """Run a script as `python SCRIPT ARGUMENT…` would; its exit status.

    An error of the script is printed as Python prints it, from the script's own frames on.
    """
    before = sys.argv, sys.path[:]
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        return _status(end.code)
    except Exception as error:
        if isinstance(error, OSError) and output.is_lost(error):
            raise  # nobody takes what the script prints
        trace = _own_frames(error.__traceback__, str(script))
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    finally:
        sys.argv, sys.path[:] = before
        output.flush()
    return 0


@contextmanager
def _default(backend: Backend | Host) -> Iterator[None]:
    """Make it the default backend in this block."""
    before = global_config.default_backend
    set_default_backend(backend)
    try:
        yield
    finally:
        global_config.default_backend = before


def _status(code: object) -> int:
    """What `sys.exit(code)` means to whoever started the process."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def _own_frames(trace: TracebackType | None, script: str) -> TracebackType | None:
    """A traceback without the frames that led to the script."""
    while trace is not None and trace.tb_frame.f_code.co_filename != script:
        trace = trace.tb_next
    return trace
