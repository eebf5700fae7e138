"""An API's model as a backend: what is the same for all of them.

An `Api` turns a `Call` into `Piece`s of text; this module reads requests, refuses what the API
cannot do, does some of it here (stops, patterns, choices), and makes chunks. It knows no package.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from boughs.lang import loop
from boughs.lang.apis import messages
from boughs.lang.apis.answers import Call, Choice, Piece, Spent, whole
from boughs.lang.apis.asking import ask
from boughs.lang.apis.faults import fault
from boughs.lang.apis.matching import Trial
from boughs.lang.apis.speculation import Speculative
from boughs.lang.apis.stops import stopper
from boughs.lang.apis.supported import Features
from boughs.lang.backend import Backend
from boughs.lang.errors import (
    BackendError,
    BoughsError,
    InvalidRequest,
    RequestAborted,
    RequestTimeout,
    Unsupported,
)
from boughs.lang.requests import GenerateRequest, ScoreRequest
from boughs.lang.results import Chunk, Scores
from boughs.lang.segments import Segment

CLOSE_SECONDS = 2.0


class Api(Protocol):
    """An API behind its package."""

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    @property
    def model(self) -> str:
        """The model's name."""
        ...

    @property
    def place(self) -> str:
        """Where it is reached: a URL, or empty for the provider's own."""
        ...

    @property
    def features(self) -> Features:
        """What it can do."""
        ...

    def stream(self, call: Call) -> AsyncGenerator[Piece, None]:
        """The answer in pieces. Closing the generator closes the request."""
        ...

    async def score(self, prompt: str, choices: list[str]) -> Scores:
        """The logprobs of each choice, where `features.scores`."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class ApiModel:
    """A backend that is an API's model.

    Args:
        api: The API.
        tries: How often it is asked at most until an answer matches a pattern, or is a choice.
    """

    def __init__(self, api: Api, tries: int = 5) -> None:
        if not isinstance(tries, int) or isinstance(tries, bool) or tries < 1:
            raise InvalidRequest(f"tries: expected at least 1, got {tries!r:.40}", "tries")
        self._api = api
        self._tries = tries
        self._finalizer = weakref.finalize(self, _close, api.close)
        self._finalizer.atexit = False  # the end of the process closes connections by itself

    def __repr__(self) -> str:
        return f"<{self._api.name}>"

    def get_model_name(self) -> str:
        """The model's name."""
        return self._api.model

    def close(self) -> None:
        """Close the connections; from any thread."""
        self._finalizer()

    @property
    def sees(self) -> bool:
        """Whether the API takes images; whether the model has eyes, it says itself."""
        return self._api.features.images

    def ahead(self, tokens: int) -> Backend:
        """The model for one state, whose requests go on past a stop (`num_api_spec_tokens`)."""
        features, name = self._api.features, self._api.name
        return Speculative(self, tokens, name=name, continues=features.continues)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """The chunks of the answer; closing the iterator closes the request.

        Raises:
            Unsupported: Names what this API cannot do.
            BoughsError: What went wrong at the API, as the class that fits.
        """
        prompt = messages.segments(request.prompt, self._api.name)
        if request.params.max_new_tokens == 0:
            for index in range(request.params.n):
                yield whole(request, prompt, "", Spent(), index=index, cut=True)
            return
        self._api.features.check(request, self._api.name)
        call = self._call(request, prompt)
        matching = request.params.regex is not None
        chunks = (self._matching if matching else self._stream)(call, request, prompt)
        async with aclosing(chunks):
            async for chunk in _within(chunks, request.params.timeout, self._api.name):
                yield chunk

    async def score(self, request: ScoreRequest) -> Scores:
        """The logprobs of each choice.

        Raises:
            Unsupported: The API gives no logprobs of a given text.
        """
        name, features = self._api.name, self._api.features
        prompt = self._choices_prompt(request)
        if request.unconditional or not features.scores:
            raise Unsupported(
                f"choices_method: {name} gives no logprobs of "
                f"{'a text without its prompt' if features.scores else 'a given text'}; "
                "only token_length_normalized can be had from it",
                "choices_method",
            )
        try:
            return await self._api.score(messages.plain(prompt, name), request.choices)
        except Exception as error:
            raise fault(error, name) from error

    async def choose(self, request: ScoreRequest) -> Scores:
        """The logprobs of each choice; or the model's own choice, where it cannot score.

        Raises:
            BackendError: It chose none of the choices.
        """
        name, features = self._api.name, self._api.features
        if features.scores:
            return await self.score(request)
        prompt = self._choices_prompt(request)
        return await ask(
            self._pieces, request, prompt, features=features, api=name, tries=self._tries
        )

    def _choices_prompt(self, request: ScoreRequest) -> list[Segment]:
        """The prompt of a request between choices, which has no parameter but that."""
        name = self._api.name
        for given, field in ((request.cache_salt, "cache_salt"), (request.priority, "priority")):
            if given:
                raise Unsupported(f"{field}: {name} has no such parameter", field)
        return messages.segments(request.prompt, name)

    async def flush_cache(self, seconds: float = 0.0) -> None:  # noqa: ARG002 - the protocol's
        """Refuse: an API's cache is not ours.

        Raises:
            Unsupported: Always.
        """
        raise Unsupported(f"flush_cache: the cache of {self._api.name} is its own")

    async def identity(self) -> str:
        """The API, the model's name and where it is reached: that is all that an API tells."""
        return f"{self._api.name} at {self._api.place}"

    async def get_server_info(self) -> dict[str, Any]:
        """The model's name, and the API's."""
        return {"model_path": self._api.model, "api": self._api.name}

    def _call(self, request: GenerateRequest, prompt: list[Segment]) -> Call:
        """What is asked of the API."""
        params, features, name = request.params, self._api.features, self._api.name
        call = Call(params=params)
        if request.return_logprob:
            call.top_logprobs = request.top_logprobs_num
        if features.takes_stops(params):
            call.stop = params.stop
        if not features.chat:
            call.text = messages.plain(prompt, name)
            return call
        call.conversation = messages.conversation(prompt, name)
        if call.conversation.said and not features.continues:
            raise Unsupported(
                f"{call.conversation.said[-40:]!r} before gen in the assistant's turn: {name} "
                "cannot go on with a turn that has begun; give gen a turn of its own, or generate "
                "the turn in one call with @boughs.function(num_api_spec_tokens=…)",
                "prompt",
            )
        return call

    async def _pieces(self, call: Call) -> AsyncGenerator[Piece, None]:
        """The API's pieces, and its errors as ours."""
        try:
            async with aclosing(self._api.stream(call)) as pieces:
                async for piece in pieces:
                    yield piece
        except Exception as error:
            raise fault(error, self._api.name) from error

    async def _stream(
        self, call: Call, request: GenerateRequest, prompt: list[Segment]
    ) -> AsyncGenerator[Chunk, None]:
        """The chunks of an answer that needs no check."""
        local = call.stop != call.params.stop or bool(call.params.stop_regex)
        marks = messages.rendered(prompt)
        choices = [
            Choice(request.rid or "", i, marks, stopper(call.params) if local else None)
            for i in range(call.params.n)
        ]
        spent: Spent | None = None
        async with aclosing(self._pieces(call)) as pieces:
            async for piece in pieces:
                spent = piece.spent or spent
                if piece.index >= len(choices):
                    raise BackendError(f"{self._api.name} gave more choices than were asked for")
                chunk = choices[piece.index].take(piece)
                if chunk is not None:
                    yield chunk
                told = all(choice.told for choice in choices)  # then what it took comes yet
                if not told and all(choice.stopped for choice in choices):
                    break  # nothing more is wanted; to leave the block closes the request
        for choice in choices:
            if choice.finish is None:
                raise BackendError(f"{self._api.name}: the answer ended without a finish reason")
        made = sum(choice.pieces for choice in choices)
        for choice in choices:
            yield choice.last(spent, made)

    async def _matching(
        self, call: Call, request: GenerateRequest, prompt: list[Segment]
    ) -> AsyncGenerator[Chunk, None]:
        """The one chunk of an answer that matches its pattern."""
        params, total, raw = call.params, Spent(), ""
        pattern = params.regex or ""
        for attempt in range(1, self._tries + 1):
            trial = Trial(pattern, stopper(params))
            total += await self._try(call, trial)
            if trial.text is not None:
                yield whole(
                    request,
                    prompt,
                    trial.text,
                    total,
                    cut=trial.cut,
                    matched=trial.matched,
                    tries=attempt,
                )
                return
            raw = trial.raw
            if params.seed is not None:
                call.params = params = msgspec.structs.replace(params, seed=params.seed + 1)
        raise BackendError(
            f"regex: {self._api.name} was asked {self._tries} times and wrote nothing that matches "
            f"{pattern[:80]!r}; at last {raw[:80]!r}"
        )

    async def _try(self, call: Call, trial: Trial) -> Spent:
        """Read one attempt as far as it can match; what it took."""
        spent, count = None, 0
        async with aclosing(self._pieces(call)) as pieces:
            async for piece in pieces:
                spent = piece.spent or spent
                if trial.ended:
                    continue  # it ended by itself; what comes yet is what it took
                count += bool(piece.text)
                if trial.feed(piece.text):
                    break  # nothing more is wanted; to leave the block closes the request
                if piece.finish is not None:
                    if piece.finish.type == "abort":
                        raise RequestAborted(f"{self._api.name}: {piece.finish.message}")
                    trial.finish(cut=piece.finish.type == "length")
        if not trial.ended:
            raise BackendError(f"{self._api.name}: the answer ended without a finish reason")
        if spent is None or not spent.known:
            return replace(spent or Spent(), completion=count, known=False)
        return spent


async def _within(
    chunks: AsyncGenerator[Chunk, None], seconds: float | None, api: str
) -> AsyncIterator[Chunk]:
    """The chunks, as long as the time lasts."""
    deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                chunk = await anext(chunks, None)
        except TimeoutError as error:
            if isinstance(error, BoughsError):
                raise
            raise RequestTimeout(f"timeout: no answer of {api} within {seconds:g} s") from None
        if chunk is None:
            return
        yield chunk


def _close(close: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Close connections, from any thread; on the loop without waiting."""
    closing = loop.submit(close())
    if not loop.on_loop():
        with contextlib.suppress(TimeoutError):  # at the latest the process's end closes them
            closing.result(CLOSE_SECONDS)
