"""The bodies of OpenAI's two text endpoints, read: their fields become requests.

A field is implemented or refused by its name, never ignored; those that only label a request are
accepted. Fields of `SamplingParams` are accepted beside OpenAI's own. This module knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from boughs.lang.beams import check_stream
from boughs.lang.constraints import CONSTRAINTS
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.requests import GenerateRequest, Prompt
from boughs.lang.sampling import ALIASES, NOT_YET, SamplingParams
from boughs.runtime.naming import Names, naming, params_names

from .body import converted
from .generate import check_length
from .served import Chat

COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for completions; for chat it is the context."""

_SAMPLING = {*SamplingParams.__struct_fields__, *ALIASES, *NOT_YET}

LABELS = {"user", "metadata", "safety_identifier", "prompt_cache_key"}
"""They change nothing in an answer."""

_DEFAULTS: dict[str, tuple[object, ...]] = {
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
}
"""Values of fields that we lack which ask for nothing."""

_LACKED = {
    *("audio", "function_call", "functions", "modalities", "moderation", "parallel_tool_calls"),
    *("prediction", "prompt_cache_options", "prompt_cache_retention", "reasoning_effort"),
    *("service_tier", "store", "suffix", "tool_choice", "tools", "verbosity"),
    *("web_search_options", "image_data", "lora_path", "session_params", "return_hidden_states"),
}

_COMMON = {"model", "stream", "stream_options", "response_format", "logprobs"}
_COMPLETION = _COMMON | {"prompt", "echo"}
_CHAT = _COMMON | {
    *("messages", "top_logprobs", "chat_template_kwargs", "add_generation_prompt"),
    "continue_final_message",
}

_NOT_FOR_TEMPLATES = {
    *("self", "messages", "where", "conversation", "tools", "chat_template", "tokenize"),
    *("add_generation_prompt", "continue_final_message", "sanitize_control_tokens", "padding"),
    *("truncation", "max_length", "return_tensors", "return_dict", "tokenizer_kwargs"),
    "return_assistant_tokens_mask",
}
"""Names that steer the rendering and are no variables of a template."""


class Call(NamedTuple):
    """One call.

    Attributes:
        requests: In order.
        is_list: Whether a list of prompts was given.
        model: The model's name, if one was given.
        stream: Whether to answer as it comes.
        include_usage: Whether a stream ends with the usage.
        logprobs: Whether the answer has logprobs.
        top: How many alternatives at each position.
        echo: Whether the prompt is part of the answer.
        names: What the caller calls the fields of each request.
    """

    requests: list[GenerateRequest]
    is_list: bool
    model: str | None
    stream: bool
    include_usage: bool
    logprobs: bool
    top: int
    names: list[Names]
    echo: bool = False


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None


def read_completion(body: Mapping[str, Any]) -> Call:
    """The call that a body of `/v1/completions` describes.

    Raises:
        InvalidRequest: Names the field.
        Unsupported: A field that OpenAI has and we lack.
    """
    _check_names(body, _COMPLETION)
    prompts, is_list = read_inputs(body.get("prompt"), "prompt")
    params = _params(body, default_tokens=COMPLETION_TOKENS)
    count = _field(body, "logprobs", int | None, None)
    if count is not None and count < 0:
        raise InvalidRequest(f"logprobs must be at least 0, got {count}", "logprobs")
    echo = _field(body, "echo", bool, default=False)
    requests = [
        GenerateRequest(
            prompt=prompt,
            params=params,
            return_logprob=count is not None,
            logprob_start_len=0 if echo and count is not None else -1,
            top_logprobs_num=count or 0,
        )
        for prompt in prompts
    ]
    return Call(
        requests=requests,
        is_list=is_list,
        **_common(body),
        logprobs=count is not None,
        top=count or 0,
        names=[
            {
                **_names(body),
                "prompt": f"prompt[{at}]" if is_list else "prompt",
                "top_logprobs_num": "logprobs",
                "logprob_start_len": "echo",
            }
            for at in range(len(requests))
        ],
        echo=echo,
    )


