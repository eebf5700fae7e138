"""The numbers of a step, from its works to the model's device.

This module knows no kernel and no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from boughs.kernels.batch import AttentionBatch
from boughs.runtime.core.step import Step, Work


@dataclass(frozen=True)
class StepInputs:
    """What a forward pass reads, on the host.

    Attributes:
        batch: Who asks, and which pages it sees.
        ids: int64 [T]: tokens.
        positions: int64 [T]: of each in its request.
        slots: int64 [T]: rows of the cache that their keys and values go to.
    """

    batch: AttentionBatch
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    slots: NDArray[np.int64]

    @classmethod
    def from_step(cls, step: Step, page_size: int) -> StepInputs:
        """Of the works of a step, in their order."""
        works = step.works
        tables = [_pages(work) for work in works]
        return cls(
            batch=AttentionBatch.from_requests(
                tables,
                [work.start + work.count for work in works],
                [work.count for work in works],
                page_size,
            ),
            ids=np.fromiter(
                chain.from_iterable(
                    work.request.tokens[work.start : work.start + work.count] for work in works
                ),
                dtype=np.int64,
                count=step.tokens,
            ),
            positions=np.concatenate(
                [np.arange(work.start, work.start + work.count, dtype=np.int64) for work in works]
            ),
            slots=np.concatenate(
                [
                    _slots(np.asarray(table, dtype=np.int64), work, page_size)
                    for table, work in zip(tables, works, strict=True)
                ]
            ),
        )

    @classmethod
    def padding(cls, rows: int, page_size: int) -> StepInputs:
        """`rows` decodes of nobody, on page 0."""
        zeros = np.zeros(rows, dtype=np.int64)
        nobody = AttentionBatch.from_requests([], [], [], page_size)
        return cls(nobody.padded(rows), zeros, zeros, zeros)

    def padded(self, rows: int) -> StepInputs:
        """With decodes of nobody added, on page 0: a step of decodes alone, `rows` in all."""
        zeros = np.zeros(rows - len(self.ids), dtype=np.int64)
        return StepInputs(
            self.batch.padded(rows),
            np.concatenate((self.ids, zeros)),
            np.concatenate((self.positions, zeros)),
            np.concatenate((self.slots, zeros)),
        )

    @property
    def arrays(self) -> list[NDArray[np.int64]]:
        """Tokens, positions and slots."""
        return [self.ids, self.positions, self.slots]


def _pages(work: Work) -> Sequence[int]:
    assert work.request.sequence is not None
    return work.request.sequence.pages


def _slots(table: NDArray[np.int64], work: Work, page_size: int) -> NDArray[np.int64]:
    positions = np.arange(work.start, work.start + work.count)
    slots: NDArray[np.int64] = table[positions // page_size] * page_size + positions % page_size
    return slots
