"""Decode steps as recorded runs: the device repeats them without the host's launching each kernel.

A recording has a fixed number of rows and fixed memory. A step takes the smallest that holds it;
the rows to spare are decodes of nobody on page 0. This module knows no request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from boughs.kernels.accelerator import Accelerator, Recording
from boughs.kernels.flashinfer import FlashInferBackend
from boughs.kernels.staging import Staging
from boughs.runtime.core.inputs import StepInputs

ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Rows of the recordings that there are, up to what runs at once."""

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Hidden states [T, hidden] of tokens, positions and slots [T]."""


class DecodeGraphs:
    """The recordings of one model.

    Args:
        forward: The model over its cache, with `attention` planned.
        attention: The backend that it uses.
        accelerator: The device.
        most: Requests that decode at once.
        pages: The most that one request lists.
        num_pages: Of the pool.
        page_size: Tokens per page.
    """

    def __init__(
        self,
        forward: Forward,
        attention: FlashInferBackend,
        accelerator: Accelerator,
        *,
        most: int,
        pages: int,
        num_pages: int,
        page_size: int,
    ) -> None:
        self._rows = _sizes(most)
        self._attention = attention
        self._num_pages = num_pages
        self._staging = Staging(accelerator, torch.int64)
        memory = torch.zeros(3 * self._rows[-1], dtype=torch.int64, device=accelerator.device)
        attention.prepare_graphs(self._rows, pages)
        self._inputs = {rows: memory[: 3 * rows] for rows in self._rows}
        self._recordings: dict[int, Recording] = {}
        for rows in reversed(self._rows):  # the largest takes the memory that all others reuse
            self._stage(StepInputs.padding(rows, page_size), rows)
            parts = self._inputs[rows].view(3, rows).unbind()
            self._recordings[rows] = accelerator.record(partial(forward, *parts))

    @property
    def rows(self) -> Sequence[int]:
        """The rows of each recording, ascending."""
        return self._rows

    def takes(self, inputs: StepInputs) -> bool:
        """Whether a step is to be replayed: decodes alone, not too many, and no cascade."""
        batch = inputs.batch
        return (
            batch.num_rows == batch.num_requests <= self._rows[-1]
            and bool((batch.q_lens == 1).all())
            and not self._attention.shares(batch)
        )

    def forward(self, inputs: StepInputs) -> Tensor:
        """Hidden states [T, hidden] of a step that `takes` says yes to."""
        count = inputs.batch.num_requests
        rows = self._rows[bisect_left(self._rows, count)]
        self._stage(inputs.padded(rows), rows)
        recording = self._recordings[rows]
        recording.replay()
        return recording.output[:count].clone()  # the next replay writes over it

    def _stage(self, inputs: StepInputs, rows: int) -> None:
        """Put what a replay reads where it reads it."""
        self._attention.plan_graph(inputs.batch, self._num_pages)
        self._staging.upload(inputs.arrays, into=self._inputs[rows])


def _sizes(most: int) -> list[int]:
    """The rows to record for: those there are up to `most`, and `most` itself if it is one more."""
    return [rows for rows in ROWS if rows < most] + ([most] if most <= ROWS[-1] else [])
