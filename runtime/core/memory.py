"""How much memory the KV cache gets. This module knows no model."""

from __future__ import annotations

from pathlib import Path

from boughs.kernels.accelerator import Accelerator
from boughs.lang.errors import InvalidRequest
from boughs.runtime.config import parse_bytes

CPU_SHARE, CPU_MOST = 0.4, 8 << 30
GPU_SHARE = 0.85
"""The rest is for activations, workspaces and recordings."""


def kv_bytes(asked: str | None, accelerator: Accelerator | None = None) -> int:
    """Bytes for the KV cache.

    Args:
        asked: As `512M`. Else it is 40 % of the machine's free memory, at most 8 GiB; or 85 % of
            what the GPU has left beside the weights.
        accelerator: The GPU, if the cache is on one.
    """
    if asked is not None:
        return parse_bytes(asked)
    if accelerator is not None:
        return int(accelerator.free_bytes() * GPU_SHARE)
    return min(int(free_memory() * CPU_SHARE), CPU_MOST)


def num_pages(asked: str | None, per_page: int, accelerator: Accelerator | None = None) -> int:
    """Pages of `per_page` bytes in the KV cache; see `kv_bytes`.

    Raises:
        InvalidRequest: There is no room for two.
    """
    size = kv_bytes(asked, accelerator)
    if size // per_page < 2:
        what = asked or f"{size} bytes, {'85' if accelerator else '40'} % of what is free,"
        raise InvalidRequest(
            f"kv_memory: {what} holds {size // per_page} pages of {per_page} bytes; "
            f"at least 2 are needed",
            "kv_memory",
        )
    return size // per_page


def free_memory() -> int:
    """Bytes that this process could still take: the machine's, or its cgroup's if that is less."""
    free = [
        int(line.split()[1]) * 1024
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    ]
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free.append(int(limit.read_text()) - int(used.read_text()))
    return max(0, min(free))
