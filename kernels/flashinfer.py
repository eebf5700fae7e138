"""Attention on an NVIDIA GPU by FlashInfer's paged decode and prefill kernels.

    https://docs.flashinfer.ai, read in the sources of 0.7.4

FlashInfer plans on the host and runs on the device. What it does not check itself and would
misread (page ids, lengths, types, devices, memory that changes while it is copied) is refused here
or cannot be. Requests of one row at the head of a batch, which are its decodes, go to the decode
kernel, the rest to the prefill kernel. This module knows no model, and imports `flashinfer`
nowhere: it is given it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from . import flashinfer_cascade
from .accelerator import Accelerator
from .backend import AttentionConfig, check_batch, check_query
from .batch import AttentionBatch
from .cascade import Sharing, find_sharing
from .flashinfer_limits import lacks, name_of
from .kv_cache import KVCache
from .staging import Staging

PLAIN_GROUPS = (1, 2, 3)
"""Query heads per KV head for which the plain decode kernel is used. It also has 4, 6, 8 and 16,
where tensor cores are faster, and lacks all others."""
WORKSPACE = 256 << 20
"""Bytes for the parts of split requests. 64 heads of 128 on 132 processors take 138 MB."""
NOWHERE = 1 << 31
"""More pages than any pool has."""


@dataclass(frozen=True)
class _Wrappers:
    """FlashInfer's objects for one window: each holds the plan of one kernel."""

    decode: Any
    prefill: Any | None


@dataclass(frozen=True)
class _Pieces:
    """Decodes that share prefixes: who asks which piece, and the pieces of each; on the device."""

    rows: Tensor
    parts: Tensor


@dataclass(frozen=True)
class _Step:
    """What the runs of one step share."""

    batch: AttentionBatch
    decodes: int
    wrappers: dict[int, _Wrappers]
    pieces: _Pieces | None


