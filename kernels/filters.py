"""Which tokens may be sampled: the filters over a row of logits or probabilities.

They remove tokens and draw none: the random numbers are the sampler's own. `TorchFilters` runs on
every device; `flashinfer_ops` has the same functions fused. This module knows no request.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

TOP_P_CANDIDATES = 1024
"""Most likely tokens in which the nucleus is looked for before all are sorted."""


class Filters(Protocol):
    """The filters, of one kind."""

    def top_k(self, logits: Tensor, k: int) -> Tensor:
        """float32 [vocab], minus infinity but for the k highest, 0 < k < vocab."""
        ...

    def top_p(self, probs: Tensor, p: float) -> Tensor:
        """float32 [vocab], 0 but for the fewest most likely tokens that reach p together.

        What is kept is kept up to a factor, 0 < p < 1.
        """
        ...


class TorchFilters:
    """In plain torch. Ties at a border are broken towards the lower token id."""

    def top_k(self, logits: Tensor, k: int) -> Tensor:
        """See `Filters.top_k`."""
        threshold = logits.topk(k).values[-1]
        above = logits > threshold
        ties = (logits == threshold).nonzero().flatten()[: k - int(above.sum())]
        keep = above.index_fill(0, ties, value=True)
        return logits.masked_fill(~keep, -torch.inf)

    def top_p(self, probs: Tensor, p: float) -> Tensor:
        """See `Filters.top_p`."""
        for candidates in (TOP_P_CANDIDATES, len(probs)):
            values, ids = probs.topk(min(candidates, len(probs)))
            before = values.double().cumsum(0) - values.double()
            keep = before < p
            if not bool(keep[-1]) or len(values) == len(probs):
                break
        return torch.zeros_like(probs).index_copy_(0, ids[keep], values[keep])


TORCH = TorchFilters()
