"""`boughs serve`: a model behind HTTP.

This module knows flags; the server's life is in `boughs.runtime.server.run`.
"""

from __future__ import annotations

import argparse
import logging
import os

import msgspec

from boughs.lang.errors import InvalidRequest
from boughs.runtime.config import EngineConfig
from boughs.runtime.server.config import ServerConfig

from .flags import add_flags, read_flags, usage_error

_EXAMPLES = """\
examples:
  boughs serve smollm2-135m
  boughs serve smollm2-135m --port 0 --kv-memory 2G --api-key secret
  curl http://127.0.0.1:30000/generate -d '{"text": "Once", "sampling_params": {"max_tokens": 8}}'

It speaks SGLang's and OpenAI's protocols. The first Ctrl-C lets running requests finish, the
second ends at once.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the CLI."""
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP",
        description="Serve a model over HTTP until Ctrl-C or SIGTERM.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model_path", metavar="MODEL", help="an alias, a folder, a GGUF file or a hub name"
    )
    add_flags(parser, ServerConfig, "server")
    add_flags(parser, EngineConfig, "engine", skip={"model_path"})
    parser.set_defaults(func=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code. Errors are raised as what they are."""
    try:
        engine = read_flags(args, EngineConfig)
        server = read_flags(args, ServerConfig)
    except InvalidRequest as error:
        usage_error(args.parser, error)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("boughs").setLevel(server.log_level.upper())
    server = msgspec.structs.replace(
        server,
        api_key=server.api_key or os.environ.get("BOUGHS_API_KEY") or None,
        served_model_name=server.served_model_name or engine.model_path.rstrip("/"),
    )
    from boughs.runtime.server.run import open_socket, serve

    # The port is taken before the model is loaded, which can take minutes.
    sock = open_socket(server.host, server.port)
    with sock:
        from boughs.runtime.front.front import Front
        from boughs.runtime.models.progress import bar
        from boughs.runtime.models.store import resolve

        with bar() as progress:
            folder = resolve(engine.model_path, progress=progress)
        engine = msgspec.structs.replace(engine, model_path=str(folder))
        return serve(lambda: Front(engine), server, sock)