class FlashInferBackend:
    """Paged attention by FlashInfer.

    Args:
        config: The shape of the attention.
        why: Why this backend was chosen.
        flashinfer: The module, or what stands in for it.
        accelerator: The device.
        dtype: Of queries and results: bfloat16 or float16.
        kv_dtype: Of the cache: the same, or one of the two float8; default the same.
        cascade: Whether prefixes that decodes share are read once for all of them where that pays,
            in layers without a window.

    Raises:
        ValueError: A width of heads or a dtype that FlashInfer has no kernels for.
    """

    name = "flashinfer"

    def __init__(
        self,
        config: AttentionConfig,
        why: str,
        *,
        flashinfer: Any,
        accelerator: Accelerator,
        dtype: torch.dtype,
        kv_dtype: torch.dtype | None = None,
        cascade: bool = False,
    ) -> None:
        missing = lacks(config, dtype, kv_dtype)
        if missing:
            raise ValueError(f"FlashInfer has no kernel for {missing}")
        self.config = config
        self.why = why
        self._flashinfer = flashinfer
        self._accelerator = accelerator
        self._dtype, self._kv_dtype = dtype, kv_dtype or dtype
        self._windows = sorted(set(config.windows) or {0})
        self._staging = Staging(accelerator, torch.int32)
        # One for all: what runs at a time is one kernel of one layer. Zero before its first use.
        self._workspace = torch.zeros(WORKSPACE, dtype=torch.uint8, device=accelerator.device)
        group = config.num_heads // config.num_kv_heads
        self._tensor_cores = group not in PLAIN_GROUPS
        self._eager = {window: self._make_eager() for window in self._windows}
        self._shared = self._make_prefill() if cascade and 0 in self._windows else None
        self._sharing: tuple[AttentionBatch, Sharing] | None = None  # what was found last
        self._graphs: dict[int, dict[int, _Wrappers]] = {}
        self._step: _Step | None = None
        self._checked_pages = 0  # of the pool that the batch was checked for

    # ---- planning ----

    def plan(self, batch: AttentionBatch) -> None:
        """Take the batch that the following runs are about; see `AttentionBackend.plan`.

        Raises:
            ValueError: Something in the batch that FlashInfer would misread.
        """
        check_batch(batch, self.config)
        batch.check(NOWHERE)  # the pool is known to `run`
        sharing = self._find_sharing(batch)
        self._plan(batch, _leading_decodes(batch), self._eager, sharing)
        self._checked_pages = 0

    def shares(self, batch: AttentionBatch) -> bool:
        """Whether `plan` would read a prefix once for several requests, as `plan_graph` cannot."""
        return self._find_sharing(batch) is not None

    def _find_sharing(self, batch: AttentionBatch) -> Sharing | None:
        """What decodes at the head of the batch share, if it pays."""
        if self._shared is None:
            return None
        if self._sharing is None or self._sharing[0] is not batch:
            config = self.config
            page = 2 * config.page_size * config.num_kv_heads * config.head_dim
            page *= self._kv_dtype.itemsize

            def pays(users: int, pages: int) -> bool:
                return (users - 1) * pages * page >= flashinfer_cascade.SAVES

            decodes = range(_leading_decodes(batch))
            self._sharing = (batch, find_sharing(batch, decodes, pays))
        sharing = self._sharing[1]
        return sharing if sharing.nodes else None

    def prepare_graphs(self, sizes: Sequence[int], pages: int) -> None:
        """Be ready for `plan_graph` with so many requests.

        Args:
            sizes: Numbers of requests.
            pages: The most that one request lists.
        """
        largest, device = max(sizes), self._accelerator.device
        # One plan is in force at a time, so all of them read the same memory.
        indptr = torch.zeros(largest + 1, dtype=torch.int32, device=device)
        indices = torch.zeros(largest * pages, dtype=torch.int32, device=device)
        last_page_len = torch.ones(largest, dtype=torch.int32, device=device)
        self._graphs = {
            size: {
                window: _Wrappers(
                    self._make_decode(
                        use_cuda_graph=True,
                        paged_kv_indptr_buffer=indptr[: size + 1],
                        paged_kv_indices_buffer=indices,
                        paged_kv_last_page_len_buffer=last_page_len[:size],
                    ),
                    None,
                )
                for window in self._windows
            }
            for size in sizes
        }

    def plan_graph(self, batch: AttentionBatch, num_pages: int) -> None:
        """As `plan`, into memory that a recorded run reads again.

        Args:
            batch: One row for each request, as many as one of the prepared sizes.
            num_pages: Of the pool: a replay calls no `run` that could look.

        Raises:
            ValueError: Another number of requests or rows, or what `plan` refuses.
        """
        check_batch(batch, self.config)
        batch.check(num_pages)
        size = batch.num_requests
        if size not in self._graphs:
            raise ValueError(f"no graph for {size} requests; there are {sorted(self._graphs)}")
        if _leading_decodes(batch) != size:
            raise ValueError("a graph computes one row for each request")
        self._plan(batch, size, self._graphs[size])
        self._checked_pages = num_pages

    def _plan(
        self,
        batch: AttentionBatch,
        decodes: int,
        wrappers: dict[int, _Wrappers],
        sharing: Sharing | None = None,
    ) -> None:
        """Plan every window. Host tensors are what FlashInfer does not wait for the device with."""
        self._step = None  # until it is planned
        border = batch.kv_indptr[decodes]
        pieces = flashinfer_cascade.lay_out(batch, sharing).arrays if sharing else []
        staged = self._staging.fill(
            [
                batch.kv_indptr[: decodes + 1],
                batch.kv_last_page_len[:decodes],
                batch.qo_indptr[decodes:] - np.int32(decodes),
                batch.kv_indptr[decodes:] - border,
                batch.kv_last_page_len[decodes:],
                batch.kv_indices,
                *pieces,
            ]
        )
        # The waiting above covers FlashInfer's own pinned memory too: it has one piece for each
        # wrapper, which the plan before copied from ahead of the same mark.
        indptr, last, qo_indptr, paged_indptr, paged_last, host_indices, *staged = staged
        indices = torch.empty(len(host_indices), dtype=torch.int32, device=self._accelerator.device)
        indices.copy_(host_indices, non_blocking=True)
        for window, pair in wrappers.items():
            if decodes and (window or not staged):
                pair.decode.plan(
                    indptr, indices[:border], last, head_dim=self.config.head_dim,
                    **self._plan_options(window),
                )  # fmt: skip
            if decodes < batch.num_rows:
                assert pair.prefill is not None, "a graph has decodes alone"
                pair.prefill.plan(
                    qo_indptr, paged_indptr, indices[border:], paged_last,
                    head_dim_qk=self.config.head_dim, causal=True, **self._plan_options(window),
                )  # fmt: skip
        made = self._plan_pieces(staged, decodes) if staged else None
        self._staging.seal()
        self._step = _Step(batch, decodes, wrappers, made)

    def _plan_pieces(self, staged: list[Tensor], decodes: int) -> _Pieces:
        """Plan the pieces of decodes that share prefixes: a row sees all of each that it asks."""
        assert self._shared is not None, "sharing is looked for where it can be used"
        qo_indptr, kv_indptr, last, *host = staged
        device = self._accelerator.device
        indices, rows, parts = (part.to(device, non_blocking=True, copy=True) for part in host)
        self._shared.plan(
            qo_indptr, kv_indptr, indices, last,
            head_dim_qk=self.config.head_dim, causal=False, **self._plan_options(0),
        )  # fmt: skip
        return _Pieces(rows.long(), parts.long().view(decodes, -1))

    def _plan_options(self, window: int) -> dict[str, Any]:
        return {
            "num_qo_heads": self.config.num_heads,
            "num_kv_heads": self.config.num_kv_heads,
            "page_size": self.config.page_size,
            "pos_encoding_mode": "NONE",
            # FlashInfer counts the positions to the left of a row's own.
            "window_left": window - 1 if window else -1,
            "logits_soft_cap": self.config.soft_cap,
            "sm_scale": self.config.scale,
            "q_data_type": self._dtype,
            "kv_data_type": self._kv_dtype,
            "o_data_type": self._dtype,
            "non_blocking": True,
        }

    def _make_eager(self) -> _Wrappers:
        return _Wrappers(self._make_decode(), self._make_prefill())

    def _make_prefill(self) -> Any:
        return self._flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self._workspace, kv_layout="NHD", backend="fa2"
        )

    def _make_decode(self, **graph: Any) -> Any:
        return self._flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            kv_layout="NHD",
            use_tensor_cores=self._tensor_cores,
            backend="fa2",
            **graph,
        )

    # ---- running ----

    def run(self, layer: int, q: Tensor, kv: KVCache) -> Tensor:
        """Attention of the planned batch in one layer; see `AttentionBackend.run`."""
        step = self._checked(q, kv)
        pair = step.wrappers[self.config.window(layer)]
        pages, decodes = (kv.k(layer), kv.v(layer)), step.decodes
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if step.pieces is not None and not self.config.window(layer):
            out[:decodes] = self._run_pieces(step.pieces, q[:decodes], pages)
        elif decodes:
            pair.decode.run(q[:decodes], pages, out=out[:decodes])
        if decodes < step.batch.num_rows:
            assert pair.prefill is not None, "a graph has decodes alone"
            pair.prefill.run(q[decodes:], pages, out=out[decodes:])
        return out

    def _run_pieces(self, pieces: _Pieces, q: Tensor, pages: tuple[Tensor, Tensor]) -> Tensor:
        """What decodes [n, H, D] find in their pieces, merged."""
        assert self._shared is not None, "there are pieces"
        found, lse = self._shared.run(q[pieces.rows], pages, return_lse=True)
        # One more that found nothing, for rows of fewer pieces than others: it weighs nothing.
        found = torch.cat((found, torch.zeros_like(found[:1])))
        lse = torch.cat((lse, torch.full_like(lse[:1], -torch.inf)))
        merged: Tensor = self._flashinfer.merge_states(found[pieces.parts], lse[pieces.parts])[0]
        return merged

    def _checked(self, q: Tensor, kv: KVCache) -> _Step:
        """The planned step, if queries and cache fit it."""
        step = self._step
        batch = check_query(step.batch if step else None, q, kv, self.config)
        assert step is not None, "else there is no batch"
        if (q.dtype, kv.dtype) != (self._dtype, self._kv_dtype):
            raise ValueError(
                f"planned for {name_of(self._dtype)} over {name_of(self._kv_dtype)}, "
                f"got {name_of(q.dtype)} over {name_of(kv.dtype)}"
            )
        if not q.device == kv.device == self._accelerator.device:
            raise ValueError(
                f"queries on {q.device} and a cache on {kv.device}, planned for "
                f"{self._accelerator.device}"
            )
        if q.stride(-1) != 1:
            raise ValueError("the last dimension of the queries has gaps")
        if self._checked_pages != kv.num_pages:
            batch.check(kv.num_pages)
            self._checked_pages = kv.num_pages
        return step


def _leading_decodes(batch: AttentionBatch) -> int:
    """How many requests at the head of the batch ask for one row each."""
    others = np.flatnonzero(batch.q_lens != 1)
    return int(others[0]) if len(others) else batch.num_requests
