"""Every error that Boughs raises for something a caller can cause.

    BoughsError
    ├── InvalidRequest (400)     a parameter or an argument is wrong; names it
    │   ├── Unsupported (400)    a feature that the model or backend does not have
    │   ├── Unservable (400)     a prompt that can never fit the pool or the context
    │   └── GrammarError (400)   a regex, schema or grammar that cannot be compiled
    ├── Unauthorized (401)
    ├── NotFound (404)           a model, a path, a variable of a program
    ├── RequestTimeout (408)
    ├── Overloaded (429)         the queue is full; try again
    ├── RequestAborted (499)     the request was ended before it was complete
    ├── EngineDied (500)         the engine core ended and could not be started again
    ├── Incomplete (500)         a typed value was cut before it was complete
    ├── InvalidValue (500)       a typed value's text is whole, and its type refuses it
    ├── BackendError (502)       what a remote answered that is none of the above
    └── ProgramError             an error inside a program: where, and chained to its cause

`as_error` turns the plain form (`kind`, `message`, `param`) that crosses a process back into the
error itself, `as_answered` that of the wire; `as_plain` gives that form. This module knows nothing
of requests, programs or servers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any


class BoughsError(Exception):
    """The root of all errors that Boughs raises.

    Attributes:
        status: The HTTP status that goes with it.
        results: What became of a batch's items, if `run_batch` raised it: states, and errors in
            their places. Errors that are not ours have it too when a batch raises them.
    """

    status = 500
    results: list[Any] | None = None


class InvalidRequest(BoughsError, ValueError):
    """A parameter or an argument is wrong. The message names the field and the mend.

    Args:
        message: What is wrong and how to mend it.
        param: The field at fault, as the caller wrote it.
    """

    status = 400

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Unsupported(InvalidRequest):
    """A feature that this model or backend does not have."""


class Unservable(InvalidRequest):
    """A prompt that can never fit the pool or the context."""


class GrammarError(InvalidRequest):
    """A regex, schema or grammar that cannot be compiled."""


class Unauthorized(BoughsError):
    """The API key is missing or wrong."""

    status = 401


class NotFound(BoughsError, LookupError):
    """A model, a path or a variable does not exist."""

    status = 404


class RequestTimeout(BoughsError, TimeoutError):
    """A deadline passed before the answer was complete."""

    status = 408


class Overloaded(BoughsError):
    """The queue is full. `retry_after` is in seconds."""

    status = 429
    retry_after = 1.0


class RequestAborted(BoughsError):
    """The request was ended before it was complete."""

    status = 499


class EngineDied(BoughsError):
    """The engine core ended and could not be started again."""


class Incomplete(BoughsError):
    """A typed value was cut before it was complete.

    Attributes:
        text: What there is of it.
        partial: Of JSON, the plain data that this already holds; else None.
    """

    text: str = ""
    partial: object = None


class InvalidValue(BoughsError):
    """A typed value's text is whole, and its type refuses it: a rule that no grammar can hold."""

    text: str = ""


class BackendError(BoughsError):
    """A remote answered something that is no other error of ours."""

    status = 502


class ProgramError(BoughsError):
    """An error inside a program. The message says where; `__cause__` is the error itself."""


_BY_NAME: dict[str, type[BoughsError]] = {
    cls.__name__: cls
    for cls in (
        BoughsError,
        InvalidRequest,
        Unsupported,
        Unservable,
        GrammarError,
        Unauthorized,
        NotFound,
        RequestTimeout,
        Overloaded,
        RequestAborted,
        EngineDied,
        Incomplete,
        InvalidValue,
        BackendError,
    )
}


def as_error(kind: str, message: str, param: str | None = None) -> BoughsError:
    """The error whose class is called `kind`; an unknown kind gives a `BackendError`."""
    error = _BY_NAME.get(kind, BackendError)(message)
    if isinstance(error, InvalidRequest):
        error.param = param
    return error


def as_answered(fault: Mapping[str, Any]) -> BoughsError:
    """The error that a server's answer tells of. A program's parameters stand in no object.

    Raises:
        LookupError: It has no type or message.
    """
    kind, message, param = str(fault["type"]), str(fault["message"]), fault.get("param")
    inside = "sampling_params."
    if isinstance(param, str):
        param = param.removeprefix(inside)
    return as_error(kind, message.removeprefix(inside), param)


def as_plain(error: BoughsError) -> tuple[str, str, str | None]:
    """What `as_error` makes the error of again: class name, message, and field at fault."""
    return type(error).__name__, str(error), getattr(error, "param", None)


def located(error: BaseException, where: str) -> BoughsError:
    """`error` with the place where it happened in its message, and itself as the cause.

    An error of ours stays of its class, with all its attributes; any other becomes a
    `ProgramError`. Each call makes a new one, so that it can be raised to several readers.
    """
    if isinstance(error, BoughsError):
        placed = copy.copy(error)
        placed.args = (f"{where}: {error}", *error.args[1:])
    else:
        placed = ProgramError(f"{where}: {type(error).__name__}: {error}")
    if isinstance(error, InvalidRequest):
        error.__traceback__ = None  # its place is in the user's source, not in a backend's
    placed.__cause__ = error
    return placed
