"""OpenAI's (older) completions: a text is continued, and choices can be scored.

This module knows no state and no backend.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from boughs.lang.apis.answers import NO_ID, Call, Piece
from boughs.lang.apis.openai_chat import SAMPLING, finish, spent
from boughs.lang.apis.supported import Features
from boughs.lang.errors import BackendError
from boughs.lang.results import ChoiceScore, Scores, TokenLogprob, finite


class OpenAIText:
    """Completions.

    Args:
        client: An `AsyncOpenAI`, or the like.
        model: The model's name.
    """

    features = Features(
        fields=SAMPLING, chat=False, continues=True, many=True, top_logprobs=5, stops=4, scores=True
    )

    def __init__(self, client: Any, model: str) -> None:
        self._client = client
        self.model = model
        self.name = f"OpenAI completions ({model})"
        self.place = str(getattr(client, "base_url", ""))

    async def stream(self, call: Call) -> AsyncGenerator[Piece, None]:
        """The answer in pieces."""
        params = call.params
        request: dict[str, Any] = self.features.sent(params)
        if params.max_new_tokens is not None:
            request["max_tokens"] = params.max_new_tokens
        if params.n > 1:
            request["n"] = params.n
        if call.stop:
            request["stop"] = list(call.stop)
        if call.top_logprobs is not None:
            request["logprobs"] = call.top_logprobs
        stream = await self._client.completions.create(
            model=self.model,
            prompt=call.text,
            stream=True,
            stream_options={"include_usage": True},
            **request,
        )
        async with stream:
            async for chunk in stream:
                for choice in chunk.choices:
                    yield Piece(
                        text=choice.text or "",
                        index=choice.index,
                        logprobs=_logprobs(choice.logprobs),
                        finish=finish(choice.finish_reason),
                    )
                if chunk.usage is not None:
                    yield Piece(spent=spent(chunk.usage))

    async def score(self, prompt: str, choices: list[str]) -> Scores:
        """The logprobs of each choice, from the first token that is not the prompt's own.

        One request: the prompt alone, and with each choice, all echoed and not continued.
        """
        texts = ([prompt] if prompt else []) + [prompt + choice for choice in choices]
        answer = await self._client.completions.create(
            model=self.model, prompt=texts, max_tokens=0, echo=True, logprobs=0, temperature=0
        )
        found = [choice.logprobs for choice in sorted(answer.choices, key=lambda c: c.index)]
        if len(found) != len(texts) or any(one is None or not one.tokens for one in found):
            raise BackendError(f"{self.name} did not echo the choices with logprobs")
        alone = found.pop(0).tokens if prompt else []
        border = min(_shared(alone, one.tokens) for one in found)
        total = spent(answer.usage)
        return Scores(
            choices=[
                ChoiceScore(
                    token_ids=[NO_ID] * (len(one.tokens) - border),
                    logprobs=[finite(lp or 0.0) for lp in one.token_logprobs[border:]],
                )
                for one in found
            ],
            prompt_tokens=total.prompt,
            cached_tokens=total.cached,
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()


def _shared(a: list[str], b: list[str]) -> int:
    """How many tokens two texts begin with alike; at least the last of `b` is not among them."""
    count = 0
    for x, y in zip(a, b[:-1], strict=False):
        if x != y:
            break
        count += 1
    return count


def _logprobs(logprobs: Any) -> list[TokenLogprob] | None:
    if logprobs is None or not logprobs.tokens:
        return None
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    return [
        TokenLogprob(
            logprob=logprob,
            token_id=NO_ID,
            text=text,
            top=[(lp, NO_ID, t) for t, lp in sorted(top.items(), key=lambda kv: -kv[1])]
            if top
            else None,
        )
        for text, logprob, top in zip(logprobs.tokens, logprobs.token_logprobs, tops, strict=True)
    ]
