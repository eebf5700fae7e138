"""The engine in this process, with SGLang's Python interface.

    from boughs import Engine

    with Engine(model_path="smollm2-135m") as engine:
        print(engine.generate("Once upon a time", {"max_new_tokens": 16})["text"])

Its front runs on `boughs.lang.loop`'s event loop, its core in a process of its own. As a backend of
programs it is known by `endpoint`. This module knows neither programs nor HTTP.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from boughs.lang import loop
from boughs.lang.errors import InvalidRequest
from boughs.lang.lease import Lease
from boughs.lang.requests import PinRequest, Prompt, ScoreRequest
from boughs.lang.results import Scores
from boughs.runtime.config import EngineConfig
from boughs.runtime.front.batch import Batch, Json
from boughs.runtime.front.encode_batch import EncodeBatch
from boughs.runtime.front.front import Front
from boughs.runtime.front.link import process_link, thread_link
from boughs.runtime.models.progress import bar
from boughs.runtime.models.store import resolve

T = TypeVar("T")


class Engine:
    """A model that runs here.

    Args:
        model_path: An alias, a folder, a GGUF file or a hub name.
        in_process: Run the core in a thread of this process, for debugging.
        config: Any setting of `boughs serve --help` that is the engine's, with underscores:
            `kv_memory="4G"`, `context_length=4096`, `threads=2`, `page_size=16` …

    Attributes:
        endpoint: The backend that programs run on.
        model_path: The resolved folder.

    Raises:
        InvalidRequest: A wrong argument; names it.
        NotFound: No model is called so.
        BoughsError: The core could not start. No process is left.
    """

    def __init__(self, model_path: str, *, in_process: bool = False, **config: Any) -> None:
        settings = EngineConfig.from_kwargs(model_path=model_path, **config)
        with bar() as progress:
            self.model_path = str(resolve(settings.model_path, progress=progress))
        settings = msgspec.structs.replace(settings, model_path=self.model_path)
        self.endpoint = Front(settings, thread_link if in_process else process_link)
        self._owner = os.getpid()
        self._closed = False
        atexit.register(self.shutdown)
        try:
            loop.run(self.endpoint.start())
        except BaseException:
            self.shutdown()
            raise

    # ---- generate ----

    def generate(  # noqa: PLR0917 -- SGLang's signature
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        return_logprob: bool | list[bool] = False,
        logprob_start_len: int | list[int] = -1,
        top_logprobs_num: int | list[int] = 0,
        stream: bool = False,
        rid: str | list[str] | None = None,
        token_ids_logprob: list[int] | list[list[int] | None] | None = None,
        heal: bool | list[bool] = False,
    ) -> Json | list[Json] | Iterator[Json]:
        """Continue one prompt, or each of a list.

        Args:
            prompt: Text, or a list of texts. Special tokens in it are parsed.
            sampling_params: Fields of `SamplingParams`; a list has one for each prompt.
            input_ids: Token ids in place of `prompt`.
            return_logprob: Whether `meta_info` holds logprobs: of the model's own distribution,
                before temperature, penalties, bias and masks; -9999.0 is minus infinity.
            logprob_start_len: Prompt tokens from this position on get logprobs too; -1 is none.
            top_logprobs_num: This many most likely tokens at each position.
            stream: Give an iterator over answers that grow (`text` and `output_ids` are all so
                far); with a list or `n > 1`, `index` says which it is.
            rid: Ids to abort the requests by.
            token_ids_logprob: These tokens' logprobs at each position; a list of lists has one for
                each prompt.
            heal: Whether the text may begin with the rest of the token in which the prompt ends.

        Returns:
            A dict with `text, output_ids, meta_info`; a list of them for a list or `n > 1`.

        Raises:
            InvalidRequest: A wrong argument; names it.
            BoughsError: The first request that failed; the others are aborted.
        """
        batch = Batch.read(
            prompt=prompt,
            sampling_params=sampling_params,
            input_ids=input_ids,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            token_ids_logprob=token_ids_logprob,
            rid=rid,
            heal=heal,
        )
        if stream:
            return _iterate(batch.stream(self.endpoint))
        return loop.run(batch.run(self.endpoint))

    async def async_generate(  # noqa: PLR0917 -- SGLang's signature
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        return_logprob: bool | list[bool] = False,
        logprob_start_len: int | list[int] = -1,
        top_logprobs_num: int | list[int] = 0,
        stream: bool = False,
        rid: str | list[str] | None = None,
        token_ids_logprob: list[int] | list[list[int] | None] | None = None,
        heal: bool | list[bool] = False,
    ) -> Json | list[Json] | AsyncIterator[Json]:
        """`generate`, to be awaited on any event loop; with `stream` it gives an async iterator."""
        batch = Batch.read(
            prompt=prompt,
            sampling_params=sampling_params,
            input_ids=input_ids,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=top_logprobs_num,
            token_ids_logprob=token_ids_logprob,
            rid=rid,
            heal=heal,
        )
        if stream:
            return _iterate_async(batch.stream(self.endpoint))
        return await _elsewhere(batch.run(self.endpoint))

    def score(
        self, prompt: Prompt, choices: Sequence[str], *, unconditional: bool = False
    ) -> Scores:
        """The logprobs of each choice as a continuation of `prompt`.

        Args:
            prompt: Text, token ids or segments.
            choices: Texts.
            unconditional: Whether to score each choice without the prompt too.

        Raises:
            InvalidRequest: A wrong argument; names it.
        """
        listed = isinstance(choices, Iterable) and not isinstance(choices, str)
        given = list(choices) if listed else choices
        request = ScoreRequest(prompt=prompt, choices=given, unconditional=unconditional)  # type: ignore[arg-type]
        return loop.run(self.endpoint.score(request))

    def encode(
        self,
        prompt: str | list[str] | None = None,
        *,
        input_ids: list[int] | list[list[int]] | None = None,
        pooling: Literal["last", "mean"] = "last",
        normalize: bool = True,
        rid: str | list[str] | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Json | list[Json]:
        """Turn one prompt, or each of a list, into a vector of the model's hidden states.

        Args:
            prompt: Text, or a list of texts. Special tokens in it are parsed.
            input_ids: Token ids in place of `prompt`.
            pooling: `last` takes the last token's hidden state after the model's last norm; `mean`
                the mean of all tokens', which are then all computed, cached or not.
            normalize: Whether vectors are scaled to length 1.
            rid: Ids to abort the requests by.
            cache_salt: Requests of different salts share no cached prefix.
            priority: Higher goes first.
            timeout: Seconds after which a request fails.

        Returns:
            A dict with `embedding` (a list of floats) and `meta_info`; a list of them for a list.

        Raises:
            InvalidRequest: A wrong argument; names it.
            BoughsError: The first request that failed; the others are aborted.
        """
        batch = EncodeBatch(
            prompt,
            input_ids,
            rid,
            pooling=pooling,
            normalize=normalize,
            cache_salt=cache_salt,
            priority=priority,
            timeout=timeout,
        )
        return loop.run(batch.run(self.endpoint))

    async def async_encode(
        self,
        prompt: str | list[str] | None = None,
        *,
        input_ids: list[int] | list[list[int]] | None = None,
        pooling: Literal["last", "mean"] = "last",
        normalize: bool = True,
        rid: str | list[str] | None = None,
        cache_salt: str | None = None,
        priority: int = 0,
        timeout: float | None = None,  # noqa: ASYNC109 - the engine keeps it
    ) -> Json | list[Json]:
        """`encode`, to be awaited on any event loop."""
        batch = EncodeBatch(
            prompt,
            input_ids,
            rid,
            pooling=pooling,
            normalize=normalize,
            cache_salt=cache_salt,
            priority=priority,
            timeout=timeout,
        )
        return await _elsewhere(batch.run(self.endpoint))

    def abort_request(self, rid: str = "", abort_all: bool = False) -> None:
        """End the request with exactly this id, or all."""
        if not isinstance(rid, str):
            raise InvalidRequest(f"rid: expected a string, got {rid!r:.40}", "rid")

        async def abort() -> None:
            if abort_all:
                self.endpoint.abort_all()
            else:
                self.endpoint.abort(rid)

        loop.run(abort())

    # ---- the engine ----

    def flush_cache(self, timeout: float = 0.0) -> None:
        """Forget every cached prefix, and end all leases.

        Args:
            timeout: Seconds to wait for what runs; requests that come meanwhile wait, too.

        Raises:
            InvalidRequest: Requests run, and none was to be waited for.
            RequestTimeout: They ran on after `timeout`; nothing was forgotten.
        """
        loop.run(self.endpoint.flush_cache(timeout))

    @contextmanager
    def pin(
        self, prompt: Prompt, seconds: float = 600.0, *, cache_salt: str | None = None
    ) -> Iterator[int]:
        """Keep a prompt cached in this block, and for so many seconds at most.

        A lease never changes an answer and never makes a request wait: where the pages are needed
        it is broken, the one with the oldest deadline first.

        Args:
            prompt: Text, token ids or segments; computed if it is not cached.
            seconds: The deadline.
            cache_salt: As of the requests that are to find it.

        Yields:
            How many tokens are kept.
        """
        request = PinRequest(prompt=prompt, seconds=seconds, cache_salt=cache_salt)
        lease = loop.run(Lease.take(self.endpoint.pin(request)))
        try:
            yield lease.state.tokens
        finally:
            loop.run(lease.released())

    def tree(self, max_segments: int = 1000, max_tokens: int = 32) -> Json:
        """The radix tree as plain data; see `boughs.runtime.front.front.Front.tree`."""
        return loop.run(self.endpoint.tree(max_segments, max_tokens))

    def get_server_info(self) -> Json:
        """Settings, limits and counters; `model_path` is the resolved folder."""
        return loop.run(self.endpoint.get_server_info())

    def stats(self) -> Json:
        """Every counter of core and front."""
        return loop.run(self.endpoint.stats())

    def shutdown(self) -> None:
        """End the core process, within a bound. What still runs fails. May be called twice."""
        if self._closed or os.getpid() != self._owner:  # a forked child does not own the core
            return
        self._closed = True
        atexit.unregister(self.shutdown)
        loop.run(self.endpoint.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()


async def _elsewhere(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that runs on Boughs's own loop."""
    return await asyncio.wrap_future(loop.submit(coroutine))


async def _next(items: AsyncIterator[Json]) -> Json | None:
    return await anext(items, None)


async def _close(items: AsyncIterator[Json]) -> None:
    await items.aclose()  # type: ignore[attr-defined]


def _iterate(items: AsyncIterator[Json]) -> Iterator[Json]:
    """The items of an iterator that runs on Boughs's own loop."""
    try:
        while (item := loop.run(_next(items))) is not None:
            yield item
    finally:
        loop.run(_close(items))


async def _iterate_async(items: AsyncIterator[Json]) -> AsyncIterator[Json]:
    try:
        while (item := await _elsewhere(_next(items))) is not None:
            yield item
    finally:
        await _elsewhere(_close(items))
