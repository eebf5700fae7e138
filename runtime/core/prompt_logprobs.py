"""The logprobs of prompts, gathered chunk by chunk as their rows are computed.

They are of the model's own distribution. This module knows no queue.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from boughs.runtime.core.request import Request
from boughs.runtime.core.sampler import top_logprobs
from boughs.runtime.core.step import Step
from boughs.runtime.messages import Output

LOGIT_ROWS = 256
"""Rows whose logits are made at once: 256 rows of 49,152 tokens take 50 MB."""


def gather(step: Step, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]) -> None:
    """Append the logprobs of prompt tokens that a step's rows predict.

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
        start = request.submit.prompt_logprobs_from
        if start is None or request.prompt_logprobs_complete:
            continue
        if start + len(request.prompt_logprobs) == 0:
            request.prompt_logprobs.append(None)
            request.prompt_top.append([])
            request.prompt_given.append([])
        # The row at position p predicts the token at p + 1.
        position = start + len(request.prompt_logprobs)
        end = min(work.start + work.count + 1, request.prompt_len)
        for at_row in range(position - 1 - work.start, end - 1 - work.start, LOGIT_ROWS):
            block = rows[at_row : min(at_row + LOGIT_ROWS, end - 1 - work.start)]
            _append(request, position, logits_of(block))
            position += len(block)


def _append(request: Request, position: int, logits: Tensor) -> None:
    logprobs = logits.log_softmax(-1)
    tokens = request.tokens[position : position + len(logits)]
    ids = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
    request.prompt_logprobs += logprobs.gather(1, ids[:, None])[:, 0].tolist()
    if request.submit.top_logprobs:
        request.prompt_top += top_logprobs(logprobs, request.submit.top_logprobs)
    if request.submit.token_ids_logprob:
        request.prompt_given += logprobs[:, request.submit.token_ids_logprob].tolist()


def attach(request: Request, output: Output) -> Output:
    """Put what was gathered into the request's first output, which is returned."""
    if request.submit.prompt_logprobs_from is not None and request.output_len <= 1:
        output.prompt_logprobs = request.prompt_logprobs
        if request.submit.top_logprobs:
            output.prompt_top = request.prompt_top
        if request.submit.token_ids_logprob:
            output.prompt_given = request.prompt_given
    return output