def read_chat(body: Mapping[str, Any], chat: Chat) -> Call:
    """The call that a body of `/v1/chat/completions` describes.

    Raises:
        InvalidRequest: Names the field.
        Unsupported: A field that OpenAI has and we lack, or a message that is not text.
    """
    _check_names(body, _CHAT)
    messages = _field(body, "messages", list[dict[str, Any]], None)
    if messages is None:
        raise InvalidRequest("messages: give a list of messages", "messages")
    settings = _field(body, "chat_template_kwargs", dict[str, Any], {})
    for name in settings:
        if name in _NOT_FOR_TEMPLATES:
            where = f"chat_template_kwargs.{name}"
            raise InvalidRequest(f"{where}: this is no variable of a chat template", where)
    continues = _field(body, "continue_final_message", bool, default=False)
    prompt = chat.render_messages(
        messages,
        add_generation_prompt=_field(body, "add_generation_prompt", bool, default=not continues),
        continue_final_message=continues,
        **settings,
    )
    wanted = _field(body, "logprobs", bool, default=False)
    top = _field(body, "top_logprobs", int, 0)
    if top and not wanted:
        raise InvalidRequest("top_logprobs needs logprobs: true", "top_logprobs")
    if top < 0:
        raise InvalidRequest(f"top_logprobs must be at least 0, got {top}", "top_logprobs")
    request = GenerateRequest(
        prompt=prompt,
        params=_params(body, default_tokens=None),
        return_logprob=wanted,
        top_logprobs_num=top,
    )
    names = {**_names(body), "prompt": "messages", "segments": "messages"}
    return Call(
        requests=[request],
        is_list=False,
        **_common(body),
        logprobs=wanted,
        top=top,
        names=[{**names, "top_logprobs_num": "top_logprobs"}],
    )


def _check_names(body: Mapping[str, Any], known: set[str]) -> None:
    for key, value in body.items():
        if key in known or key in _SAMPLING or key in LABELS:
            continue
        if key in _LACKED:
            if value in (None, False, [], {}, "") or value in _DEFAULTS.get(key, ()):
                continue
            raise Unsupported(f"{key} is not supported", key)
        raise InvalidRequest(f"{key}: unknown field", key)


def _common(body: Mapping[str, Any]) -> dict[str, Any]:
    stream = _field(body, "stream", bool, default=False)
    options = _field(body, "stream_options", _StreamOptions | None, None)
    if options is not None and not stream:
        raise InvalidRequest("stream_options needs stream: true", "stream_options")
    return {
        "model": _field(body, "model", str | None, None),
        "stream": stream,
        "include_usage": bool(options and options.include_usage),
    }


def _params(body: Mapping[str, Any], default_tokens: int | None) -> SamplingParams:
    """The sampling parameters among the fields."""
    given = {key: body[key] for key in body if key in _SAMPLING and body[key] is not None}
    if given.get("max_tokens") == given.get("max_completion_tokens"):
        given.pop("max_completion_tokens", None)  # SGLang's client sends both
    if not any(ALIASES.get(key, key) == "max_new_tokens" for key in given):
        given["max_new_tokens"] = default_tokens
    given.update(_response_constraint(body.get("response_format"), given))
    with naming(_names(body)):
        params = SamplingParams.from_mapping(given)
        if body.get("stream"):
            check_stream(params)
    return params


def _names(body: Mapping[str, Any]) -> dict[str, str]:
    """What the caller calls the sampling parameters."""
    names = params_names({key: value for key, value in body.items() if value is not None})
    inner = body.get("response_format")
    if inner is not None:
        of_schema = isinstance(inner, dict) and inner.get("type") == "json_schema"
        where = "response_format.json_schema" if of_schema else "response_format"
        names["json_schema"] = f"{where}.schema" if of_schema else where
        names["strict"] = f"{where}.strict"
        names["json_object"] = names["structural_tag"] = where
    return names


def _response_constraint(value: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a `response_format` stands for."""
    name = "response_format"
    kind = value.get("type") if isinstance(value, dict) else None
    if value is None or kind == "text":
        return {}
    for other in CONSTRAINTS:
        if given.get(other) not in (None, False, ""):
            raise InvalidRequest(f"give {other} or {name}, not both", name)
    if kind == "json_object":
        return {"json_object": True}
    if kind == "structural_tag":
        return {"structural_tag": value}
    if kind != "json_schema":
        raise Unsupported(
            f"{name}: expected an object with type text, json_object, json_schema or "
            f"structural_tag, got {value!r:.80}",
            name,
        )
    inner = value.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        name = f"{name}.json_schema.schema"
        raise InvalidRequest(f"{name}: expected an object, got {schema!r:.40}", name)
    strict = inner.get("strict") is True  # to be held to the letter, or refused
    return {"json_schema": schema, **({"strict": True} if strict else {})}


def read_inputs(value: Any, name: str) -> tuple[Sequence[Prompt], bool]:
    """The prompts, and whether a list of them was given."""
    if isinstance(value, str):
        return [value], False
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            f"{name}: expected a string, token ids, or a list of either, got {value!r:.40}",
            name,
        )
    check_length(value, name)
    if isinstance(value[0], str):
        return converted(value, list[str], name), True
    if isinstance(value[0], list):
        return converted(value, list[list[int]], name), True
    return [converted(value, list[int], name)], False


def _field(body: Mapping[str, Any], key: str, kind: Any, default: Any) -> Any:
    """A field's value; null stands for the default."""
    value = body.get(key)
    return default if value is None else converted(value, kind, key)
