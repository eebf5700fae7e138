"""What the GPU path asks of a device: pinned memory, events, and recorded runs (CUDA graphs).

Behind a protocol, so that all that is built on it can be held by tests on a machine without a GPU.
This module knows no attention and no model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

WARM_UPS = 2
"""Runs before one is recorded: the first ones compile, choose algorithms and take memory."""


class Event(Protocol):
    """A mark in the device's work."""

    def record(self) -> None:
        """Set the mark behind all that has been asked for so far."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has come to the mark; at once where none was set."""
        ...


class Recording(Protocol):
    """A run that the device repeats without the host.

    Attributes:
        output: What the run gave; every replay writes it anew.
    """

    output: Tensor

    def replay(self) -> None:
        """Run again, over the same memory."""
        ...


class Accelerator(Protocol):
    """One device.

    Attributes:
        device: Where its tensors are.
    """

    device: torch.device

    def host_memory(self, size: int, dtype: torch.dtype) -> Tensor:
        """`size` elements of the host's that the device reads by itself, while the host goes on."""
        ...

    def event(self) -> Event:
        """A mark that has not been set."""
        ...

    def record(self, run: Callable[[], Tensor]) -> Recording:
        """Run `run` and record what it asks of the device.

        It must neither wait for the device nor read another memory the next time.
        """
        ...

    def free_bytes(self) -> int:
        """Memory of the device that nothing holds."""
        ...


class Cuda:
    """A GPU of NVIDIA's.

    Args:
        index: Which one.
    """

    def __init__(self, index: int = 0) -> None:
        self.device = torch.device("cuda", index)
        self._pool: Any = None

    def host_memory(self, size: int, dtype: torch.dtype) -> Tensor:
        """See `Accelerator.host_memory`: pinned."""
        return torch.empty(size, dtype=dtype, pin_memory=True)

    def event(self) -> Event:
        """See `Accelerator.event`."""
        return _CudaEvent()

    def record(self, run: Callable[[], Tensor]) -> Recording:
        """See `Accelerator.record`. All recordings share their memory: only one runs at a time."""
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                run()
        torch.cuda.current_stream(self.device).wait_stream(stream)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()
        return _CudaGraph(graph, output)

    def free_bytes(self) -> int:
        """See `Accelerator.free_bytes`."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]


class _CudaEvent:
    def __init__(self) -> None:
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def record(self) -> None:
        self._event.record()

    def synchronize(self) -> None:
        self._event.synchronize()


class _CudaGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, output: Tensor) -> None:
        self._graph = graph
        self.output = output

    def replay(self) -> None:
        self._graph.replay()
