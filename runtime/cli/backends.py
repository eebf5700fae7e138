"""Where a command's programs run: a model in this process, or a server.

This module knows flags, and no programs.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager

from boughs.lang.backend import Backend, Host
from boughs.lang.errors import InvalidRequest
from boughs.runtime.config import EngineConfig

from .flags import add_flags, given_flags, usage_error

DEFAULT_MODEL = "smollm2-135m"
"""The model of a command that was told none."""


def add_backend_flags(parser: argparse.ArgumentParser) -> None:
    """Add `--endpoint` and `--api-key`, and the engine's flags. The model is the command's."""
    group = parser.add_argument_group("a server in place of a model here")
    group.add_argument("--endpoint", metavar="URL", help="of a running `boughs serve`")
    group.add_argument("--api-key", metavar="KEY", help="the server's key; default $BOUGHS_API_KEY")
    add_flags(parser, EngineConfig, "engine", skip={"model_path"})


@contextmanager
def open_backend(args: argparse.Namespace, model: str | None) -> Iterator[Backend | Host]:
    """What programs run on in this block; an engine is ended behind it.

    Args:
        args: Parsed by a parser with `add_backend_flags` and a `parser` default.
        model: What the user called it; None is the default model.

    Raises:
        SystemExit: 2, flags that contradict each other or are out of range.
        BoughsError: There is no such model or server, or it does not start.
    """
    given = given_flags(args, EngineConfig)
    given.pop("model_path", None)
    if args.endpoint is not None:
        for name in given:
            args.parser.error(f"--{name.replace('_', '-')} says nothing about an --endpoint")
        if model is not None:
            args.parser.error("give a model or an --endpoint, not both")
        key = args.api_key or os.environ.get("BOUGHS_API_KEY") or None
        from boughs.lang.endpoint import RuntimeEndpoint

        with closing(RuntimeEndpoint(args.endpoint, api_key=key)) as endpoint:
            yield endpoint
        return
    if args.api_key is not None:
        args.parser.error("--api-key needs --endpoint")
    try:
        EngineConfig(model_path=model or DEFAULT_MODEL, **given)
    except InvalidRequest as error:
        usage_error(args.parser, error)
    from boughs.runtime.engine import Engine
    from boughs.runtime.models.progress import bar
    from boughs.runtime.models.store import resolve

    with bar() as progress:
        folder = resolve(model or DEFAULT_MODEL, progress=progress)
    with Engine(model_path=str(folder), **given) as engine:
        yield engine
