"""One vector of a prompt's hidden states.

Hidden states are those after the model's last norm, which the logits are made of. This module knows
no tokens and no scheduling.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boughs.runtime.core.request import Request
from boughs.runtime.core.step import Step


@torch.inference_mode()
def pool(step: Step, hidden: Tensor) -> None:
    """Take a step's rows into account for the requests that want an embedding.

    Args:
        step: Has been computed.
        hidden: [step.tokens, hidden], in the order of its works.
    """
    at = 0
    for work in step.works:
        rows = hidden[at : at + work.count]
        at += work.count
        request = work.request
        if request.submit.pooling == "mean":
            # float64, so that chunks of any size sum up to the same float32. A first row begins
            # anew: the request was retracted.
            total = rows.sum(0, dtype=torch.float64)
            request.pooled = (
                total if request.pooled is None or work.start == 0 else request.pooled + total
            )
        elif request.submit.pooling == "last" and work.start + work.count == request.prompt_len:
            request.pooled = rows[-1]


@torch.inference_mode()
def embedding(request: Request) -> bytes | None:
    """The vector of a request whose rows are all computed: float32, in this machine's byte order.

    None where none was asked for.
    """
    pooled = request.pooled
    if pooled is None:
        return None
    if request.submit.pooling == "mean":
        pooled = pooled / request.prompt_len
    vector: bytes = pooled.float().cpu().numpy().tobytes()
    return vector
