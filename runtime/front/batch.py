"""The requests of one call in SGLang's form: one prompt, or a list of them.

Read here for the Python interface: arguments become requests, answers become SGLang's dicts. This
module knows backends, and no engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from boughs.lang.backend import Backend
from boughs.lang.beams import check_stream
from boughs.lang.errors import BoughsError, InvalidRequest
from boughs.lang.meta import meta_info
from boughs.lang.requests import GenerateRequest
from boughs.lang.results import Answer, Chunk, collect
from boughs.lang.sampling import SamplingParams
from boughs.runtime.gather import gather
from boughs.runtime.naming import Names, call_names, naming, placed, renamed

T = TypeVar("T")

Json = dict[str, Any]

MOST_AT_ONCE = 2048
"""Requests of one call that are given to the backend at once."""


@dataclass(frozen=True)
class Batch:
    """Requests, and whether their answer is a list.

    Attributes:
        requests: In order.
        is_list: Whether the caller gave a list.
        names: What the caller calls the fields of each request.
    """

    requests: list[GenerateRequest]
    is_list: bool
    names: list[Names]

    @classmethod
    def read(
        cls,
        *,
        prompt: Any,
        sampling_params: Any,
        input_ids: Any,
        return_logprob: Any,
        logprob_start_len: Any,
        top_logprobs_num: Any,
        token_ids_logprob: Any,
        rid: Any,
        heal: Any,
    ) -> Batch:
        """The batch that the arguments of `Engine.generate` describe.

        Raises:
            InvalidRequest: Names the argument.
        """
        prompts, is_list = read_prompts(prompt, input_ids)
        count = len(prompts)

        def each(value: Any, kind: type[T], name: str) -> list[T]:
            return _each(value, kind, name, count, is_list=is_list)

        fields = zip(
            prompts,
            _params(sampling_params, count, is_list=is_list),
            each(return_logprob, bool, "return_logprob"),
            each(logprob_start_len, int, "logprob_start_len"),
            each(top_logprobs_num, int, "top_logprobs_num"),
            read_token_ids(token_ids_logprob, count, is_list=is_list),
            read_rids(rid, count, is_list=is_list),
            each(heal, bool, "heal"),
            strict=True,
        )
        requests = [
            GenerateRequest(
                prompt=text,
                params=params,
                return_logprob=logprob,
                logprob_start_len=start,
                top_logprobs_num=top,
                token_ids_logprob=given,
                rid=name,
                heal=heals,
            )
            for text, params, logprob, start, top, given, name, heals in fields
        ]
        listed = {
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
            "token_ids_logprob": token_ids_logprob,
        }
        name = "prompt" if input_ids is None else "input_ids"
        names = call_names(name, sampling_params, listed, count, is_list=is_list)
        return cls(requests, is_list, names)

    async def run(self, backend: Backend) -> Json | list[Json]:
        """All answers. The first failure is raised, and ends the others."""

        async def one(at: int, request: GenerateRequest) -> list[Json]:
            began = time.monotonic()
            try:
                answers = await collect(backend.generate(request))
            except BoughsError as error:
                raise self._named(error, at) from error.__cause__
            return [_as_json(answer, began) for answer in answers]

        gathered = await gather(one, self.requests, MOST_AT_ONCE)
        results = [result for results in gathered for result in results]
        return results if self._gives_list else results[0]

    def stream(self, backend: Backend) -> AsyncIterator[Json]:
        """Answers that grow; of several, each says by `index` which it is.

        Raises:
            InvalidRequest: The choices are ranked when all are made.
        """
        for names, request in zip(self.names, self.requests, strict=True):
            with naming(names):
                check_stream(request.params)
        return self._stream(backend)

    async def _stream(self, backend: Backend) -> AsyncIterator[Json]:
        gate = asyncio.Semaphore(MOST_AT_ONCE)
        chunks: asyncio.Queue[tuple[int, Chunk] | None] = asyncio.Queue()

        async def one(first: int, at: int, request: GenerateRequest) -> None:
            try:
                async with gate:
                    async for chunk in backend.generate(request):
                        chunks.put_nowait((first, chunk))
            except BoughsError as error:
                raise self._named(error, at) from error.__cause__
            finally:
                chunks.put_nowait(None)

        began = time.monotonic()
        tasks, first = [], 0
        for at, request in enumerate(self.requests):
            tasks.append(asyncio.create_task(one(first, at, request)))
            first += request.params.n
        answers: dict[int, Answer] = {}
        left = len(tasks)
        try:
            while left:
                item = await chunks.get()
                if item is None:
                    left -= 1
                    for task in tasks:
                        if task.done():
                            task.result()
                    continue
                index = item[0] + item[1].index
                answer = answers.setdefault(index, Answer.empty(item[1].rid, item[1].index))
                answer.add(item[1])
                result = _as_json(answer, began)
                yield {**result, "index": index} if self._gives_list else result
        finally:
            await _end(tasks)

    def _named(self, error: BoughsError, at: int) -> BoughsError:
        names = self.names[at]
        return placed(error, names, names["prompt"]) if self.is_list else renamed(error, names)

    @property
    def _gives_list(self) -> bool:
        return self.is_list or self.requests[0].params.n > 1


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _as_json(answer: Answer, began: float) -> Json:
    return {
        "text": answer.text,
        "output_ids": list(answer.output_ids),
        "meta_info": meta_info(answer, e2e_latency=time.monotonic() - began),
    }


def read_token_ids(value: Any, count: int, *, is_list: bool) -> list[tuple[int, ...]]:
    """The `token_ids_logprob` of each prompt, from SGLang's forms.

    Args:
        value: Token ids for every prompt; or, beside a list of prompts, a list of ids or None for
            each; or None.
        count: Prompts.
        is_list: Whether a list of prompts was given.

    Raises:
        InvalidRequest: It is none of these.
    """
    name = "token_ids_logprob"
    if is_list and isinstance(value, list) and any(isinstance(i, list | None) for i in value):
        _require_count(value, count, name)
        return [tuple(ids or ()) for ids in _checked(value, list[list[int] | None], name)]
    return [tuple(_checked([] if value is None else value, list[int], name))] * count


def read_prompts(prompt: Any, input_ids: Any) -> tuple[list[Any], bool]:
    """The prompts, and whether a list of them was given."""
    if (prompt is None) == (input_ids is None):
        raise InvalidRequest("prompt: give either prompt or input_ids", "prompt")
    if input_ids is None:
        if isinstance(prompt, str):
            return [prompt], False
        return _checked(prompt, list[str], "prompt"), True
    if isinstance(input_ids, list) and input_ids and isinstance(input_ids[0], list):
        return _checked(input_ids, list[list[int]], "input_ids"), True
    return [_checked(input_ids, list[int], "input_ids")], False


def read_rids(rid: Any, count: int, *, is_list: bool) -> list[str] | list[None]:
    """The id of each request; of a list, one string names all."""
    if rid is None:
        return [None] * count
    if is_list and isinstance(rid, str):
        return [f"{rid}-{at}" for at in range(count)]
    return _each(rid, str, "rid", count, is_list=is_list)


def _each(value: Any, kind: type[T], name: str, count: int, *, is_list: bool) -> list[T]:
    """The value of an argument for each prompt."""
    listed = is_list and isinstance(value, list)
    values = value if listed else [value] * count
    _require_count(values, count, name)
    for at, item in enumerate(values):
        if type(item) is not kind:
            where = f"{name}[{at}]" if listed else name
            raise InvalidRequest(f"{where}: expected {kind.__name__}, got {item!r:.40}", where)
    return values


def _checked(value: Any, form: type[list[T]], name: str) -> list[T]:
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        where = name + place.rstrip("`")
        raise InvalidRequest(f"{where}: {what[0].lower()}{what[1:]}", where) from None
    except UnicodeEncodeError as error:  # a lone surrogate
        raise InvalidRequest(f"{name}: {error}", name) from None


def _require_count(values: list[Any], count: int, name: str) -> None:
    if len(values) != count:
        raise InvalidRequest(f"{name}: {len(values)} values for {count} prompts", name)


def _params(value: Any, count: int, *, is_list: bool) -> list[SamplingParams]:
    name = "sampling_params"
    if is_list and isinstance(value, list):
        _require_count(value, count, name)
        return [_one_params(item, f"{name}[{at}]") for at, item in enumerate(value)]
    return [_one_params(value, name)] * count


def _one_params(value: Any, where: str) -> SamplingParams:
    if value is None:
        return SamplingParams()
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{where}: expected a dict, got {value!r:.40}", where)
    return SamplingParams.from_mapping(value, f"{where}.")
