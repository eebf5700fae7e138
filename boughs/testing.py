"""Test programs without a model: a backend that answers what a test says.

    import boughs
    from boughs.testing import MockBackend

    @boughs.function
    def guide(s, place):
        s += boughs.user(f"What is in {place}?") + boughs.assistant(boughs.gen("famous"))
        s += boughs.user("And to eat?") + boughs.assistant(boughs.gen("food"))

    backend = MockBackend(["Paris", "Baguettes"])
    state = guide.run(place="France", backend=backend)
    assert state["food"] == "Baguettes"
    assert "France" in backend.calls[0].text

A token is a character and takes a step, roles are rendered as ChatML, and what two prompts share
counts as cached, as with the real runtime. Stops, limits, grammars and forbidden tokens are not
applied: what a test says is what the program gets; `Cut("{")` is a text that a limit cut. Time-outs
are kept. This module knows no model and no engine.
"""

from __future__ import annotations

import asyncio
import bisect
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from boughs.lang.errors import BackendError, InvalidRequest, RequestTimeout
from boughs.lang.requests import GenerateRequest, PinRequest, Prompt, ScoreRequest
from boughs.lang.results import ChoiceScore, Chunk, Finish, LeaseState, Scores, TokenLogprob
from boughs.lang.segments import Content, Ids, Image, Role, Segment, Text, chatml


class Cut(str):
    """A text that the limit of tokens cut: its finish is `length`."""

    __slots__ = ()


Said = str | Sequence[str] | Sequence[float] | BaseException
"""An answer: a text (for a select: one of its choices); a list of texts, one for each of `n`
choices; for a select also a list of mean logprobs, one a choice; or an error, to be raised."""

Answers = Iterable[Said] | Callable[["Call"], Said]


@dataclass(frozen=True)
class Call:
    """A request that a backend got.

    Attributes:
        text: The prompt as text, with roles as ChatML.
        request: The request itself.
    """

    text: str
    request: GenerateRequest | ScoreRequest

    @property
    def choices(self) -> list[str] | None:
        """The choices of a select; None for a gen."""
        return self.request.choices if isinstance(self.request, ScoreRequest) else None

    @property
    def prefills(self) -> bool:
        """Whether it only asks for the prompt to be computed."""
        request = self.request
        return isinstance(request, GenerateRequest) and request.params.max_new_tokens == 0


class MockBackend:
    """A backend that answers what it was told.

    Args:
        answers: The answers in the order of the requests, or a function of the `Call` (the right
            way where branches ask at the same time). Requests that only prefill are not asked.
        piece: Characters in a piece of a stream.
        delay: Seconds before each piece, and before a score.

    Attributes:
        calls: All requests so far, in order, those that only prefill among them.
        aborted: The ids of requests that were ended before their end.
        pinned: The texts that leases are held on.
        sees: Whether programs may show it images; in a call's text each is `<image>`.
    """

    sees = True

    def __init__(self, answers: Answers = "ok", *, piece: int = 4, delay: float = 0.0) -> None:
        if piece < 1 or delay < 0:
            raise InvalidRequest(f"piece must be above 0 and delay not below: {piece}, {delay}")
        self.calls: list[Call] = []
        self.aborted: list[str | None] = []
        self.pinned: list[str] = []
        self._piece = piece
        self._delay = delay
        self._say = _speaker(answers)
        self._seen: dict[str | None, list[str]] = {}
        self._lock = threading.Lock()

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Chunk]:
        """Answer in pieces."""
        segments = _segments(request.prompt)
        call = Call(_text(segments), request)
        cached = self._record(call, request.params.cache_salt)
        texts = self._texts(call)
        ended = False
        seconds = request.params.timeout
        until = math.inf if seconds is None else time.monotonic() + seconds
        try:
            for index, text in enumerate(texts):
                async for chunk in self._stream(request, call, text, index, until):
                    chunk.cached_tokens = cached
                    if chunk.rendered is not None:
                        chunk.rendered = [chatml(s) for s in segments if isinstance(s, Role)]
                    yield chunk
            ended = True
        finally:
            if not ended:
                self.aborted.append(request.rid)
        self._remember(call.text + texts[0], request.params.cache_salt)

    async def score(self, request: ScoreRequest) -> Scores:
        """Score the choices so that the answer's choice is the best, or as the answer says."""
        segments = _segments(request.prompt)
        call = Call(_text(segments), request)
        cached = self._record(call, request.cache_salt)
        said = self._say(call)
        await asyncio.sleep(self._delay)
        means = _means(said, request.choices)
        return Scores(
            choices=[
                ChoiceScore(
                    token_ids=list(map(ord, choice)),
                    logprobs=[mean] * len(choice),
                    unconditional=[-8.0] * len(choice) if request.unconditional else None,
                )
                for choice, mean in zip(request.choices, means, strict=True)
            ],
            prompt_tokens=len(call.text),
            cached_tokens=cached,
            forward_steps=1,
            rendered=[chatml(segment) for segment in segments if isinstance(segment, Role)],
        )

    async def pin(self, request: PinRequest) -> AsyncIterator[LeaseState]:
        """Keep a prompt, until the time is over or the lease is given back."""
        request.check()
        text = _text(_segments(request.prompt))
        self._remember(text, request.cache_salt)
        self.pinned.append(text)
        try:
            yield LeaseState(state="held", tokens=len(text))
            await asyncio.sleep(request.seconds)
        finally:
            self.pinned.remove(text)
        yield LeaseState(state="expired", tokens=0)

    async def flush_cache(self, seconds: float = 0.0) -> None:  # noqa: ARG002 - nothing is long
        """Forget all prompts."""
        self._seen.clear()

    async def get_server_info(self) -> dict[str, Any]:
        """Its name, and how many requests it got."""
        return {"model_path": "mock", "requests": len(self.calls)}

    def _texts(self, call: Call) -> list[str]:
        """What was said to a request, one text a choice."""
        assert isinstance(call.request, GenerateRequest)
        n = call.request.params.n
        if call.prefills:
            return [""] * n
        said = self._say(call)
        texts = [said] * n if isinstance(said, str) else list(said) if _listed(said) else []
        if len(texts) != n or not all(isinstance(text, str) for text in texts):
            raise InvalidRequest(f"MockBackend: {said!r:.60} does not answer a gen with n={n}")
        return [text if isinstance(text, Cut) else str(text) for text in texts]

    async def _stream(
        self, request: GenerateRequest, call: Call, text: str, index: int, until: float
    ) -> AsyncIterator[Chunk]:
        """The chunks of one choice, until the time is over."""
        for at in range(0, max(len(text), 1), self._piece):
            left = until - time.monotonic()
            await asyncio.sleep(min(self._delay, max(left, 0.0)))
            if self._delay > left:
                raise RequestTimeout(f"timeout: no answer within {request.params.timeout:g} s")
            piece = text[at : at + self._piece]
            last = at + self._piece >= len(text)
            chunk = Chunk(
                rid=request.rid or "",
                text=piece,
                output_ids=list(map(ord, piece)),
                index=index,
                prompt_tokens=len(call.text),
                completion_tokens=at + len(piece),
                forward_steps=max(at + len(piece), 1),
            )
            if request.return_logprob:
                chunk.logprobs = _logprobs(piece, request)
            if at == 0:
                chunk.rendered = []
                if request.return_logprob and request.logprob_start_len >= 0:
                    given = call.text[request.logprob_start_len :]
                    chunk.prompt_logprobs = _logprobs(given, request)
            if last:
                chunk.segments = [Ids(list(map(ord, text)))] if text else []
                chunk.token_chars, chunk.forced_at = [1] * len(text), []
                cut = isinstance(text, Cut) or not text
                chunk.finish = Finish("length", length=len(text)) if cut else Finish("stop")
            yield chunk

    def _record(self, call: Call, salt: str | None) -> int:
        """Note a call; how much of its text is cached."""
        with self._lock:
            self.calls.append(call)
        seen = self._seen.setdefault(salt, [])
        at = bisect.bisect(seen, call.text)
        cached = max(
            (_shared(call.text, other) for other in seen[max(at - 1, 0) : at + 1]), default=0
        )
        self._remember(call.text, salt)
        return min(cached, max(len(call.text) - 1, 0))

    def _remember(self, text: str, salt: str | None) -> None:
        seen = self._seen.setdefault(salt, [])
        at = bisect.bisect_left(seen, text)
        if at == len(seen) or seen[at] != text:
            seen.insert(at, text)


