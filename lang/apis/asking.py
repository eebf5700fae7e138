"""`select` by asking: where an API gives no logprobs of a given text, its model is asked to choose.

The question is part of the request and not of the state. What comes is the model's own choice at
the API's own temperature; there are no probabilities. This module knows no API.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from boughs.lang.apis import messages
from boughs.lang.apis.answers import Call, Piece, Spent
from boughs.lang.apis.supported import Features
from boughs.lang.errors import BackendError, RequestAborted
from boughs.lang.requests import ScoreRequest
from boughs.lang.results import Scores
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Segment

SPARE_TOKENS = 64
"""What an answer may have beyond its choice, where the API wants a limit."""


async def ask(
    pieces: Callable[[Call], AsyncGenerator[Piece, None]],
    request: ScoreRequest,
    prompt: list[Segment],
    *,
    features: Features,
    api: str,
    tries: int,
) -> Scores:
    """The choice that the model makes when it is asked to.

    Args:
        pieces: Asks the API.
        request: What to choose from.
        prompt: Its prompt's segments.
        features: What the API can do.
        api: Its name, for errors.
        tries: How often to ask at most.

    Raises:
        BackendError: No answer was one of the choices.
    """
    call = _question(request, prompt, features, api)
    total, text = Spent(), ""
    for attempt in range(1, tries + 1):
        text, spent = "", Spent(known=False)
        async with aclosing(pieces(call)) as answer:
            async for piece in answer:
                text += piece.text
                spent = piece.spent or spent
                if piece.finish is not None and piece.finish.type == "abort":
                    raise RequestAborted(f"{api}: {piece.finish.message}")
        total += spent
        chosen = match(text, request.choices)
        if chosen is not None:
            return Scores(
                choices=[],
                prompt_tokens=total.prompt,
                cached_tokens=total.cached,
                completion_tokens=total.completion,
                rendered=messages.rendered(prompt),
                chosen=chosen,
                extra={"tries": attempt, **({} if total.known else {"usage_known": False})},
            )
    raise BackendError(
        f"select: {api} was asked {tries} times and wrote none of {request.choices!r:.200}; at "
        f"last {text[:80]!r}"
    )


def match(answer: str, choices: list[str]) -> int | None:
    """The index of the choice that an answer is.

    An answer is a choice if they are equal but for space, quotes and a full stop around them, or
    else for capitals too, or else if it begins with the choice and goes on with another word. Of
    several the longest counts; of equal ones, none.
    """
    bare = _bare(answer)
    kept = _only([i for i, choice in enumerate(choices) if _bare(choice) == bare], choices)
    if kept is not None:
        return kept
    folded = bare.casefold()
    keys = [_bare(choice).casefold() for choice in choices]
    kept = _only([i for i, key in enumerate(keys) if key == folded], choices)
    if kept is not None:
        return kept
    return _only([i for i, key in enumerate(keys) if key and _goes_on(folded, key)], choices)


def _goes_on(answer: str, key: str) -> bool:
    return answer.startswith(key) and not answer[len(key) : len(key) + 1].isalnum()


def _only(found: list[int], choices: list[str]) -> int | None:
    longest = max((len(_bare(choices[i])) for i in found), default=0)
    best = [i for i in found if len(_bare(choices[i])) == longest]
    texts = {choices[i] for i in best}
    return best[0] if len(texts) == 1 else None


def _bare(text: str) -> str:
    return text.strip().strip("\"'`*").removesuffix(".").strip()


def _question(request: ScoreRequest, prompt: list[Segment], features: Features, api: str) -> Call:
    said = messages.conversation(prompt, api)
    lines = [
        "Answer with exactly one of the following texts and nothing else:",
        *(f"- {choice.strip()}" for choice in request.choices),
    ]
    if said.said and not features.continues:
        lines.append(f"It goes on where your answer has begun: {said.said!r}")
        said = messages.Conversation(said.messages)
    limit = None
    if features.needs_limit:
        limit = SPARE_TOKENS + max(len(choice.encode()) for choice in request.choices)
    return Call(SamplingParams(max_new_tokens=limit), said.ask("\n".join(lines)))
