r"""Many gens of one call: what a model wrote past the end of a gen is kept for the next ones.

A request to an API is paid by its prompt, so a program `"Name: " + gen(stop="\n") + "Job: " +
gen(stop="\n")` pays twice. Here the first request does not stop; what comes after its stop is held
against what the program adds and generates next, and answers it as far as both agree (SGLang, arXiv
2312.07104, "API speculative execution"). This module knows no API.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from boughs.lang.apis import messages
from boughs.lang.apis.answers import Spent, whole
from boughs.lang.apis.stops import stopper
from boughs.lang.errors import BackendError, RequestAborted
from boughs.lang.requests import GenerateRequest, ScoreRequest
from boughs.lang.results import Answer, Chunk, Scores, collect
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Segment

TURN_TRIES = 3
"""How often a turn is written anew, by an API that cannot go on with one, until it begins as the
state has it. As in SGLang."""


class Model(Protocol):
    """What is asked."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """The chunks of the answer."""
        ...

    @property
    def sees(self) -> bool:
        """Whether it takes images."""
        ...

    async def score(self, request: ScoreRequest) -> Scores:
        """The logprobs of choices."""
        ...

    async def choose(self, request: ScoreRequest) -> Scores:
        """These, or what it chose."""
        ...

    async def flush_cache(self, seconds: float = 0.0) -> None:
        """Refused."""
        ...

    async def get_server_info(self) -> dict[str, Any]:
        """What it is."""
        ...


@dataclass(frozen=True)
class Written:
    """What one call wrote.

    Attributes:
        prompt: What it continued.
        params: How, without what ends it.
        text: All of it.
        ended: Whether the model ended it, and not the limit.
        tokens: How many there are, at least.
    """

    prompt: list[Segment]
    params: SamplingParams
    text: str
    ended: bool
    tokens: int

    def answer(self, request: GenerateRequest, prompt: list[Segment]) -> tuple[str, str] | None:
        """What a request gets from this: its text, and the stop; None where this says nothing.

        It does if the request's prompt goes on as this text does, if its parameters are the same,
        and if the end of its own text is here: a stop, or the end of the turn.
        """
        params = request.params
        began = messages.added(self.prompt, prompt)
        if began is None or not self.text.startswith(began) or _endless(params) != self.params:
            return None
        ends = stopper(params)
        rest = self.text[len(began) :]
        text = ends.feed(rest) + ends.rest()
        if ends.matched is None and not self.ended:
            return None
        if not self._fits(ends.raw, params.max_new_tokens):
            return None
        return text, ends.matched or ""

    def _fits(self, text: str, limit: int | None) -> bool:
        """Whether a part of this has surely no more tokens than a gen may have.

        There is no tokenizer here: a part has no more tokens than the whole has, nor than it has
        bytes.
        """
        return limit is None or self.tokens <= limit or len(text.encode()) <= limit


class Speculative:
    """The backend of one state.

    Each answer's meta info says in `speculation` whether it was a `hit` (taken from an earlier
    call, at no cost), a `miss` (an earlier call had gone on, but otherwise) or the first (`call`).

    Args:
        model: Who is asked.
        tokens: How far a call goes at least.
        name: What errors call the model.
        continues: Whether it goes on with a turn that has begun.
    """

    def __init__(self, model: Model, tokens: int, *, name: str, continues: bool) -> None:
        self._model = model
        self._tokens = tokens
        self._name = name
        self._continues = continues
        self._written: Written | None = None

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """An answer from what is written already, or a new call's, which is whole at once."""
        params = request.params
        if params.max_new_tokens == 0:
            async for chunk in self._model.generate(request):
                yield chunk
            return
        prompt = messages.segments(request.prompt, self._name)
        written, self._written = self._written, None
        plain = params.n == 1 and params.constraint is None and not request.return_logprob
        found = written.answer(request, prompt) if written is not None and plain else None
        if found is not None:
            self._written = written
            text, stop = found
            yield whole(request, prompt, text, Spent(), matched=stop or None, speculation="hit")
            return
        how = "call" if written is None else "miss"
        begun = "" if self._continues else messages.open_turn(prompt)[1]
        if not plain or not (params.stops_in_text or begun):
            chunks = self._plainly(request, how)
        else:
            chunks = self._ahead(request, prompt, how)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    @property
    def sees(self) -> bool:
        """As the model."""
        return self._model.sees

    async def score(self, request: ScoreRequest) -> Scores:
        """As the model does; a choice may be what was written on, so that is kept."""
        return await self._model.score(request)

    async def choose(self, request: ScoreRequest) -> Scores:
        """The same."""
        return await self._model.choose(request)

    async def flush_cache(self, seconds: float = 0.0) -> None:
        """As the model does."""
        await self._model.flush_cache(seconds)

    async def get_server_info(self) -> dict[str, Any]:
        """As the model does."""
        return await self._model.get_server_info()

    async def _plainly(
        self, request: GenerateRequest, how: str, before: Spent | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """The model's own answer, with what was spent in vain before it."""
        async with aclosing(self._model.generate(request)) as chunks:
            async for chunk in chunks:
                if chunk.finish is not None:
                    chunk.extra = {**(chunk.extra or {}), "speculation": how}
                    if before is not None:
                        chunk.prompt_tokens += before.prompt
                        chunk.cached_tokens += before.cached
                        chunk.completion_tokens += before.completion
                yield chunk

    async def _ahead(
        self, request: GenerateRequest, prompt: list[Segment], how: str
    ) -> AsyncGenerator[Chunk, None]:
        """The answer of a call that goes on past its end."""
        written, spent = await self._write(request, prompt)
        found = written.answer(request, prompt)
        limit = request.params.max_new_tokens
        if found is None and (limit is None or limit >= self._tokens):
            # there is no stop in it, and the call had no more tokens than the gen may have
            yield whole(request, prompt, written.text, spent, cut=True, speculation=how)
        elif found is None:
            async with aclosing(self._plainly(request, "miss", spent)) as chunks:
                async for chunk in chunks:
                    yield chunk
        else:
            text, stop = found
            self._written = written
            yield whole(request, prompt, text, spent, matched=stop or None, speculation=how)

    async def _write(
        self, request: GenerateRequest, prompt: list[Segment]
    ) -> tuple[Written, Spent]:
        """Call the model without stops; what it wrote after the prompt, and what that took.

        A model that cannot go on with a turn writes the whole turn, which must begin as the
        prompt's does; the gen's limit is then one of the whole turn.
        """
        before, begun = (prompt, "") if self._continues else messages.open_turn(prompt)
        limit = request.params.max_new_tokens
        params = msgspec.structs.replace(
            _endless(request.params),
            max_new_tokens=None if limit is None else max(limit, self._tokens),
            timeout=request.params.timeout,
        )
        ask = msgspec.structs.replace(request, prompt=before, params=params)
        spent, text = Spent(), ""
        for _ in range(TURN_TRIES if begun else 1):
            answer = (await collect(self._model.generate(ask)))[0]
            spent, text = spent + _spent(answer), answer.text
            if text.startswith(begun):
                ended = answer.finish is not None and answer.finish.type == "stop"
                rest, tokens = text[len(begun) :], answer.completion_tokens
                return Written(prompt, _endless(params), rest, ended, tokens), spent
        raise BackendError(
            f"num_api_spec_tokens: {self._name} cannot go on with a turn that has begun, was asked "
            f"{TURN_TRIES} times for the whole turn, and did not begin with {begun[:80]!r}; at "
            f"last {text[:80]!r}"
        )


def _endless(params: SamplingParams) -> SamplingParams:
    """The parameters without what ends a text."""
    return msgspec.structs.replace(
        params, stop=(), stop_regex=(), no_stop_trim=False, max_new_tokens=None, timeout=None
    )


def _spent(answer: Answer) -> Spent:
    if answer.finish is not None and answer.finish.type == "abort":
        raise RequestAborted(answer.finish.message or "the request was aborted")
    known = (answer.extra or {}).get("usage_known", True)
    return Spent(answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens, known)
