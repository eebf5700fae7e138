"""`boughs tree`: a server's radix tree, drawn in the terminal.

This module knows how a snapshot looks, and nothing of how the tree works.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from . import output

if TYPE_CHECKING:
    from rich.tree import Tree

_EXAMPLES = """\
examples:
  boughs tree http://127.0.0.1:30000
  boughs tree http://127.0.0.1:30000 --max-segments 20 --max-tokens 64

A line is a segment: its text, how many tokens and pages, how many requests and leases run through
it now, how many requests have hit it, and how many uses ago the last one was.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the CLI."""
    parser = subparsers.add_parser(
        "tree",
        help="draw what a server has cached",
        description="Draw the radix tree of a running server: which prefixes are cached.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("url", metavar="URL", help="of a running `boughs serve`")
    parser.add_argument(
        "--api-key", metavar="KEY", help="the server's key; default $BOUGHS_API_KEY"
    )
    parser.add_argument(
        "--max-segments", type=int, default=200, metavar="N", help="segments to show (default 200)"
    )
    parser.add_argument(
        "--max-tokens",
        type=int,
        default=24,
        metavar="N",
        help="tokens to show of each (default 24)",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Errors are raised as what they are."""
    from boughs.lang import loop
    from boughs.lang.endpoint import RuntimeEndpoint

    key = args.api_key or os.environ.get("BOUGHS_API_KEY") or None
    with closing(RuntimeEndpoint(args.url, api_key=key)) as endpoint:
        shown = loop.run(endpoint.tree(args.max_segments, args.max_tokens))
    if isinstance(sys.stdout, io.TextIOWrapper):  # one of ASCII has no lines and no ellipsis
        sys.stdout.reconfigure(errors="backslashreplace")
    output.console(highlight=False).print(draw(shown))
    return 0


def draw(shown: dict[str, Any]) -> Tree:
    """A snapshot (`Front.tree`) as rich's tree, a branch a namespace."""
    from rich.text import Text
    from rich.tree import Tree

    cache = shown["cache"]
    top = Tree(
        Text(
            f"{cache['tokens']:,} tokens in {_count(cache['nodes'], 'segment')}, "
            f"{cache['cached']:,} of {cache['pages']:,} pages of {shown['page_size']}: "
            f"{cache['evictable']:,} evictable, {cache['leased']:,} leased, "
            f"{cache['private']:,} private, {cache['free']:,} free"
        )
    )
    roots: dict[str, Tree] = {"": top}
    branches: list[Tree] = []
    for segment in shown["segments"]:
        if segment["parent"] is not None:
            above = branches[segment["parent"]]
        else:
            name = segment["namespace"]
            if name not in roots:
                roots[name] = top.add(Text(f"cache salt {name}…", style="italic"))
            above = roots[name]
        branches.append(above.add(_line(segment, shown["tick"])))
    if shown["omitted"]:
        top.add(Text(f"{_count(shown['omitted'], 'more segment')} not shown", style="dim"))
    return top


def _line(segment: dict[str, Any], tick: int) -> Any:
    """One segment: its text as a Python string, then its figures."""
    from rich.text import Text

    length = segment["end"] - segment["start"]
    cut = "…" if len(segment["tokens"]) < length else ""
    line = Text(f"{segment['text']!r}{cut}", style="bold" if segment["locks"] else "")
    figures = [_count(length, "token"), _count(segment["num_pages"], "page")]
    if segment["locks"]:
        figures.append(f"{segment['locks']} running")
    if segment["leases"]:
        figures.append(_count(segment["leases"], "lease"))
    figures += [_count(segment["hits"], "hit"), f"used {tick - segment['last_use']} ago"]
    return line.append(f"  {', '.join(figures)}", style="dim")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
