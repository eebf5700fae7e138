"""How `select` decides between choices whose tokens were scored.

The interface is SGLang's, so that a method written for it runs here: subclass
`ChoicesSamplingMethod`. Entries are (logprob, token id, None). This module knows no backend.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from boughs.lang.errors import BackendError, InvalidRequest
from boughs.lang.results import Scores

Entry = tuple[float, int, str | None]
"""A token's natural logprob, its id, and None in the place of its text."""


@dataclass
class ChoicesDecision:
    """The choice, and what `get_meta_info` tells about it."""

    decision: str
    meta_info: dict[str, Any] | None = None


class ChoicesSamplingMethod(ABC):
    """A way to decide."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether each choice must be scored without the prompt too."""
        return False

    @abstractmethod
    def __call__(
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Entry]],
        output_token_logprobs: list[list[Entry]],
        unconditional_token_logprobs: list[list[Entry]] | None = None,
    ) -> ChoicesDecision:
        """Decide.

        Args:
            choices: The texts.
            normalized_prompt_logprobs: The mean logprob of each choice's tokens.
            input_token_logprobs: Each choice's tokens, from the first on at which any choice
                differs from the prompt alone.
            output_token_logprobs: Empty lists, as nothing is generated.
            unconditional_token_logprobs: The same tokens without the prompt, if asked for.
        """


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The highest mean logprob a token."""

    def __call__(  # noqa: D102 - the base class says it
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Entry]],
        output_token_logprobs: list[list[Entry]],
        unconditional_token_logprobs: list[list[Entry]] | None = None,  # noqa: ARG002 - interface
    ) -> ChoicesDecision:
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        return ChoicesDecision(choices[_argmax(normalized_prompt_logprobs)], meta)


class TotalLikelihood(ChoicesSamplingMethod):
    """The most likely text: the highest sum of logprobs.

    Each further token makes a choice less likely, so that short ones win, and one that another
    begins with always does.
    """

    def __call__(  # noqa: D102 - the base class says it
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Entry]],
        output_token_logprobs: list[list[Entry]],
        unconditional_token_logprobs: list[list[Entry]] | None = None,  # noqa: ARG002 - interface
    ) -> ChoicesDecision:
        sums = [math.fsum(entry[0] for entry in entries) for entries in input_token_logprobs]
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        return ChoicesDecision(choices[_argmax(sums)], meta)


class GreedyTokenSelection(ChoicesSamplingMethod):
    """The choice that greedy decoding among the choices would write, token by token.

    Where a choice is shorter than the longest, its missing tokens count as its mean.
    """

    def __call__(  # noqa: D102 - the base class says it
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Entry]],
        output_token_logprobs: list[list[Entry]],
        unconditional_token_logprobs: list[list[Entry]] | None = None,  # noqa: ARG002 - interface
    ) -> ChoicesDecision:
        width = max(len(entries) for entries in input_token_logprobs)
        matrix = [
            [entry[0] for entry in entries] + [mean] * (width - len(entries))
            for entries, mean in zip(input_token_logprobs, normalized_prompt_logprobs, strict=True)
        ]
        left = list(range(len(choices)))
        for at in range(width):
            best = max(matrix[i][at] for i in left)
            left = [i for i in left if matrix[i][at] == best]
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        meta["greedy_logprob_matrix"] = matrix
        return ChoicesDecision(choices[left[0]], meta)


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The highest mean gain of a token's logprob over the one that it has without the prompt."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """It does."""
        return True

    def __call__(  # noqa: D102 - the base class says it
        self,
        *,
        choices: list[str],
        normalized_prompt_logprobs: list[float],
        input_token_logprobs: list[list[Entry]],
        output_token_logprobs: list[list[Entry]],
        unconditional_token_logprobs: list[list[Entry]] | None = None,
    ) -> ChoicesDecision:
        if unconditional_token_logprobs is None:
            raise InvalidRequest("this choice method needs unconditional logprobs")
        gains = [
            fmean(a[0] - b[0] for a, b in zip(given, alone, strict=True))
            for given, alone in zip(input_token_logprobs, unconditional_token_logprobs, strict=True)
        ]
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        meta["unconditional_token_logprobs"] = unconditional_token_logprobs
        meta["normalized_unconditional_prompt_logprobs"] = gains
        return ChoicesDecision(choices[_argmax(gains)], meta)


token_length_normalized = TokenLengthNormalized()
total_likelihood = TotalLikelihood()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()


def decide(method: ChoicesSamplingMethod, choices: list[str], scores: Scores) -> ChoicesDecision:
    """What `method` decides, given what a backend answered; or what that has chosen by itself.

    Raises:
        BackendError: The scores do not belong to these choices.
        InvalidRequest: The method did not return a `ChoicesDecision` for one of the choices.
    """
    if scores.chosen is not None:
        return ChoicesDecision(choices[scores.chosen])
    if len(scores.choices) != len(choices):
        raise BackendError(f"{len(choices)} choices were to be scored, not {len(scores.choices)}")
    if not all(score.logprobs for score in scores.choices):
        raise BackendError("the backend scored no token of a choice")
    alone = None
    if method.requires_unconditional_logprobs:
        if any(score.unconditional is None for score in scores.choices):
            raise BackendError("the backend gave no unconditional logprobs")
        alone = [_entries(s.token_ids, s.unconditional or []) for s in scores.choices]
    decision = method(
        choices=list(choices),
        normalized_prompt_logprobs=[fmean(score.logprobs) for score in scores.choices],
        input_token_logprobs=[_entries(s.token_ids, s.logprobs) for s in scores.choices],
        output_token_logprobs=[[] for _ in choices],
        unconditional_token_logprobs=alone,
    )
    if not isinstance(decision, ChoicesDecision) or decision.decision not in choices:
        raise InvalidRequest(
            f"choices_method: {type(method).__name__} must return a ChoicesDecision for one of "
            f"the choices, got {decision!r:.80}",
            "choices_method",
        )
    return decision


def probabilities(choices: list[str], scores: Scores) -> dict[str, float]:
    """How likely each choice is, given that it is one of them: they sum to one.

    A choice's weight is the probability of all its tokens, whatever method decided.
    """
    sums = {
        choice: math.fsum(score.logprobs)
        for choice, score in zip(choices, scores.choices, strict=True)
    }
    best = max(sums.values())
    weights = {choice: math.exp(total - best) for choice, total in sums.items()}
    whole = math.fsum(weights.values())
    return {choice: weight / whole for choice, weight in weights.items()}


def _entries(ids: list[int], logprobs: list[float]) -> list[Entry]:
    return [(logprob, token, None) for token, logprob in zip(ids, logprobs, strict=True)]


def _argmax(values: list[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _meta(means: list[float], given: list[list[Entry]], made: list[list[Entry]]) -> dict[str, Any]:
    return {
        "normalized_prompt_logprobs": means,
        "input_token_logprobs": given,
        "output_token_logprobs": made,
    }
