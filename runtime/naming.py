"""Fields of a request as its caller wrote them, put into the errors that name ours.

An interface knows what its callers call a field; the front knows what is wrong with it. This module
knows neither of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from boughs.lang.errors import BoughsError, InvalidRequest
from boughs.lang.sampling import ALIASES, SamplingParams

Names = Mapping[str, str]
"""Paths of fields: ours (`prompt`, `max_new_tokens`) to the caller's (`text[1]`, `max_tokens`)."""

E = TypeVar("E", bound=BoughsError)


def params_names(given: object, where: str = "") -> dict[str, str]:
    """The names of the sampling parameters.

    Args:
        given: What the caller wrote, if it is a mapping: it may have aliases.
        where: What stands before each of them (`sampling_params.`).
    """
    names = {name: where + name for name in SamplingParams.__struct_fields__}
    for key in given if isinstance(given, Mapping) else ():
        if isinstance(key, str) and ALIASES.get(key, key) in names:
            names[ALIASES.get(key, key)] = where + key
    return names


def call_names(
    prompt: str,
    params: object,
    listed: Mapping[str, object],
    count: int,
    *,
    is_list: bool,
    key: str = "sampling_params",
) -> list[Names]:
    """The names of each request of a call in SGLang's form.

    Args:
        prompt: What the prompt, or the list of prompts, is called.
        params: The sampling parameters: a mapping, or a list of them, one for each prompt.
        listed: Other fields, each with its value: a list may have one for each prompt.
        count: Prompts.
        is_list: Whether a list of prompts was given.
        key: What the sampling parameters are called.
    """
    made: list[Names] = []
    common = params_names(params, f"{key}.")
    one_each = [
        field
        for field, value in listed.items()
        if is_list
        and isinstance(value, list)
        # Token ids alone are those of every prompt.
        and not (field == "token_ids_logprob" and all(isinstance(item, int) for item in value))
    ]
    for at in range(count):
        names = common
        if is_list and isinstance(params, list | tuple):
            names = params_names(params[at], f"{key}[{at}].")
        names = {**names, "prompt": f"{prompt}[{at}]" if is_list else prompt}
        made.append({**names, **{field: f"{field}[{at}]" for field in one_each}})
    return made


def renamed(error: E, names: Names) -> E:
    """The same error, its field and the beginning of its message in the caller's words."""
    param = error.param if isinstance(error, InvalidRequest) else None
    if param is None:
        return error
    known = [ours for ours in names if param == ours or param.startswith((f"{ours}.", f"{ours}["))]
    if not known:
        return error
    ours = max(known, key=len)
    if names[ours] == ours:
        return error
    made = copy.copy(error)
    message = str(error)
    if message.startswith(param):
        message = names[ours] + message[len(ours) :]
    made.args = (message,)
    made.param = names[ours] + param[len(ours) :]  # type: ignore[attr-defined]
    made.__cause__ = error.__cause__
    return made


@contextmanager
def naming(names: Names) -> Iterator[None]:
    """Raise the errors of a block by the caller's names."""
    try:
        yield
    except InvalidRequest as error:
        made = renamed(error, names)
        if made is error:
            raise
        raise made from made.__cause__


def placed(error: BoughsError, names: Names, prompt: str) -> BoughsError:
    """The error of one prompt of a list: by the caller's names, and with the prompt's place.

    Args:
        error: Of one request of a call.
        names: Of that request's fields.
        prompt: What the caller calls its prompt (`text[1]`).
    """
    made = renamed(error, names)
    if isinstance(made, InvalidRequest):
        if (made.param or "").startswith(prompt):
            return made
        return type(made)(f"{prompt}: {made}", made.param)
    return type(made)(f"{prompt}: {made}")