def _speaker(answers: Answers) -> Callable[[Call], Said]:
    if callable(answers):
        speak = answers
    elif isinstance(answers, str):
        speak = _repeat(answers)
    else:
        speak = _recite(iter(answers))

    def say(call: Call) -> Said:
        said = speak(call)
        if isinstance(said, BaseException):
            raise said
        return said

    return say


def _repeat(answer: str) -> Callable[[Call], Said]:
    return lambda call: answer if call.choices is None else call.choices[0]


def _recite(answers: Iterator[Said]) -> Callable[[Call], Said]:
    def say(call: Call) -> Said:
        try:
            return next(answers)
        except StopIteration:
            raise BackendError(f"MockBackend: no answer is left for {call.text[-60:]!r}") from None

    return say


def _means(said: Said, choices: list[str]) -> list[float]:
    if isinstance(said, str) and said in choices:
        return [-0.5 if choice == said else -4.0 for choice in choices]
    if _listed(said) and len(said) == len(choices):
        return [float(mean) for mean in said]
    raise InvalidRequest(f"MockBackend: {said!r:.60} is none of the choices {choices!r:.200}")


def _listed(said: Said) -> TypeGuard[Sequence[str] | Sequence[float]]:
    return isinstance(said, Sequence) and not isinstance(said, str)


def _segments(prompt: Prompt) -> list[Segment]:
    if isinstance(prompt, str):
        return [Text(prompt)]
    ids = [item for item in prompt if isinstance(item, int)]
    return [Ids(ids)] if ids else [item for item in prompt if not isinstance(item, int)]


def _text(segments: list[Segment]) -> str:
    return "".join(map(_shown, segments))


def _shown(segment: Segment) -> str:
    if isinstance(segment, Ids):
        return "".join(map(chr, segment.ids))
    if isinstance(segment, Role):
        return chatml(segment)
    if isinstance(segment, Image):
        return "<image>"
    return segment.content if isinstance(segment, Content) else segment.text


def _logprobs(text: str, request: GenerateRequest) -> list[TokenLogprob]:
    top, asked = request.top_logprobs_num, request.token_ids_logprob
    return [
        TokenLogprob(
            logprob=-1.0,
            token_id=ord(character),
            text=character,
            top=[(-1.0 - i, ord(character) + i, chr(ord(character) + i)) for i in range(top)]
            if top
            else None,
            given=[(-1.0 - abs(ord(character) - id_), id_, chr(id_ % 0x110000)) for id_ in asked]
            if asked
            else None,
        )
        for character in text
    ]


def _shared(a: str, b: str) -> int:
    """The length of the longest common prefix, by halving."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
