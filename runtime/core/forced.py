"""Forced tokens whose logprobs are asked for: they are told when their rows have been computed.

They take no step each: one chunk computes them all. This module knows no queue and no grammar.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from boughs.runtime.core.prompt_logprobs import LOGIT_ROWS
from boughs.runtime.core.request import Request
from boughs.runtime.core.sampler import top_logprobs
from boughs.runtime.core.step import Step
from boughs.runtime.messages import Output


def hold(request: Request, tokens: list[int]) -> None:
    """Tell of these tokens, the request's last, only with their logprobs."""
    if tokens:
        output = request.output(ids=tokens, forced=len(tokens), logprobs=[])
        if request.submit.top_logprobs:
            output.top = []
        if request.submit.token_ids_logprob:
            output.given = []
        request.untold = output


def gather(step: Step, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]) -> None:
    """Take the logprobs of tokens that are held, where a step's rows predict them.

    Args:
        step: Has been computed.
        hidden: Its hidden states, float [step.tokens, hidden].
        logits_of: From hidden states [rows, hidden] to logits, float32 [rows, vocab].
    """
    at = 0
    for work in step.works:
        rows = hidden[at : at + work.count]
        at += work.count
        request = work.request
        if request.untold is None:
            continue
        # The row at position p predicts the token at p + 1.
        first = request.first_untold - 1 - work.start
        end = min(work.count, len(request.tokens) - 1 - work.start)
        for begin in range(first, end, LOGIT_ROWS):
            block = rows[begin : min(begin + LOGIT_ROWS, end)]
            _append(request.untold, request, logits_of(block).log_softmax(-1))


def tell(request: Request) -> list[Output]:
    """What was held, if anything: the rows up to the request's last token have been computed."""
    output, request.untold = request.untold, None
    if output is None:
        return []
    output.forward_steps = request.steps
    return [output]


def _append(output: Output, request: Request, logprobs: Tensor) -> None:
    assert output.logprobs is not None, "`hold` made it"
    tokens = output.ids[len(output.logprobs) :][: len(logprobs)]
    ids = torch.tensor(tokens, dtype=torch.int64, device=logprobs.device)
    output.logprobs += logprobs.gather(1, ids[:, None])[:, 0].tolist()
    if output.top is not None:
        output.top += top_logprobs(logprobs, request.submit.top_logprobs)
    if output.given is not None:
        output.given += logprobs[:, request.submit.token_ids_logprob].tolist()
