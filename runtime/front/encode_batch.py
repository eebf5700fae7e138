"""The prompts of one call of `Engine.encode`: arguments become requests, vectors SGLang's dicts.

This module knows backends, and no engine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from boughs.lang.backend import Encoding
from boughs.lang.errors import BoughsError
from boughs.lang.meta import embedding_json
from boughs.lang.requests import EncodeRequest
from boughs.runtime.gather import gather
from boughs.runtime.naming import placed, renamed

from .batch import MOST_AT_ONCE, Json, read_prompts, read_rids


class EncodeBatch:
    """Requests, and whether their answer is a list.

    Args:
        prompt: A text, or a list of them.
        input_ids: Token ids in place of it, or a list of lists.
        rid: The ids of the requests.
        fields: Of `EncodeRequest`, the same for all.

    Raises:
        InvalidRequest: Names the argument.
    """

    def __init__(self, prompt: Any, input_ids: Any, rid: Any, **fields: Any) -> None:
        prompts, self.is_list = read_prompts(prompt, input_ids)
        self._name = "prompt" if input_ids is None else "input_ids"
        rids = read_rids(rid, len(prompts), is_list=self.is_list)
        self.requests: Sequence[EncodeRequest] = [
            EncodeRequest(prompt=one, rid=name, **fields)
            for one, name in zip(prompts, rids, strict=True)
        ]
        EncodeRequest(prompt="", **fields).check()  # also where there is no prompt

    async def run(self, backend: Encoding) -> Json | list[Json]:
        """All vectors. The first failure is raised, and ends the others."""

        async def one(at: int, request: EncodeRequest) -> Json:
            began = time.monotonic()
            try:
                made = await backend.encode(request)
            except BoughsError as error:
                raise self._named(error, at) from error.__cause__
            return embedding_json(made, time.monotonic() - began)

        results = await gather(one, self.requests, MOST_AT_ONCE)
        return results if self.is_list else results[0]

    def _named(self, error: BoughsError, at: int) -> BoughsError:
        if not self.is_list:
            return renamed(error, {"prompt": self._name})
        name = f"{self._name}[{at}]"
        return placed(error, {"prompt": name}, name)
