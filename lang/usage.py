"""What requests cost: tokens, steps of the model and time.

Sums: a variable's figures are its request's, a state's are those of its requests and of its
branches', a batch's those of its items. Each request is counted once, in the state that made it.
This module knows no program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from boughs.lang.results import Answer, Scores


@dataclass
class Usage:
    """What requests asked for and what they cost, added up.

    Each request counts its whole prompt, most of which a cache may have had: what branches of a
    fork share is part of each one's prompt and of its cached tokens, and counts once among
    `computed_tokens`.

    Attributes:
        prompt_tokens: Of all prompts.
        cached_tokens: Of these, the ones that a cache already had.
        completion_tokens: Generated, those of a trimmed stop and of discarded choices among them.
        requests: How many there were, those that only prefill or score among them.
        forced_tokens: Of the generated tokens, the ones that a grammar forced, without a step each.
        forward_steps: Steps of the model that computed tokens of these requests: one that does so
            for several of them (or for several choices of one) counts for each. 0 from a backend
            that does not tell.
        seconds: The time that the requests took, added up: those of branches that ran at the same
            time count each. Two usages are equal whatever their times.
        spec_hits: Gens that an API model had written already (`num_api_spec_tokens`), at no cost.
        spec_misses: Gens before which it had written on, but something else.
        call_hits: Requests that were answered from disk (`cache=True`), at no cost.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0
    forced_tokens: int = 0
    forward_steps: int = 0
    seconds: float = field(default=0.0, repr=False, compare=False)
    spec_hits: int = field(default=0, repr=False)
    spec_misses: int = field(default=0, repr=False)
    call_hits: int = field(default=0, repr=False)

    @classmethod
    def of_answers(cls, answers: Iterable[Answer], seconds: float = 0.0) -> Self:
        """Of one request, by its answers: its prompt counts once."""
        answers = list(answers)
        if not answers:
            return cls()
        if _kept(answers[0].extra):
            return cls(call_hits=1, seconds=seconds)
        how = (answers[0].extra or {}).get("speculation")
        if how == "hit":
            return cls(spec_hits=1, seconds=seconds)
        return cls(
            prompt_tokens=answers[0].prompt_tokens,
            cached_tokens=answers[0].cached_tokens,
            completion_tokens=sum(a.completion_tokens + a.discarded_tokens for a in answers),
            requests=1,
            forced_tokens=sum(a.forced_tokens for a in answers),
            forward_steps=sum(a.forward_steps for a in answers),
            seconds=seconds,
            spec_misses=int(how == "miss"),
        )

    @classmethod
    def of_scores(cls, scores: Scores, seconds: float = 0.0) -> Self:
        """Of one request that scored choices."""
        if _kept(scores.extra):
            return cls(call_hits=1, seconds=seconds)
        return cls(
            prompt_tokens=scores.prompt_tokens,
            cached_tokens=scores.cached_tokens,
            completion_tokens=scores.completion_tokens,
            requests=1,
            forward_steps=scores.forward_steps,
            seconds=seconds,
        )

    @classmethod
    def total(cls, parts: Iterable[Usage]) -> Self:
        """The sum of many."""
        whole = cls()
        for part in parts:
            for name in _NAMES:
                setattr(whole, name, getattr(whole, name) + getattr(part, name))
        return whole

    def __add__(self, other: Usage) -> Usage:
        return Usage.total((self, other))

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were computed: no cache had them."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def hit_rate(self) -> float:
        """The share of the prompt tokens that a cache had; 0 of none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


_NAMES = tuple(one.name for one in fields(Usage))


def _kept(extra: Mapping[str, Any] | None) -> bool:
    """Whether an answer was on disk."""
    return (extra or {}).get("call_cache") == "hit"
