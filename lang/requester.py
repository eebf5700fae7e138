"""The requests of one state: how they are made, and where what comes of them goes.

This module knows no statements' order, and not what answers become.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator

from boughs.lang import choices, ir
from boughs.lang.abilities import Choosing
from boughs.lang.backend import Backend
from boughs.lang.call import Call, CallKind
from boughs.lang.contents import Contents
from boughs.lang.errors import BackendError, BoughsError, RequestAborted, RequestTimeout
from boughs.lang.journal import Journal
from boughs.lang.parameters import Defaults, RequestOptions
from boughs.lang.requests import GenerateRequest, ScoreRequest
from boughs.lang.results import Answer, Chunk, Scores
from boughs.lang.sampling import SamplingParams
from boughs.lang.text_stream import TextStream
from boughs.lang.waiting import Stream


class Requester:
    """Asks a backend on behalf of one state.

    Args:
        backend: Who is asked.
        defaults: The parameters of the run.
        journal: What notes each request.
        text: The stream of the state's text.

    Attributes:
        backend: As given.
        rid: The last request of the running statement.
    """

    def __init__(
        self, backend: Backend, defaults: Defaults, journal: Journal, text: TextStream
    ) -> None:
        self.backend = backend
        self._defaults = defaults
        self._journal = journal
        self._text = text
        self._stream: Stream[Chunk] | None = None
        self.rid: str | None = None

    def begin(self, stream: Stream[Chunk] | None) -> None:
        """A statement begins, whose variable's readers read this stream."""
        self._stream, self.rid = stream, None

    async def prefill(self, contents: Contents) -> None:
        """Have the backend compute what the state holds, and render its role marks."""
        await self.generate(contents, self._defaults.prefill(), RequestOptions())

    async def generate(
        self,
        contents: Contents,
        params: SamplingParams,
        options: RequestOptions,
        node: ir.Gen | None = None,
    ) -> tuple[Call, list[Answer]]:
        """Continue a state, and stream what comes to the readers.

        Returns:
            The request as it is noted, and its answers by choice.

        Raises:
            BoughsError: What the backend says, or that it ended no answer.
        """
        kind: CallKind = "prefill" if node is None else "gen"
        call = self._call(kind, None if node is None else node.name)
        self._text.begin_answer(apart=node is not None and node.reasoning is not None)
        request = GenerateRequest(
            prompt=contents.prompt(),
            params=params,
            rid=call.rid,
            return_logprob=options.return_logprob,
            logprob_start_len=options.logprob_start_len,
            top_logprobs_num=options.top_logprobs_num,
            token_ids_logprob=options.token_ids_logprob,
            heal=options.heal,
        )
        answers, failed = call.answers, True
        chunks = self.backend.generate(request)
        try:
            async for chunk in chunks:
                answer = answers.get(chunk.index)
                if answer is None:
                    answer = answers[chunk.index] = Answer.empty(chunk.rid, chunk.index)
                answer.add(chunk)
                if chunk.index == 0:
                    self._pass_on(chunk, contents, final=params.max_new_tokens != 0)
            ordered = _checked(answers)
            failed = False
        finally:
            call.end(failed=failed)
            if isinstance(chunks, AsyncGenerator):
                await chunks.aclose()
        return call, ordered

    async def score(self, contents: Contents, node: ir.Select) -> tuple[Call, Scores]:
        """Score the choices of a select behind what a state holds.

        Raises:
            RequestTimeout: It took longer than the run allows.
            BoughsError: What the backend says.
        """
        call = self._call("select", node.name)
        request = ScoreRequest(
            prompt=contents.prompt(),
            choices=list(node.choices),
            unconditional=node.method.requires_unconditional_logprobs,
            rid=call.rid,
            cache_salt=node.cache_salt or self._defaults.cache_salt,
            priority=self._defaults.priority,
        )
        scores: Scores | None = None
        try:
            scores = await self._in_time(node, request)
        finally:
            call.end_select(scores)
        return call, scores

    async def _in_time(self, node: ir.Select, request: ScoreRequest) -> Scores:
        seconds = self._defaults.timeout
        score = self.backend.score
        if type(node.method) is choices.TokenLengthNormalized and isinstance(
            self.backend, Choosing
        ):
            score = self.backend.choose  # the default method needs a choice, and no numbers
        try:
            return await asyncio.wait_for(score(request), seconds)
        except TimeoutError as error:
            if isinstance(error, BoughsError):
                raise
            raise RequestTimeout(f"timeout: no decision within {seconds:g} s") from None

    def _call(self, kind: CallKind, name: str | None) -> Call:
        self.rid = uuid.uuid4().hex
        return self._journal.call(kind, name, self.rid)

    def _pass_on(self, chunk: Chunk, contents: Contents, *, final: bool) -> None:
        """Give a chunk to the readers; what a request that makes no text rendered may change."""
        if chunk.rendered is not None:
            contents.render(chunk.rendered, final=final)
            self._text.flush()
        if self._stream is not None:
            self._stream.append(chunk)
        self._text.add(chunk.text)


def _checked(answers: dict[int, Answer]) -> list[Answer]:
    """The answers in order, all of them ended as they should."""
    ordered = [answers[index] for index in sorted(answers)]
    if not ordered:
        raise BackendError("the backend answered nothing")
    for answer in ordered:
        if answer.finish is None:
            raise BackendError("the answer ended without a finish reason")
        if answer.finish.type == "abort":
            raise RequestAborted(answer.finish.message or "the request was aborted")
    return ordered
