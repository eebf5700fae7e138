"""How an engine is set up: one definition, from which the CLI's flags and the docs are made.

Every field carries its help text. `EngineConfig` is plain data: the front hands it to the core
process as JSON. This module knows no model and no request.
"""

from __future__ import annotations

import math
import os
import re
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from boughs.lang.errors import InvalidRequest, Unsupported


def _help(text: str) -> Meta:
    return Meta(description=text)


Quantize = Literal["auto", "none", "int8", "int4"]
"""How weights are held; `runtime.models.layers` says what each means."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one engine: a model, its cache and its scheduler."""

    model_path: Annotated[str, _help("an alias, a folder, a GGUF file or a hub name")]
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        _help("where the model runs: on an NVIDIA GPU if there is one, else on the CPU"),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        _help("number format of weights and activations: float32 on the CPU, bfloat16 on a GPU"),
    ] = "auto"
    kv_cache_dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "int8", "fp8_e4m3", "fp8_e5m2"],
        _help(
            "number format of the KV cache: that of the activations; or bfloat16 and int8, which "
            "hold twice and almost four times the tokens, on the CPU; or float8 on a GPU"
        ),
    ] = "auto"
    quantize: Annotated[
        Quantize,
        _help("number format of weights: as the file has them, float32, int8 or int4 by groups"),
    ] = "auto"
    page_size: Annotated[int, _help("tokens per page of the KV cache")] = 16
    kv_memory: Annotated[
        str | None,
        _help(
            "memory for the KV cache, as 512M or 4G; default 40 % of what is free, at most 8G, "
            "or 85 % of what the weights leave of a GPU"
        ),
    ] = None
    context_length: Annotated[
        int | None, _help("longest prompt and output together, in tokens; default the model's own")
    ] = None
    threads: Annotated[
        int | None, _help("cores to compute on; default those that this process may use")
    ] = None
    max_batched_tokens: Annotated[
        int | None, _help("tokens that one step may compute; default 256, on a GPU 8192")
    ] = None
    max_running_requests: Annotated[int, _help("requests that decode at once")] = 256
    max_queued_requests: Annotated[
        int, _help("requests that may wait; more are refused with 429")
    ] = 4096
    schedule_policy: Annotated[
        Literal["lpm", "dfs", "fcfs", "priority"],
        _help(
            "order of waiting requests of one priority: longest cached prefix first, depth first "
            "through the tree, or first come first served; with `priority` running requests give "
            "way to those of higher priority"
        ),
    ] = "lpm"
    schedule_conservativeness: Annotated[
        float,
        _help(
            "share of the tokens that running requests may yet generate for which an admission "
            "leaves room; higher retracts less and runs fewer at once"
        ),
    ] = 0.0
    radix_eviction_policy: Annotated[
        Literal["lru", "lfu", "fifo", "priority"],
        _help(
            "which cached prefix goes first when pages run out: the one used longest ago, least "
            "often, stored first, or of the least priority"
        ),
    ] = "lru"
    attention_backend: Annotated[
        Literal["auto", "flashinfer", "cpu", "reference"],
        _help("kernels for attention; auto is flashinfer on a GPU, cpu elsewhere"),
    ] = "auto"
    disable_cuda_graph: Annotated[bool, _help("launch the kernels of a decode step one by one")] = (
        False
    )
    disable_cascade: Annotated[
        bool,
        _help(
            "read a prefix that requests share once for each of them, so that attention does not "
            "depend on the batch, to the last bit"
        ),
    ] = False
    disable_radix_cache: Annotated[bool, _help("keep no prefix after its request has ended")] = (
        False
    )
    disable_jump_forward: Annotated[
        bool, _help("take a step for every token that a grammar forces")
    ] = False
    grammar_timeout: Annotated[
        float, _help("seconds of a processor that compiling one grammar may take")
    ] = 5.0
    grammar_memory: Annotated[
        str, _help("memory that compiling one grammar may take, as 512M or 4G")
    ] = "1G"
    tp_size: Annotated[int, _help("devices that share a model; only 1, for now")] = 1
    check_invariants: Annotated[
        bool, _help("for debugging: check every page and queue after each step (slow)")
    ] = False

    def __post_init__(self) -> None:
        for name in (
            "page_size",
            "max_running_requests",
            "max_queued_requests",
            "tp_size",
        ):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {getattr(self, name)}", name)
        for name in ("context_length", "threads", "max_batched_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidRequest(f"{name} must be at least 1, got {value}", name)
        if self.tp_size > 1:
            raise Unsupported(
                f"tp_size: a model runs on one device; sharing it among {self.tp_size} is not "
                "supported, leave it at 1",
                "tp_size",
            )
        if not 0 <= self.schedule_conservativeness <= 1:
            raise InvalidRequest(
                "schedule_conservativeness must be from 0 to 1, got "
                f"{self.schedule_conservativeness}",
                "schedule_conservativeness",
            )
        if not 0 < self.grammar_timeout < math.inf:
            raise InvalidRequest(
                f"grammar_timeout must be above 0 and finite, got {self.grammar_timeout}",
                "grammar_timeout",
            )
        parse_bytes(self.grammar_memory, "grammar_memory")
        if self.kv_memory is not None:
            parse_bytes(self.kv_memory)

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> EngineConfig:
        """The config that keyword arguments of a user describe.

        Raises:
            InvalidRequest: An unknown name, a wrong type or a value out of range; names it.
        """
        for name in kwargs:
            if name not in cls.__struct_fields__:
                known = ", ".join(cls.__struct_fields__)
                raise InvalidRequest(f"{name}: unknown engine argument; there are {known}", name)
        plain = {k: os.fspath(v) if isinstance(v, os.PathLike) else v for k, v in kwargs.items()}
        try:
            return msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            cause = error.__cause__
            if isinstance(cause, InvalidRequest):
                raise cause from None
            what, _, place = str(error).partition(" - at `$.")
            field = place.rstrip("`") or "model_path"
            kind = get_type_hints(cls).get(field)
            if get_origin(kind) is Literal:
                what = f"must be one of {', '.join(get_args(kind))}, got {plain[field]!r:.40}"
            raise InvalidRequest(f"{field}: {what[0].lower()}{what[1:]}", field) from None


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_bytes(text: str, name: str = "kv_memory") -> int:
    """The bytes that `text` (`512M`, `4GiB`, `1073741824`), given as the setting `name`, are."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size < 1:
        raise InvalidRequest(f"{name} must be a size like 512M or 4G, got {text!r}", name)
    return size
