"""How a server is set up; the flags of `boughs serve` are made from these fields.

This module knows no engine.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from boughs.lang.errors import InvalidRequest
from boughs.runtime.config import parse_bytes


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one HTTP server."""

    host: Annotated[str, Meta(description="address to listen on")] = "127.0.0.1"
    port: Annotated[int, Meta(description="port to listen on; 0 takes a free one")] = 30000
    api_key: Annotated[
        str | None,
        Meta(
            description="clients must send it as `Authorization: Bearer KEY`; default "
            "$BOUGHS_API_KEY, which no list of processes shows"
        ),
    ] = None
    served_model_name: Annotated[
        str | None, Meta(description="what OpenAI clients call the model; default as given")
    ] = None
    max_body_size: Annotated[str, Meta(description="largest request body, as 512K or 64M")] = "16M"
    cors_origins: Annotated[
        tuple[str, ...],
        Meta(description="origin whose web pages may call the server, or * for all; repeatable"),
    ] = ()
    keep_alive: Annotated[
        float,
        Meta(description="seconds without news after which a stream gets a comment line"),
    ] = 10.0
    client_timeout: Annotated[
        float,
        Meta(description="seconds that a client may take to send a body or to read what it got"),
    ] = 120.0
    shutdown_timeout: Annotated[
        float, Meta(description="seconds that running requests get when the server is stopped")
    ] = 30.0

    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="what to log to stderr; from info on, every request"),
    ] = "warning"

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise InvalidRequest(f"port must be from 0 to 65535, got {self.port}", "port")
        for name in ("keep_alive", "client_timeout", "shutdown_timeout"):
            if not 0 < getattr(self, name) < 1e6:
                raise InvalidRequest(
                    f"{name} must be above 0 and under a million seconds, "
                    f"got {getattr(self, name)}",
                    name,
                )
        if self.api_key == "":
            raise InvalidRequest("api_key must not be empty", "api_key")
        parse_bytes(self.max_body_size, "max_body_size")
