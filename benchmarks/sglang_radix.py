"""SGLang's own Python radix tree, alone: its wheel's files without the packages they import.

Only the tree's own modules are SGLang's; whatever else they import is a stand-in that does nothing,
so neither CUDA nor SGLang's dependencies are needed. Used by `benchmarks/radix.py` alone.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import time
import types
import zipfile
from array import array
from pathlib import Path
from unittest.mock import MagicMock

import torch

VERSION = "0.5.23"
TREE = "sglang.srt.mem_cache.radix_cache"
FOLDER = "sglang/srt/mem_cache/"
REAL = {
    "sglang.srt.mem_cache." + name
    for name in (
        "radix_cache", "base_prefix_cache", "cache_init_params", "evict_policy", "events", "utils"
    )
}  # fmt: skip


def get_wheel() -> Path | None:
    """SGLang's wheel, downloaded once without dependencies; None where it is not to be had."""
    home = Path(os.environ.get("BOUGHS_HOME") or Path.home() / ".cache" / "boughs") / "benchmarks"
    found = sorted(home.glob(f"sglang-{VERSION}-*.whl"))
    if not found:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        pip += ["--only-binary=:all:", "--disable-pip-version-check", "--dest", str(home)]
        try:
            subprocess.run([*pip, f"sglang=={VERSION}"], check=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"sglang: left out ({error})", file=sys.stderr)
            return None
        found = sorted(home.glob(f"sglang-{VERSION}-*.whl"))
    return found[0] if found else None


def load(wheel: Path, folder: Path) -> None:
    """Make SGLang's module `radix_cache` importable, from files unpacked into `folder`."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [n for n in archive.namelist() if n.startswith(FOLDER)])
    sys.meta_path.insert(0, _Finder(folder))
    importlib.import_module(TREE)


class _StandIn(types.ModuleType):
    """A module that has every name."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds SGLang's own files for the tree, and stand-ins for the rest of SGLang."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002 - the protocol's signature
        """SGLang's file, or a stand-in for its other modules."""
        if name in REAL:
            file = self.folder / (name.replace(".", "/") + ".py")
            return importlib.util.spec_from_file_location(name, file)
        if name.partition(".")[0] == "sglang":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        """A stand-in."""
        return _StandIn(spec.name)

    def exec_module(self, module):
        """Do nothing: a stand-in has no code."""


class _Allocator:
    """Counts free rows. SGLang's allocators cost more."""

    device = "cpu"

    def __init__(self, rows: int) -> None:
        self.free = rows

    def free_segment(self, indices, *, start_pos: int) -> None:  # noqa: ARG002 - SGLang's signature
        """Count what was evicted."""
        self.free += len(indices)


class SglangCache:
    """SGLang's tree behind the few operations that the benchmark measures. `load` it before.

    Args:
        num_pages: Pages of `page_size` tokens.
        page_size: 1 is SGLang's default.
    """

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.module = sys.modules[TREE]
        self.page_size = page_size
        self.allocator = _Allocator(num_pages * page_size)
        self.tree = self.module.RadixCache.create_simulated(
            mock_allocator=self.allocator, page_size=page_size
        )

    def key(self, tokens: bytes) -> object:
        """Tokens as this tree takes them."""
        return self.module.RadixKey(array("q", array("i", tokens)))

    def match(self, key: object) -> int:
        """Tokens cached. Like all of SGLang's matches it splits and touches."""
        return self.tree.match_prefix(self.module.MatchPrefixParams(key=key)).device_prefix_len

    def insert(self, key: object, rows: torch.Tensor) -> None:
        """Enter tokens with the rows that hold them."""
        self.tree.insert(self.module.InsertParams(key=key, value=rows))

    def admit(self, prompt: bytes, whole: bytes) -> types.SimpleNamespace:
        """A request that has locked its prefix and computed the rest: what `checkpoint` reads."""
        tree, length = self.tree, len(whole) // 4
        match = tree.match_prefix(self.module.MatchPrefixParams(key=self.key(prompt)))
        row = rows(length)
        path = tree.path_device_indices(match.last_device_node)
        row[: len(path)] = path
        pool = types.SimpleNamespace(req_to_token=row[None])
        pool.write = pool.req_to_token.__setitem__
        tree.req_to_token_pool = pool
        self.allocator.free -= length // self.page_size * self.page_size - len(path)
        kv = types.SimpleNamespace(
            req_pool_idx=0, cache_inserted_len=0, cache_protected_len=len(path), swa_evict_floor=0
        )
        tokens = array("q", array("i", whole))
        return types.SimpleNamespace(
            full_untruncated_fill_ids=tokens, origin_input_ids=tokens[: len(prompt) // 4 + 1],
            extra_key=None, cache_salt=None, priority=0, kv=kv, last_node=match.last_device_node,
            lock=tree.lock(match.last_device_node),
        )  # fmt: skip

    def checkpoint(self, request: types.SimpleNamespace) -> None:
        """Enter what a request has computed, and move its lock there, as SGLang does it."""
        self.tree.checkpoint(request, up_to=len(request.full_untruncated_fill_ids))

    def evict(self, tokens: int) -> None:
        """Evict at least so many tokens."""
        self.tree.evict(self.module.EvictParams(num_tokens=tokens))

    def request(self, key: object, prompt: object, rows: torch.Tensor) -> int:
        """A request's whole life, as far as the tree goes; tokens that were cached.

        Args:
            key: Prompt and output.
            prompt: All of the prompt but its last token.
            rows: One for every token of `key`.
        """
        tree, size = self.tree, self.page_size
        match = tree.match_prefix(self.module.MatchPrefixParams(key=prompt))
        node, cached = match.last_device_node, match.device_prefix_len
        tree.path_device_indices(node)
        tree.inc_lock_ref(node)
        need = -(-(len(key) - cached) // size) * size
        if self.allocator.free < need:
            self.evict(need - self.allocator.free)
        self.allocator.free -= len(key) // size * size - cached
        self.insert(key, rows)
        tree.dec_lock_ref(node)
        return cached


def insert(cache, tokens: bytes) -> None:
    """Enter tokens into SGLang's tree."""
    cache.insert(cache.key(tokens), rows(len(tokens) // 4))


def rows(count: int):
    """A tensor of row numbers, which SGLang's tree keeps."""
    return torch.arange(count, dtype=torch.int64)


def replay(cache, trace) -> tuple[float, float]:
    """The same of SGLang's tree; its keys are made beforehand."""
    requests = [
        (cache.key(whole), cache.key(prompt[:-4]), rows(len(whole) // 4)) for prompt, whole in trace
    ]
    cached = 0
    started = time.perf_counter()
    for request in requests:
        cached += cache.request(*request)
    seconds = time.perf_counter() - started
    return seconds / len(trace) * 1e6, cached * 4 / sum(len(prompt) for prompt, _ in trace)
