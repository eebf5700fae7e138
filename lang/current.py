"""Which backend a program runs on when none is given.

In this order: the argument, the innermost `with boughs.backend(…)` or running program, the
process's default. This module knows no kind of backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from boughs.lang import loop
from boughs.lang.backend import Backend, Host
from boughs.lang.cached import Cached, cached_backend
from boughs.lang.call_cache import CallCache
from boughs.lang.errors import InvalidRequest


class GlobalConfig:
    """SGLang's `global_config`, as far as it means something here.

    Attributes:
        default_backend: The process's default backend.
        cache: The `cache` of runs that give none: True, a `boughs.CallCache`, or False.
    """

    __slots__ = ("cache", "default_backend")

    def __init__(self) -> None:
        self.default_backend: Backend | Host | None = None
        self.cache: CallCache | bool = False


global_config = GlobalConfig()

_scoped: ContextVar[Backend | None] = ContextVar("boughs_backend", default=None)
_inside: ContextVar[bool] = ContextVar("boughs_inside", default=False)


def set_default_backend(backend: Backend | Host) -> None:
    """Make `backend` the process's default."""
    _checked(backend)
    global_config.default_backend = backend


@contextmanager
def backend(backend: Backend | Host) -> Iterator[Backend]:
    """In this block (and what it calls or awaits) programs run on `backend`.

        import boughs
        from boughs.testing import MockBackend

        @boughs.function
        def hello(s):
            s += "Hello" + boughs.gen("x")

        with boughs.backend(MockBackend(", world")):
            assert hello.run().text() == "Hello, world"

    Other threads and tasks keep the backend that they have.
    """
    checked = _checked(backend)
    token = _scoped.set(checked)
    try:
        yield checked
    finally:
        _scoped.reset(token)


@contextmanager
def body_of(backend: Backend) -> Iterator[None]:
    """The block is a program's body, and programs that it runs have its backend."""
    scope, inside = _scoped.set(backend), _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(inside)
        _scoped.reset(scope)


def inside_program() -> bool:
    """Whether the caller is a program's body."""
    return _inside.get()


def resolve(given: Backend | Host | None) -> Backend:
    """The backend to use.

    Raises:
        InvalidRequest: There is none, or what was given is none.
    """
    if given is not None:
        return _checked(given)
    found = _scoped.get()
    if found is None and global_config.default_backend is not None:
        found = _checked(global_config.default_backend)
    if found is None:
        raise InvalidRequest(
            "there is no backend: pass backend=…, or call boughs.set_default_backend(…) first",
            "backend",
        )
    return found


def cached(backend: Backend | Host | None = None, cache: CallCache | bool = True) -> Backend:
    """A backend that is asked only for what is not on disk; use it wherever a backend is.

        import boughs

        backend = boughs.cached(boughs.OpenAI("gpt-4o-mini", api_key="key"))

    Args:
        backend: Who is asked; by default the one that programs run on here.
        cache: Where answers are kept; True is the default place.

    Raises:
        Unsupported: The backend does not say which model it has.
    """
    return cached_backend(resolve(backend), cache)


def resolve_cached(given: Backend | Host | None, cache: CallCache | bool | None) -> Backend:
    """The backend to use, with the cache that a run gave, or the process's."""
    backend = resolve(given)
    if cache is None:
        if global_config.cache is False or isinstance(backend, Cached):
            return backend
        cache = global_config.cache
    return cached_backend(backend, cache)


def flush_cache(backend: Backend | Host | None = None, timeout: float = 0.0) -> bool:
    """Forget every cached prefix of a backend; True when done.

    Args:
        backend: By default the one that programs run on here.
        timeout: Seconds to wait for what runs; requests that come meanwhile wait, too.

    Raises:
        BoughsError: There is no backend, or requests run (still, after `timeout`).
    """
    loop.run(resolve(backend).flush_cache(timeout))
    return True


def get_server_info(backend: Backend | Host | None = None) -> dict[str, Any]:
    """What a backend is and how it does."""
    return loop.run(resolve(backend).get_server_info())


def _checked(given: Backend | Host) -> Backend:
    backend = given.endpoint if isinstance(given, Host) else given
    if not isinstance(backend, Backend):
        raise InvalidRequest(
            f"backend: expected an Engine, a RuntimeEndpoint, a Runtime or another object with "
            f"the methods of boughs.lang.backend.Backend, got {given!r:.60}",
            "backend",
        )
    return backend
