"""The command `boughs`. One module a command, which imports what is heavy only when it runs.

This module knows which commands there are, and how failures become exit codes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from boughs import __version__
from boughs.lang.errors import BoughsError

from . import chat, output, pull, run, serve, tree

COMMANDS = (pull, serve, run, chat, tree)

_DESCRIPTION = """\
Structured-generation programs, and a runtime that computes no prefix twice.
"""

_EXAMPLES = """\
examples:
  boughs pull smollm2-135m
  boughs run examples/multi_turn.py
  boughs serve smollm2-135m --port 30000
  boughs chat --endpoint http://127.0.0.1:30000
  boughs tree http://127.0.0.1:30000

`boughs COMMAND --help` tells more.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Args:
        argv: Without the program's name; default the process's own.

    Returns:
        The exit status: 0, 1 after an error, 130 after Ctrl-C, 141 where the reader of the output
        has gone, or what a script gave.

    Raises:
        SystemExit: 2 for a wrong command line, 0 for `--help` and `--version`.
    """
    try:
        try:
            return _run(sys.argv[1:] if argv is None else list(argv))
        finally:
            output.flush()
    except OSError as error:
        if not output.is_lost(error):
            raise
        return output.give_up(error)


def _run(argv: list[str]) -> int:
    try:
        args = _parse(argv)
        status: int = args.func(args)
        return status
    except BoughsError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and output.is_lost(cause):  # in a program
            raise cause from None
        print(f"boughs: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parse(argv: list[str]) -> argparse.Namespace:
    """The command's arguments; what follows `--` is a script's, in `script_args`."""
    parser = argparse.ArgumentParser(
        prog="boughs",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"boughs {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(subparsers)
    ours, theirs = argv, None
    if "--" in argv:
        at = argv.index("--")
        ours, theirs = argv[:at], argv[at + 1 :]
    args, unknown = parser.parse_known_args(ours)
    if unknown:
        hint = "; a script's own go behind --" if "script_args" in args else ""
        vars(args).get("parser", parser).error(f"unknown: {' '.join(unknown)}{hint}")
    if theirs is not None:
        if "script_args" not in args:
            parser.error("nothing may follow -- here")
        args.script_args = theirs
    return args
