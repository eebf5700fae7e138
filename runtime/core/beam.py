"""Beam search: which continuations of which beams go on, and when no better ones can come.

The search is transformers' `generate(num_beams=..., do_sample=False)`, step by step: of all
continuations of all beams the best (1 + ends) * width are looked at; those of the first `width`
that end go into a pool of the `width` best finished ones, and the best `width` that do not end go
on. This module knows no request and no page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from boughs.lang.errors import InvalidRequest
from boughs.lang.sampling import SamplingParams
from boughs.runtime.core.sampler import top_logprobs
from boughs.runtime.messages import Hypothesis

Top = list[tuple[int, float]]


@dataclass(slots=True)
class Beam:
    """An output that may go on.

    Attributes:
        ids: Its tokens.
        score: The sum of their logprobs, penalties and biases included.
        logprobs: The model's own, one a token; kept where they are asked for.
        top: The most likely tokens at each position; kept where they are asked for.
    """

    ids: list[int] = field(default_factory=list)
    score: float = 0.0
    logprobs: list[float] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)


class BeamSearch:
    """One search.

    Args:
        params: With `beam_width`.
        prompt: Its token ids; `repetition_penalty` counts them.
        ends: Tokens that end an output.
        most: Tokens after which an output ends in any case.
        logprobs: Whether outputs carry logprobs.
        top: How many alternatives at each position they carry.

    Attributes:
        width: How many beams go on after a step, at most.
        beams: Those that go on, best first. Before the first step: one without tokens.
        closed: Which of the beams before the last step have a continuation that ended and is among
            the best, by index.
        over: Whether the search has ended.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        ends: frozenset[int],
        most: int,
        *,
        logprobs: bool = False,
        top: int = 0,
    ) -> None:
        assert params.beam_width is not None, "a search has a width"
        self.width = params.beam_width
        self.beams = [Beam()]
        self.closed: set[int] = set()
        self.over = False
        self._params = params
        self._prompt = prompt
        self._ends = ends
        self._most = most
        self._logprobs = logprobs
        self._top = top
        self._finished: list[Hypothesis] = []

    @torch.inference_mode()
    def advance(self, logits: Tensor) -> list[int]:
        """Take a step.

        Args:
            logits: float32 [beams, vocab].

        Returns:
            Of each beam now, the index of the one before that it continues.

        Raises:
            InvalidRequest: Every token is forbidden, before any output has ended.
        """
        raw = logits.log_softmax(-1)
        scores = torch.tensor([beam.score for beam in self.beams], dtype=raw.dtype)
        # A search of one beam is greedy decoding, in which penalties apply to logits.
        made = self._processed(logits).log_softmax(-1) if self.width == 1 else self._processed(raw)
        totals = (made + scores[:, None]).flatten()
        count = min(max(2, 1 + len(self._ends)) * self.width, len(totals))
        values, places = totals.topk(count)
        length = len(self.beams[0].ids) + 1
        parents: list[int] = []
        going: list[Beam] = []
        ended: list[tuple[Hypothesis, int]] = []
        for rank, (score, at) in enumerate(zip(values.tolist(), places.tolist(), strict=True)):
            if math.isinf(score):
                break  # it cannot be continued so
            parent, token = divmod(at, raw.shape[-1])
            if token in self._ends or length == self._most:
                if rank < self.width:
                    ended.append((self._hypothesis(parent, token, score, raw), parent))
            elif len(going) < self.width:
                going.append(self._continued(parent, token, score, raw))
                parents.append(parent)
        self._keep(ended)
        if not going and not self._finished:
            raise self._nothing_left(length - 1)
        self.beams = going
        self.over = self._is_over(length)
        return parents

    def best(self) -> list[Hypothesis]:
        """The `n` best finished outputs, best first."""
        return self._finished[: self._params.n]

    def _processed(self, scores: Tensor) -> Tensor:
        """Scores with biases and penalties, in transformers' order."""
        params = self._params
        made = scores.clone()
        if params.logit_bias:
            ids = torch.tensor(list(params.logit_bias))
            made[:, ids] += torch.tensor(list(params.logit_bias.values()), dtype=made.dtype)
        if params.repetition_penalty != 1.0:
            for row, beam in zip(made, self.beams, strict=True):
                ids = torch.tensor(sorted({*self._prompt, *beam.ids}))
                old, penalty = row[ids], params.repetition_penalty
                row[ids] = torch.where(old > 0, old / penalty, old * penalty)
        if len(self.beams[0].ids) < params.min_new_tokens and self._ends:
            made[:, sorted(self._ends)] = -torch.inf
        return made

    def _continued(self, parent: int, token: int, score: float, raw: Tensor) -> Beam:
        before = self.beams[parent]
        beam = Beam([*before.ids, token], score)
        if self._logprobs:
            beam.logprobs = [*before.logprobs, float(raw[parent, token])]
        if self._top:
            beam.top = [*before.top, *top_logprobs(raw[parent : parent + 1], self._top)]
        return beam

    def _hypothesis(self, parent: int, token: int, score: float, raw: Tensor) -> Hypothesis:
        beam = self._continued(parent, token, score, raw)
        stops = token in self._ends
        return Hypothesis(
            ids=beam.ids,
            sum_logprob=score,
            score=score / len(beam.ids) ** self._params.length_penalty,
            finish="stop" if stops else "length",
            matched=token if stops else None,
            logprobs=beam.logprobs if self._logprobs else None,
            top=beam.top if self._top else None,
        )

    def _keep(self, ended: list[tuple[Hypothesis, int]]) -> None:
        """Of all finished outputs the `width` best; of equals the one that was there before."""
        made = self._finished + [hypothesis for hypothesis, _ in ended]
        self._finished = sorted(made, key=lambda h: -h.score)[: self.width]
        kept = {id(hypothesis) for hypothesis in self._finished}
        self.closed = {parent for hypothesis, parent in ended if id(hypothesis) in kept}

    def _nothing_left(self, length: int) -> InvalidRequest:
        least = self._params.min_new_tokens
        names = f"min_new_tokens={least} forbids" if length < least else "the model itself forbids"
        return InvalidRequest(
            f"no token is left to search after {length} output tokens: {names} all of them; "
            "allow more"
        )

    def _is_over(self, length: int) -> bool:
        """Whether no beam can go on, or none is thought to become better than the finished."""
        if length == self._most or not self.beams:
            return True
        if len(self._finished) < self.width:
            return False
        params = self._params
        if params.early_stopping is True or self.width == 1:
            return True
        # What the best beam would score if it ended here; or, where length pays and the search is
        # to miss nothing, at the greatest length.
        hopeful = params.early_stopping == "never" and params.length_penalty > 0
        at_length = self._most if hopeful else length
        hope: float = self.beams[0].score / at_length**params.length_penalty
        return hope <= self._finished[-1].score
