"""Boughs: a structured-generation language with a runtime of its own.

This module only hands names on, each when it is first asked for: importing it loads neither torch
nor anything of the runtime.
"""
# ruff: noqa: F401 - the imports below tell type checkers what is handed on; a test compares them

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from boughs.lang.choices import (
        ChoicesDecision,
        ChoicesSamplingMethod,
        greedy_token_selection,
        token_length_normalized,
        unconditional_likelihood_normalized,
    )
    from boughs.lang.current import (
        backend,
        flush_cache,
        get_server_info,
        global_config,
        set_default_backend,
    )
    from boughs.lang.endpoint import RuntimeEndpoint
    from boughs.lang.errors import (
        BackendError,
        BoughsError,
        EngineDied,
        GrammarError,
        Incomplete,
        InvalidRequest,
        NotFound,
        Overloaded,
        ProgramError,
        RequestAborted,
        RequestTimeout,
        Unauthorized,
        Unservable,
        Unsupported,
    )
    from boughs.lang.group import ProgramStateGroup
    from boughs.lang.launch import Runtime
    from boughs.lang.primitives import (
        assistant,
        assistant_begin,
        assistant_end,
        content,
        gen,
        gen_int,
        gen_string,
        role,
        role_begin,
        role_end,
        select,
        system,
        system_begin,
        system_end,
        user,
        user_begin,
        user_end,
    )
    from boughs.lang.program import Program, function
    from boughs.lang.sampling import SamplingParams
    from boughs.lang.state import ProgramState
    from boughs.runtime.engine import Engine

__version__ = "0.1.0"

_HOMES = {
    "boughs.lang.choices": (
        "ChoicesDecision",
        "ChoicesSamplingMethod",
        "greedy_token_selection",
        "token_length_normalized",
        "unconditional_likelihood_normalized",
    ),
    "boughs.lang.current": (
        "backend",
        "flush_cache",
        "get_server_info",
        "global_config",
        "set_default_backend",
    ),
    "boughs.lang.endpoint": ("RuntimeEndpoint",),
    "boughs.lang.errors": (
        "BackendError",
        "BoughsError",
        "EngineDied",
        "GrammarError",
        "Incomplete",
        "InvalidRequest",
        "NotFound",
        "Overloaded",
        "ProgramError",
        "RequestAborted",
        "RequestTimeout",
        "Unauthorized",
        "Unservable",
        "Unsupported",
    ),
    "boughs.lang.group": ("ProgramStateGroup",),
    "boughs.lang.launch": ("Runtime",),
    "boughs.lang.primitives": (
        "assistant",
        "assistant_begin",
        "assistant_end",
        "content",
        "gen",
        "gen_int",
        "gen_string",
        "role",
        "role_begin",
        "role_end",
        "select",
        "system",
        "system_begin",
        "system_end",
        "user",
        "user_begin",
        "user_end",
    ),
    "boughs.lang.program": ("Program", "function"),
    "boughs.lang.sampling": ("SamplingParams",),
    "boughs.lang.state": ("ProgramState",),
    "boughs.runtime.engine": ("Engine",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604 - the names are strings
    "__version__",
    *_HOME_OF,
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'boughs' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
