"""The choices of an answer: each by itself, the best of many, or those of a beam search.

This module knows the submissions of one request and their text, and no core, link or socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import msgspec

from boughs.lang.results import Answer, Chunk, Finish
from boughs.lang.sampling import SamplingParams
from boughs.runtime.messages import Hypothesis, Output

from .output import Asked, ChoiceOutput
from .plan import submit_choice
from .prompt_logprobs import PromptLogprobs
from .running import ABORTED, Running
from .tokenizer import Tokenizer


def submissions(params: SamplingParams) -> int:
    """How many submissions a request is."""
    if params.beam_width is not None:
        return 1
    return max(params.n, params.best_of or 0)


def answer(tokenizer: Tokenizer, asked: Asked, run: Running) -> AsyncIterator[Chunk]:
    """The chunks of all choices of a request.

    Args:
        tokenizer: The model's.
        asked: The request.
        run: It has no submissions yet.

    Raises:
        BoughsError: What a choice failed with.
    """
    params = asked.params
    if params.beam_width is not None:
        return _searched(tokenizer, asked, run)
    if submissions(params) > params.n:
        return _ranked(tokenizer, asked, run)
    return _each(tokenizer, asked, run)


async def _each(tokenizer: Tokenizer, asked: Asked, run: Running) -> AsyncIterator[Chunk]:
    """Every choice as it comes."""
    count = submissions(asked.params)
    sent = PromptLogprobs(wanted=count > 1 and asked.prompt_logprobs_from is not None)
    going: dict[int, ChoiceOutput] = {}
    for index in range(count):
        going[index] = ChoiceOutput(tokenizer, asked, index)
        run.submit(submit_choice(asked, index))
    while going:
        event = await run.next()
        if event is None:
            ends = [choice.abort(ABORTED) for choice in going.values()]
            for last in (*sent.rest(), *ends):
                yield last
            return
        index, output, cached_tokens = event
        if index not in going:
            continue  # made beyond a stop
        choice = going[index]
        chunk = choice.add(output, cached_tokens)
        if choice.ended:
            del going[index]
            if output.weaker and chunk is not None:
                chunk.finish = await _checked(asked, choice, chunk.finish)
            if asked.params.stops_in_text:
                run.finish(index, choice.length)
        for ready in () if chunk is None else sent.ready(chunk):
            yield ready


async def _checked(asked: Asked, choice: ChoiceOutput, finish: Finish | None) -> Finish | None:
    """The end of a choice whose grammar allows more than its schema: with a violation, if any."""
    source = asked.params.json_schema
    # What ends at a stop of the user's own is no whole value.
    if source is None or finish is None or isinstance(finish.matched, str):
        return finish
    from boughs.runtime.constraints.check import violation  # loads jsonschema: few requests need it

    found = await asyncio.to_thread(violation, source, choice.whole_text)
    return msgspec.structs.replace(finish, violation=found)


async def _ranked(tokenizer: Tokenizer, asked: Asked, run: Running) -> AsyncIterator[Chunk]:
    """Of `best_of` choices the `n` most likely, each in one chunk, best first."""
    made: dict[int, Answer] = {}
    async for chunk in _each(tokenizer, replace(asked, logprobs=True), run):
        if chunk.index not in made:
            made[chunk.index] = Answer.empty(chunk.rid, chunk.index)
        made[chunk.index].add(chunk)
    for one in made.values():
        one.cumulative_logprob = sum(entry.logprob or 0.0 for entry in one.logprobs or ())
    order = sorted(made.values(), key=_rank)
    kept, dropped = order[: asked.params.n], order[asked.params.n :]
    kept[0].discarded_tokens = sum(one.completion_tokens for one in dropped)
    kept[0].forward_steps += sum(one.forward_steps for one in dropped)
    for index, one in enumerate(kept):
        one.index = index
        if not asked.logprobs:
            one.logprobs = None
        yield one.as_chunk()


def _rank(made: Answer) -> tuple[bool, float, int]:
    """Lower is better: not aborted, likely, submitted early."""
    assert made.finish is not None, "every choice has ended"
    return made.finish.type == "abort", -(made.cumulative_logprob or 0.0), made.index


async def _searched(tokenizer: Tokenizer, asked: Asked, run: Running) -> AsyncIterator[Chunk]:
    """The best of a beam search, each in one chunk, once it is over."""
    message = submit_choice(asked, 0)
    wanted = asked.params  # a beam with a stop in its text has ended, which the search must know
    message.params = msgspec.structs.replace(
        message.params, n=wanted.n, stop=wanted.stop, stop_regex=wanted.stop_regex
    )
    message.confirm = False
    run.submit(message)
    found: list[Hypothesis] | None = None
    while found is None:
        event = await run.next()
        if event is None:
            for index in range(asked.params.n):
                yield ChoiceOutput(tokenizer, asked, index).abort(ABORTED)
            return
        _, output, cached_tokens = event
        found = output.hypotheses
    for index, one in enumerate(found):
        whole = Output(
            key=output.key,
            ids=one.ids,
            logprobs=one.logprobs,
            top=one.top,
            given=one.given,
            prompt_logprobs=output.prompt_logprobs,
            prompt_top=output.prompt_top,
            prompt_given=output.prompt_given,
            forward_steps=0 if index else output.forward_steps,
            finish=one.finish,
            matched=one.matched,
            incomplete=one.incomplete,
        )
        choice = ChoiceOutput(tokenizer, asked, index)
        chunk = choice.add(whole, cached_tokens)
        assert chunk is not None, "a choice that ends has a last chunk"
        if one.weaker:
            chunk.finish = await _checked(asked, choice, chunk.finish)
        chunk.cumulative_logprob, chunk.sequence_score = one.sum_logprob, one.score
        yield chunk
