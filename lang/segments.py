"""A program's state as plain data: a list of segments.

Tokens that a model produced are never tokenized again, so a state is not one string: it is text,
a user's content, role marks and token ids in the order in which they came. The engine's front
turns the list into one prompt; `docs/design.md`, section 2, has the rules. The JSON form (the
`segments` field of `POST /generate`) is the structs below without a tag: a segment is known by
the one key that only it has.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from boughs.lang.errors import InvalidRequest


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Text that the program's author wrote. Special tokens in it are parsed."""

    text: str


class Content(msgspec.Struct, frozen=True, tag="content"):
    """A user's text. Special tokens in it stay text."""

    content: str


class Role(msgspec.Struct, frozen=True, tag="role"):
    """The begin or end of a message. The front renders it with the model's own template."""

    role: str
    at: Literal["begin", "end"]


class Ids(msgspec.Struct, frozen=True, tag="ids"):
    """Tokens that a model produced. They are never tokenized again.

    `skip_bytes` says how many of their first bytes belong to the text before.
    """

    ids: list[int]
    skip_bytes: int = 0


class Image(msgspec.Struct, frozen=True, tag="image"):
    """An image that a user shows. Only models behind APIs have eyes; an engine refuses it.

    `kind` is its media type, `data` the file in base64.
    """

    kind: str
    data: str

    @property
    def url(self) -> str:
        """All of it as a URL."""
        return f"data:{self.kind};base64,{self.data}"


Segment = Text | Content | Role | Ids | Image

_KINDS: dict[str, type[Text] | type[Content] | type[Role] | type[Ids]] = {
    "text": Text,
    "content": Content,
    "role": Role,
    "ids": Ids,
}


def to_json(segment: Segment) -> dict[str, Any]:
    """The wire form of a segment."""
    plain: dict[str, Any] = msgspec.to_builtins(segment)
    plain.pop("type")
    return plain


def chatml(role: Role) -> str:
    """A role mark as ChatML: how it is shown where a model's own marks are not known."""
    return f"<|im_start|>{role.role}\n" if role.at == "begin" else "<|im_end|>\n"


def from_json(value: object, where: str = "segments") -> list[Segment]:
    """The segments that `value`, a list of JSON objects, stands for.

    Raises:
        InvalidRequest: Names the place (`segments[3].ids[0]`) and what is expected there.
    """
    if not isinstance(value, list):
        raise InvalidRequest(f"{where}: expected a list of segments, got {value!r:.40}", where)
    return [_segment(item, f"{where}[{i}]") for i, item in enumerate(value)]


def _segment(item: object, where: str) -> Segment:
    if not isinstance(item, dict):
        raise InvalidRequest(f"{where}: expected an object, got {item!r:.40}", where)
    kinds = [key for key in _KINDS if key in item]
    if len(kinds) != 1:
        raise InvalidRequest(
            f"{where}: a segment has exactly one of the keys text, content, role, ids; "
            f"got {sorted(item)}",
            where,
        )
    kind = _KINDS[kinds[0]]
    unknown = sorted(set(item) - set(kind.__struct_fields__))
    if unknown:
        raise InvalidRequest(f"{where}: unknown key {unknown[0]!r}", where)
    try:
        return msgspec.convert({"type": kinds[0], **item}, kind)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{where}: {error}", where) from None
