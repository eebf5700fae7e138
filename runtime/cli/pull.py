"""`boughs pull`: get a model before it is needed.

This module knows how to show what the store does, and nothing of how it does it.
"""

from __future__ import annotations

import argparse

_EXAMPLES = """\
examples:
  boughs pull                              list the models that have a short name
  boughs pull smollm2-135m                 get the demo model (89 MiB)
  boughs pull Qwen/Qwen2.5-0.5B-Instruct   get a model of the Hugging Face hub

Models are kept in $BOUGHS_HOME, by default `boughs` in your cache folder.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the CLI."""
    parser = subparsers.add_parser(
        "pull",
        help="get a model",
        description="Get a model and print its folder. Nothing is downloaded twice.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="NAME",
        help="an alias or a hub name; without it, the aliases are listed",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Errors are raised as what they are."""
    from boughs.runtime.models import store
    from boughs.runtime.models.progress import bar

    if args.model is None:
        _list()
        return 0
    with bar() as progress:
        folder = store.resolve(args.model, progress=progress)
    print(folder)
    return 0


def _list() -> None:
    """Print the aliases, marking those whose models are there."""
    from boughs.runtime.models import store

    there = set(store.pulled())
    for name, alias in store.ALIASES.items():
        state = "pulled" if name in there else f"{alias.size / (1 << 20):.0f} MiB to download"
        print(f"{name}  {alias.what} ({state})")
