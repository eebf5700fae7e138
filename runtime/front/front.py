"""The engine's front: the backend that runs the requests of programs on a core.

It owns text: it validates, tokenizes, finds stops and makes text of tokens again. All methods run
on `boughs.lang.loop`'s event loop. This module knows neither programs nor HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import msgspec

from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.requests import EncodeRequest, GenerateRequest, PinRequest, ScoreRequest
from boughs.lang.results import Chunk, Embedding, LeaseState, Scores, collect
from boughs.lang.sampling import SamplingParams
from boughs.runtime.beams import beam_limit
from boughs.runtime.config import EngineConfig
from boughs.runtime.messages import Limits

from .chat import ChatTemplate
from .choices import answer, submissions
from .embed import embed
from .identity import identity
from .leases import keep
from .link import Link, process_link
from .plan import Planner, text_size
from .registry import Registry
from .score import score
from .supervisor import Supervisor
from .tokenizer import Tokenizer

T = TypeVar("T")

HEALTH_SECONDS = 20.0
"""A core that says nothing for so long, asked for a sign of life, is stuck."""

LONG_TEXT = 1 << 15
"""Characters that take about 20 ms to tokenize."""

MAX_FLUSH_SECONDS = 3600.0
"""The longest that a flush may hold requests up."""

MAX_TREE_SEGMENTS, MAX_TREE_TOKENS = 10_000, 256
"""The largest picture of the tree."""

WORD_SIZE = 64
"""Characters that take about as long to tokenize as one bad word, three times."""


class Front:
    """Implements `boughs.lang.backend.Backend` on a core.

    Args:
        config: The engine's settings; `model_path` is a resolved folder.
        connect: Makes the link to a core.

    Attributes:
        config: As given.
        model_path: The model's folder.
        tokenizer: Its tokenizer; set by `start`.
        chat: Its chat template; set by `start`.
    """

    tokenizer: Tokenizer
    chat: ChatTemplate

    def __init__(
        self, config: EngineConfig, connect: Callable[[EngineConfig], Link] = process_link
    ) -> None:
        self.config = config
        self.model_path = config.model_path
        self._identity: str | None = None
        self._core = Supervisor(lambda: connect(config))
        self._requests = Registry(
            self._core, config.max_running_requests + config.max_queued_requests
        )

    async def start(self) -> None:
        """Start the core and wait until it is ready.

        Raises:
            BoughsError: What the core reports (a bad model, no memory), or how it died.
            NotFound: The model has no tokenizer.
        """
        # Not beside the core's start: a core in this process imports transformers as well, whose
        # lazy module loses names when two threads import from it at once.
        self.tokenizer = await asyncio.to_thread(Tokenizer.load, self.model_path)
        self.chat = ChatTemplate(self.tokenizer)
        try:
            await self._core.start()
        except BaseException:
            await self._core.close()
            raise

    @property
    def limits(self) -> Limits:
        """What the core can serve: the one that runs now."""
        return self._core.limits

    @property
    def _planner(self) -> Planner:
        return Planner(self.tokenizer, self.chat, self.limits)

    async def close(self) -> None:
        """End the core; what still runs fails with `RequestAborted`. May be called twice."""
        await self._core.close()

    # ---- requests ----

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """The chunks of the answer. Closing the iterator before its end aborts the request.

        Raises:
            InvalidRequest: Names the field. Nothing has run.
            Overloaded: Too many requests wait.
            RequestTimeout: `timeout` passed; the request is aborted.
            RequestAborted: The engine was shut down.
            EngineDied: The core died, and another did not help.
        """
        params = request.params
        with self._requests.request(request.rid, submissions(params), params.timeout) as (rid, run):
            size = text_size(request.prompt) + WORD_SIZE * len(params.bad_words)
            asked = await _off_loop(size, self._planner.plan, request, rid)
            if params.beam_width is not None:
                beam_limit(params.beam_width, len(asked.prompt_ids), self.limits, self.config)
            async for chunk in answer(self.tokenizer, asked, run):
                yield chunk

    async def score(self, request: ScoreRequest) -> Scores:
        """The logprobs of each choice as a continuation of the prompt.

        Raises:
            InvalidRequest: There is no choice, or what `generate` refuses.
            Overloaded, RequestAborted, EngineDied: As `generate`.
        """
        request.check()
        count = len(request.choices) * (2 if request.unconditional else 1)
        with self._requests.request(request.rid, count) as (_, run):
            size = text_size(request.prompt) * len(request.choices)
            plan = await _off_loop(size, self._planner.plan_scores, request)
            return await score(run, plan, request)

    async def encode(self, request: EncodeRequest) -> Embedding:
        """The prompt as a vector: its last hidden state, or the mean of all.

        Raises:
            InvalidRequest: Names the field. Nothing has run.
            Overloaded, RequestTimeout, RequestAborted, EngineDied: As `generate`.
        """
        request.check()
        with self._requests.request(request.rid, 1, request.timeout) as (rid, run):
            size = text_size(request.prompt)
            ids = await _off_loop(size, self._planner.plan_encoding, request)
            return await embed(run, rid, ids, request)

    async def pin(self, request: PinRequest) -> AsyncIterator[LeaseState]:
        """Keep a prompt cached: computes it, and holds a lease on it as long as it is iterated.

        Raises:
            InvalidRequest: Names the field.
            Unsupported: The engine keeps no prefixes.
            Overloaded, RequestAborted, EngineDied: As `generate`.
        """
        if self.config.disable_radix_cache:
            raise Unsupported("pin: the engine runs with disable_radix_cache and keeps no prefix")
        request.check()
        prefill = GenerateRequest(
            prompt=request.prompt,
            params=SamplingParams(
                max_new_tokens=0, priority=request.priority, cache_salt=request.cache_salt
            ),
        )
        planned = await _off_loop(text_size(request.prompt), self._planner.plan, prefill, "")
        prefill.prompt = planned.prompt_ids

        async def compute() -> None:
            await collect(self.generate(prefill))

        states = keep(
            self._core.leases,
            self._core.call,
            compute,
            ids=planned.prompt_ids,
            namespace=request.cache_salt or "",
            seconds=request.seconds,
        )
        async with contextlib.aclosing(states):
            async for state in states:
                yield state

    def abort(self, rid: str) -> bool:
        """End the request with exactly this id; whether it ran.

        Its iterator gives a last chunk for each choice, with `abort` as the reason.
        """
        return self._requests.abort(rid)

    def abort_all(self) -> int:
        """End every request; how many ran."""
        return self._requests.abort_all()

    # ---- the engine ----

    async def flush_cache(self, seconds: float = 0.0) -> None:
        """Forget every cached prefix, and end all leases.

        Args:
            seconds: How long to wait for what runs; requests that come meanwhile wait, too.

        Raises:
            InvalidRequest: Requests run, and none was to be waited for.
            RequestTimeout: They ran on after so many seconds; nothing was forgotten.
        """
        if not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_FLUSH_SECONDS:
            raise InvalidRequest(
                f"timeout must be from 0 to {MAX_FLUSH_SECONDS:g}, got {seconds!r:.40}", "timeout"
            )
        await self._core.call("flush", {"wait": seconds}, seconds)

    async def tree(self, max_segments: int = 1000, max_tokens: int = 32) -> dict[str, Any]:
        """The radix tree as plain data: `boughs.radix.take_snapshot`, with each segment's text.

        Args:
            max_segments: Those nearest to the beginning are shown.
            max_tokens: Tokens and pages shown of each.
        """
        for name, value, most in (
            ("max_segments", max_segments, MAX_TREE_SEGMENTS),
            ("max_tokens", max_tokens, MAX_TREE_TOKENS),
        ):
            if not isinstance(value, int) or not 0 <= value <= most:
                raise InvalidRequest(
                    f"{name} must be a whole number from 0 to {most}, got {value!r:.40}", name
                )
        shown: dict[str, Any] = await self._core.call(
            "snapshot", {"max_segments": max_segments, "max_tokens": max_tokens}
        )
        for segment in shown["segments"]:
            raw = b"".join(map(self.tokenizer.token_bytes, segment["tokens"]))
            segment["text"] = raw.decode("utf-8", "replace")
        return shown

    async def stats(self) -> dict[str, Any]:
        """Every counter of core and front."""
        core: dict[str, Any] = await self._core.call("stats")
        return {
            **core,
            **self._requests.stats(),
            "in_flight": self._core.in_flight,
            "restarts": self._core.restarts,
        }

    async def check(self) -> None:
        """Have the core check its invariants."""
        await self._core.call("check")

    async def identity(self) -> str:
        """A digest of all that answers depend on beside the request: model, settings, versions."""
        if self._identity is None:
            self._identity = await asyncio.to_thread(identity, self.config, self.limits)
        return self._identity

    async def get_server_info(self) -> dict[str, Any]:
        """What the engine is (settings, limits) and how it does (`stats`)."""
        return {
            **msgspec.to_builtins(self.config),
            **msgspec.to_builtins(self.limits),
            "model_path": self.model_path,
            "dropped_reasoning": self.chat.dropped_reasoning,
            "stats": await self.stats(),
        }

    async def health(self, seconds: float = HEALTH_SECONDS) -> bool:
        """Whether the core is alive, ready and not stuck; says so at once.

        Args:
            seconds: A core that has said nothing for so long since this was asked first is stuck.
        """
        return self._core.is_well(seconds)


async def _off_loop(size: int, plan: Callable[..., T], *arguments: Any) -> T:
    """What `plan` gives; with much text in a thread, so that others are not held up meanwhile."""
    if size < LONG_TEXT:
        return plan(*arguments)
    return await asyncio.to_thread(plan, *arguments)
