"""Messages, and the content that users write in them.

This module knows no template: how a role is marked is the backend's to say.
"""

from __future__ import annotations

from boughs.lang.errors import InvalidRequest
from boughs.lang.expression import Expression, Sum, as_expression, terms
from boughs.lang.ir import Content, RoleBegin, RoleEnd


def content(text: str) -> Expression:
    """A text of a user, in which special tokens stay text wherever it stands.

    In `user` and `system` turns a plain string is treated so already; outside of roles and in an
    assistant's turn it is the author's text.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"content: expected a text, got {type(text).__name__}", "text")
    return Content(text)


def role(name: str, expr: str | Expression | None = None) -> Expression:
    """A message of any role that the model's template knows."""
    inner = () if expr is None else terms(as_expression(expr, name))
    return Sum((role_begin(name), *inner, role_end(name)))


def role_begin(name: str) -> Expression:
    """The begin of a message."""
    return RoleBegin(_check_role(name))


def role_end(name: str) -> Expression:
    """The end of a message."""
    return RoleEnd(_check_role(name))


def system(expr: str | Expression | None = None) -> Expression:
    """A system message."""
    return role("system", expr)


def user(expr: str | Expression | None = None) -> Expression:
    """A user's message."""
    return role("user", expr)


def assistant(expr: str | Expression | None = None) -> Expression:
    """A message of the assistant."""
    return role("assistant", expr)


def system_begin() -> Expression:
    """The begin of a system message."""
    return role_begin("system")


def system_end() -> Expression:
    """The end of a system message."""
    return role_end("system")


def user_begin() -> Expression:
    """The begin of a user's message."""
    return role_begin("user")


def user_end() -> Expression:
    """The end of a user's message."""
    return role_end("user")


def assistant_begin() -> Expression:
    """The begin of a message of the assistant."""
    return role_begin("assistant")


def assistant_end() -> Expression:
    """The end of a message of the assistant."""
    return role_end("assistant")


def _check_role(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InvalidRequest(f"role: a role's name is a string, got {name!r:.60}", "name")
    return name
