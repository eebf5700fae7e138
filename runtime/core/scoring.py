"""The logprobs of the tokens that requests name: choices to be scored.

All rows that a step computed for such requests go through the output matrix together. This module
knows no tree of choices and no scheduling.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import torch
from torch import Tensor

from boughs.runtime.core.prompt_logprobs import LOGIT_ROWS
from boughs.runtime.core.step import Step


@torch.inference_mode()
def gather_scores(step: Step, hidden: Tensor, logits: Callable[[Tensor], Tensor]) -> None:
    """Append the logprobs of targets that a step's rows predict to their requests' scores.

    Args:
        step: Has been computed.
        hidden: [step.tokens, hidden], in the order of its works.
        logits: Float32 [rows, vocab] of hidden states [rows, hidden].
    """
    wanted: list[tuple[int, list[int], list[float]]] = []  # row, tokens, where they go
    at = 0
    for work in step.works:
        request = work.request
        if request.submit.targets:
            first = request.first_target
            for row in range(first + len(request.scores), work.start + work.count):
                scores: list[float] = []
                request.scores.append(scores)
                if targets := request.submit.targets[row - first]:
                    wanted.append((at + row - work.start, targets, scores))
        at += work.count
    for begin in range(0, len(wanted), LOGIT_ROWS):
        _read(wanted[begin : begin + LOGIT_ROWS], hidden, logits)


def _read(
    wanted: list[tuple[int, list[int], list[float]]],
    hidden: Tensor,
    logits: Callable[[Tensor], Tensor],
) -> None:
    logprobs = logits(hidden[[row for row, _, _ in wanted]]).log_softmax(-1)
    lines = [line for line, (_, ids, _) in enumerate(wanted) for _ in ids]
    ids = [id_ for _, targets, _ in wanted for id_ in targets]
    values = iter(logprobs[lines, ids].tolist())
    for _, targets, scores in wanted:
        scores.extend(islice(values, len(targets)))
