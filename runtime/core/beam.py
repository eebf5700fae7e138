"""Beam search: which continuations of which beams go on, and when no better ones can come.

The search is transformers' `generate(num_beams=..., do_sample=False)`, step by step: of all
continuations of all beams the best (1 + ends) * width are looked at; those of the first `width`
that end go into a pool of the `width` best finished ones, and the best `width` that do not end go
on. A beam ends with a token that ends outputs, with a stop in its text, or where its grammar is
complete. This module knows no request and no page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from boughs.kernels.bitmask import Bits
from boughs.runtime.constraints.matcher import Matcher
from boughs.runtime.core.beam_text import BeamText
from boughs.runtime.core.sampler import (
    RowState,
    add_bias,
    forbid_tokens,
    nothing_left,
    penalize,
    top_logprobs,
)
from boughs.runtime.messages import Hypothesis

Top = list[tuple[int, float]]


@dataclass(slots=True)
class Beam:
    """An output that may go on.

    Attributes:
        row: What its penalties and lists need.
        ids: Its tokens.
        score: The sum of their logprobs, penalties and biases included.
        matcher: Its grammar, if it has one.
        text: Its text, where stops are looked for in it.
        logprobs: The model's own, one a token; kept where they are asked for.
        top: The most likely tokens at each position; kept where they are asked for.
        given: The logprobs of given tokens at each position; kept where they are asked for.
    """

    row: RowState
    ids: list[int] = field(default_factory=list)
    score: float = 0.0
    matcher: Matcher | None = None
    text: BeamText | None = None
    logprobs: list[float] = field(default_factory=list)
    top: list[Top] = field(default_factory=list)
    given: list[list[float]] = field(default_factory=list)


class BeamSearch:
    """One search.

    Args:
        row: Its parameters, with `beam_width`, and what the prompt makes of them.
        most: Tokens after which an output ends in any case.
        logprobs: Whether outputs carry logprobs.
        top: How many alternatives at each position they carry.
        given: Tokens whose logprobs they carry at each position.

    Attributes:
        width: How many beams go on after a step, at most.
        beams: Those that go on, best first. Before the first step: one without tokens.
        closed: Which of the beams before the last step have a continuation that ended and is among
            the best, by index.
        over: Whether the search has ended.
    """

    def __init__(
        self,
        row: RowState,
        most: int,
        *,
        logprobs: bool = False,
        top: int = 0,
        given: Sequence[int] = (),
    ) -> None:
        assert row.params.beam_width is not None, "a search has a width"
        self.width = row.params.beam_width
        self.beams = [Beam(row)]
        self.closed: set[int] = set()
        self.over = False
        self._params = row.params
        self._ends = row.ends
        self._most = most
        self._logprobs = logprobs
        self._top = top
        self._given = list(given)
        self._finished: list[Hypothesis] = []

    def begin(self, matcher: Matcher | None, text: BeamText | None) -> None:
        """Hold outputs to a grammar, or look for stops in their text, before the first step.

        Args:
            matcher: At its start.
            text: Empty.
        """
        (beam,) = self.beams
        beam.matcher, beam.text = matcher, text

    @torch.inference_mode()
    def advance(self, logits: Tensor, masks: Sequence[Bits | None] | None = None) -> list[int]:
        """Take a step.

        Args:
            logits: float32 [beams, vocab], on the CPU.
            masks: Of each beam, the tokens that its grammar allows, if it has one.

        Returns:
            Of each beam now, the index of the one before that it continues.

        Raises:
            InvalidRequest: Every token is forbidden before any output has ended; or a stop pattern
                takes too long.
            GrammarError: A mask took more work than it may.
        """
        if masks is None:
            masks = [None] * len(self.beams)
        raw = logits.log_softmax(-1)
        scores = torch.tensor([beam.score for beam in self.beams], dtype=raw.dtype)
        # A search of one beam is greedy decoding, in which penalties apply to logits.
        alone = self.width == 1
        made = self._processed(logits if alone else raw, masks)
        if alone:
            made = made.log_softmax(-1)
        totals = (made + scores[:, None]).flatten()
        count = min(max(2, 1 + len(self._ends)) * self.width, len(totals))
        values, places = totals.topk(count)
        parents: list[int] = []
        going: list[Beam] = []
        ended: list[tuple[Hypothesis, int]] = []
        for rank, (score, at) in enumerate(zip(values.tolist(), places.tolist(), strict=True)):
            if not score > -math.inf:
                break  # it cannot be continued so
            if rank >= self.width and len(going) == self.width:
                break
            parent, token = divmod(at, raw.shape[-1])
            beam = self._continued(parent, token, score, raw)
            finish = self._finish(beam)
            if finish is None and len(going) < self.width:
                going.append(beam)
                parents.append(parent)
            elif finish is not None and rank < self.width:
                ended.append((self._hypothesis(beam, finish), parent))
        self._keep(ended)
        length = len(self.beams[0].ids)
        if not going and not self._finished:
            constrained = self.beams[0].matcher is not None
            raise nothing_left(self.beams[0].row, length, constrained=constrained)
        self.beams = going
        self.over = self._is_over(length + 1)
        return parents

    def best(self) -> list[Hypothesis]:
        """The `n` best finished outputs, best first; fewer where there are no more."""
        return self._finished[: self._params.n]

    def _processed(self, scores: Tensor, masks: Sequence[Bits | None]) -> Tensor:
        """Scores [beams, vocab] with biases, penalties and what is forbidden, as transformers."""
        made = scores.clone()
        add_bias(made, self._params)
        for row, beam, mask in zip(made, self.beams, masks, strict=True):
            if beam.matcher is not None:
                beam.matcher.check()  # its mask may have met its budget
            penalize(row, beam.row)
            forbid_tokens(row, beam.row, len(beam.ids), mask)
        return made

    def _continued(self, parent: int, token: int, score: float, raw: Tensor) -> Beam:
        before = self.beams[parent]
        beam = Beam(before.row.fork(), [*before.ids, token], score)
        beam.row.note_output(token)
        if before.matcher is not None:
            beam.matcher = before.matcher.fork()
            beam.matcher.accept(token)
        if before.text is not None:
            beam.text = before.text.after(token, len(beam.ids))
        if self._logprobs:
            beam.logprobs = [*before.logprobs, float(raw[parent, token])]
        if self._top:
            beam.top = [*before.top, *top_logprobs(raw[parent : parent + 1], self._top)]
        if self._given:
            beam.given = [*before.given, raw[parent, self._given].tolist()]
        return beam

    def _finish(self, beam: Beam) -> str | None:
        """Why a beam has ended with its last token, if it has."""
        if beam.ids[-1] in self._ends:
            return "stop"
        if beam.matcher is not None and beam.matcher.complete:
            return "stop"
        if beam.text is not None and beam.text.stopped:
            return "stop"
        return "length" if len(beam.ids) == self._most else None

    def _hypothesis(self, beam: Beam, finish: str) -> Hypothesis:
        matcher, last = beam.matcher, beam.ids[-1]
        may_end = matcher is not None and (matcher.complete or matcher.accepting)
        return Hypothesis(
            ids=beam.ids,
            sum_logprob=beam.score,
            score=beam.score / len(beam.ids) ** self._params.length_penalty,
            finish=finish,
            matched=last if last in self._ends else None,
            incomplete=finish == "length" and matcher is not None and not may_end,
            weaker=finish == "stop" and may_end and matcher is not None and matcher.weaker,
            logprobs=beam.logprobs if self._logprobs else None,
            top=beam.top if self._top else None,
            given=beam.given if self._given else None,
        )

    def _keep(self, ended: list[tuple[Hypothesis, int]]) -> None:
        """Of all finished outputs the `width` best; of equals the one that was there before."""
        made = self._finished + [hypothesis for hypothesis, _ in ended]
        self._finished = sorted(made, key=lambda h: -h.score)[: self.width]
        kept = {id(hypothesis) for hypothesis in self._finished}
        self.closed = {parent for hypothesis, parent in ended if id(hypothesis) in kept}

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
