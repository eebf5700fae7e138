"""Messages in OpenAI's form, read and made plain for a chat template.

This module knows no template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from boughs.lang.errors import InvalidRequest, Unsupported


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages with contents as strings and arguments of tool calls as objects.

    The caller's are left as they are.

    Raises:
        InvalidRequest: Names the place and what is expected there.
        Unsupported: A part of a content that is not text.
    """
    if not messages:
        raise InvalidRequest("messages: there is none", "messages")
    return [_plain_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _plain_message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where}: expected an object, got {message!r:.40}", where)
    role = message.get("role")
    if not isinstance(role, str):
        where = f"{where}.role"
        raise InvalidRequest(f"{where}: expected a string, got {role!r:.40}", where)
    plain = dict(message)
    content, where = plain.get("content"), f"{where}.content"
    if isinstance(content, list):
        parts = enumerate(content)
        plain["content"] = "".join(_part_text(part, f"{where}[{at}]") for at, part in parts)
    elif content is not None and not isinstance(content, str):
        raise InvalidRequest(
            f"{where}: expected a string or a list of parts, got {content!r:.40}", where
        )
    if plain.get("tool_calls"):
        plain["tool_calls"] = [_plain_call(call) for call in plain["tool_calls"]]
    return plain


def _part_text(part: object, where: str) -> str:
    kind, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (part, "")
    if kind != "text":
        where = f"{where}.type"
        raise Unsupported(f"{where}: only text is supported, got {kind!r:.40}", where)
    if not isinstance(text, str):
        where = f"{where}.text"
        raise InvalidRequest(f"{where}: expected a string, got {text!r:.40}", where)
    return text


def _plain_call(call: Any) -> Any:
    """A tool call whose arguments are an object, as templates expect them."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def texts_in(value: Any) -> Iterator[str]:
    """Every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from texts_in(list(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)
