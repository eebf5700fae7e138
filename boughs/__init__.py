"""Boughs: a structured-generation language with a runtime of its own.

This module only hands names on, each when it is first asked for: importing it loads neither torch
nor anything of the runtime.
"""
# The imports below tell type checkers what is handed on (`as`: under strict rules, too).

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from boughs.lang.apis.anthropic_model import Anthropic as Anthropic
    from boughs.lang.apis.litellm_model import LiteLLM as LiteLLM
    from boughs.lang.apis.openai_model import OpenAI as OpenAI
    from boughs.lang.call_cache import CallCache as CallCache
    from boughs.lang.choices import (
        ChoicesDecision as ChoicesDecision,
        ChoicesSamplingMethod as ChoicesSamplingMethod,
        greedy_token_selection as greedy_token_selection,
        token_length_normalized as token_length_normalized,
        total_likelihood as total_likelihood,
        unconditional_likelihood_normalized as unconditional_likelihood_normalized,
    )
    from boughs.lang.current import (
        backend as backend,
        cached as cached,
        flush_cache as flush_cache,
        get_server_info as get_server_info,
        global_config as global_config,
        set_default_backend as set_default_backend,
    )
    from boughs.lang.endpoint import RuntimeEndpoint as RuntimeEndpoint
    from boughs.lang.errors import (
        BackendError as BackendError,
        BoughsError as BoughsError,
        EngineDied as EngineDied,
        GrammarError as GrammarError,
        Incomplete as Incomplete,
        InvalidRequest as InvalidRequest,
        InvalidValue as InvalidValue,
        NotFound as NotFound,
        Overloaded as Overloaded,
        ProgramError as ProgramError,
        RequestAborted as RequestAborted,
        RequestTimeout as RequestTimeout,
        Unauthorized as Unauthorized,
        Unservable as Unservable,
        Unsupported as Unsupported,
    )
    from boughs.lang.group import ProgramStateGroup as ProgramStateGroup
    from boughs.lang.media import (
        image as image,
        video as video,
    )
    from boughs.lang.primitives import (
        gen as gen,
        gen_int as gen_int,
        gen_string as gen_string,
        select as select,
    )
    from boughs.lang.program import (
        Program as Program,
        function as function,
    )
    from boughs.lang.reasoning import separate_reasoning as separate_reasoning
    from boughs.lang.roles import (
        assistant as assistant,
        assistant_begin as assistant_begin,
        assistant_end as assistant_end,
        content as content,
        role as role,
        role_begin as role_begin,
        role_end as role_end,
        system as system,
        system_begin as system_begin,
        system_end as system_end,
        user as user,
        user_begin as user_begin,
        user_end as user_end,
    )
    from boughs.lang.sampling import SamplingParams as SamplingParams
    from boughs.lang.state import ProgramState as ProgramState
    from boughs.lang.tool_turns import tools as tools
    from boughs.lang.tools import (
        Tool as Tool,
        ToolCall as ToolCall,
        ToolResult as ToolResult,
        describe_tools as describe_tools,
        gen_tool_call as gen_tool_call,
        tool as tool,
    )
    from boughs.runtime.engine import Engine as Engine
    from boughs.server import Runtime as Runtime

__version__ = "0.1.0"

_HOMES = {
    "boughs.lang.apis.anthropic_model": ("Anthropic",),
    "boughs.lang.apis.litellm_model": ("LiteLLM",),
    "boughs.lang.apis.openai_model": ("OpenAI",),
    "boughs.lang.call_cache": ("CallCache",),
    "boughs.lang.choices": (
        "ChoicesDecision",
        "ChoicesSamplingMethod",
        "greedy_token_selection",
        "token_length_normalized",
        "total_likelihood",
        "unconditional_likelihood_normalized",
    ),
    "boughs.lang.current": (
        "backend",
        "cached",
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
        "InvalidValue",
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
    "boughs.lang.media": ("image", "video"),
    "boughs.lang.primitives": (
        "gen",
        "gen_int",
        "gen_string",
        "select",
    ),
    "boughs.lang.program": ("Program", "function"),
    "boughs.lang.reasoning": ("separate_reasoning",),
    "boughs.lang.roles": (
        "assistant",
        "assistant_begin",
        "assistant_end",
        "content",
        "role",
        "role_begin",
        "role_end",
        "system",
        "system_begin",
        "system_end",
        "user",
        "user_begin",
        "user_end",
    ),
    "boughs.lang.sampling": ("SamplingParams",),
    "boughs.lang.state": ("ProgramState",),
    "boughs.lang.tool_turns": ("tools",),
    "boughs.lang.tools": (
        "Tool",
        "ToolCall",
        "ToolResult",
        "describe_tools",
        "gen_tool_call",
        "tool",
    ),
    "boughs.runtime.engine": ("Engine",),
    "boughs.server": ("Runtime",),
}
_INSTEAD = {
    "Crusoe": "OpenAI(model, base_url='https://…', api_key=…)",
    "VertexAI": "LiteLLM('vertex_ai/…')",
}
"""Of SGLang's backends those that are no classes here."""

_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [  # noqa: PLE0604 - the names are strings
    "__version__",
    *_HOME_OF,
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None and name in _INSTEAD:
        raise AttributeError(f"boughs has no {name}; {_INSTEAD[name]} reaches its models")
    if home is None:
        raise AttributeError(f"module 'boughs' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
