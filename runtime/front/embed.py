"""A prompt as a vector: what is asked of the core, and what its answer means.

This module knows no text and no model.
"""

from __future__ import annotations

import numpy as np

from boughs.lang.errors import RequestAborted
from boughs.lang.requests import EncodeRequest
from boughs.lang.results import Embedding
from boughs.lang.sampling import SamplingParams
from boughs.runtime.messages import Submit

from .running import ABORTED, Running


async def embed(run: Running, rid: str, ids: list[int], request: EncodeRequest) -> Embedding:
    """The vector of a prompt.

    Args:
        run: Runs it.
        rid: The request's id.
        ids: The prompt's tokens.
        request: How it is pooled.

    Raises:
        RequestAborted: It was aborted.
        RequestTimeout, BoughsError: As `Running.next`.
    """
    run.submit(
        Submit(
            key=0,
            prompt_ids=ids,
            params=SamplingParams(max_new_tokens=0, seed=0, priority=request.priority),
            namespace=request.cache_salt or "",
            pooling=request.pooling,
        )
    )
    event = await run.next()
    if event is None:
        raise RequestAborted(ABORTED)
    _, output, cached_tokens = event
    assert output.embedding is not None, "the core answers a submission with pooling once"
    vector = np.frombuffer(output.embedding, np.float32)
    return Embedding(
        rid=rid,
        vector=(normalized(vector) if request.normalize else vector).tolist(),
        prompt_tokens=len(ids),
        cached_tokens=cached_tokens,
    )


def normalized(vector: np.ndarray) -> np.ndarray:
    """`vector`, float32 [hidden], scaled to length 1; one of zeros as it is."""
    wide = vector.astype(np.float64)
    length = float(np.linalg.norm(wide))
    return vector if length == 0 else (wide / length).astype(np.float32)
