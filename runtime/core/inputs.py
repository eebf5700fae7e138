"""The numbers of a step, from its works to the model's device.

This module knows no kernel and no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boughs.kernels.batch import AttentionBatch
from boughs.runtime.core.step import Step, Work

Ints = NDArray[np.int64]


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
    ids: Ints
    positions: Ints
    slots: Ints

    @classmethod
    def from_step(cls, step: Step, page_size: int) -> StepInputs:
        """Of the works of a step, in their order."""
        works = step.works
        tables = [_pages(work) for work in works]
        one_each = step.tokens == len(works)
        ids, positions, slots = (_of_ones if one_each else _of_many)(works, tables, page_size)
        return cls(
            batch=AttentionBatch.from_requests(
                tables,
                [work.start + work.count for work in works],
                [work.count for work in works],
                page_size,
            ),
            ids=ids,
            positions=positions,
            slots=slots,
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
    def arrays(self) -> list[Ints]:
        """Tokens, positions and slots."""
        return [self.ids, self.positions, self.slots]


def _pages(work: Work) -> Sequence[int]:
    assert work.request.sequence is not None
    return work.request.sequence.pages


def _of_ones(works: list[Work], tables: list[Sequence[int]], page_size: int) -> list[Ints]:
    """Tokens, positions and slots of works of one token each: so few that lists are the fastest."""
    slots = [
        table[work.start // page_size] * page_size + work.start % page_size
        for work, table in zip(works, tables, strict=True)
    ]
    ids = [work.request.tokens[work.start] for work in works]
    return [np.array(made, np.int64) for made in (ids, [work.start for work in works], slots)]


def _of_many(works: list[Work], tables: list[Sequence[int]], page_size: int) -> list[Ints]:
    """Tokens, positions and slots of any works."""
    tokens = [work.request.tokens[work.start : work.start + work.count] for work in works]
    positions = [np.arange(work.start, work.start + work.count, dtype=np.int64) for work in works]
    slots = [
        np.asarray(table, dtype=np.int64)[at // page_size] * page_size + at % page_size
        for table, at in zip(tables, positions, strict=True)
    ]
    return [np.concatenate(parts, dtype=np.int64) for parts in (tokens, positions, slots)]
