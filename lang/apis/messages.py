"""What a state's segments are to an API: messages, or one text.

This module knows no API; what one cannot take is refused by `model.py` and the API's own file.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from boughs.lang.errors import Unsupported
from boughs.lang.requests import Prompt
from boughs.lang.segments import Content, Ids, Image, Role, Segment, Text, chatml

Message = dict[str, Any]
"""`role` and `content`: a text, or texts and `Image`s in turn."""


@dataclass(frozen=True)
class Conversation:
    """Messages, and what the assistant has said of the next one.

    Attributes:
        messages: Those that have ended.
        said: The text of the assistant's turn that is open; empty at its begin.
    """

    messages: tuple[Message, ...]
    said: str = ""

    def ask(self, text: str) -> Conversation:
        """The same with another message of the user before the open turn."""
        return replace(self, messages=(*self.messages, {"role": "user", "content": text}))

    def to_json(self) -> list[Message]:
        """All messages; where the open turn has begun, it is the last of them."""
        begun = [{"role": "assistant", "content": self.said}] if self.said else []
        return [dict(message) for message in self.messages] + begun


def segments(prompt: Prompt, api: str) -> list[Segment]:
    """The prompt as segments that an API can be told.

    Raises:
        Unsupported: It holds token ids.
    """
    if isinstance(prompt, str):
        return [Text(prompt)]
    found: list[Segment] = [item for item in prompt if not isinstance(item, int | Ids)]
    if len(found) != len(prompt):
        raise Unsupported(f"prompt: {api} takes text, and this prompt holds token ids", "prompt")
    return found


def rendered(prompt: list[Segment]) -> list[str]:
    """The role marks as ChatML, to be shown: an API does not tell the marks of its model."""
    return [chatml(segment) for segment in prompt if isinstance(segment, Role)]


def plain(prompt: list[Segment], api: str) -> str:
    """The prompt as one text.

    Raises:
        Unsupported: It has roles.
    """
    texts = []
    for segment in prompt:
        if isinstance(segment, Role):
            raise Unsupported(
                f"role {segment.role!r}: {api} continues a text and knows no roles; write the "
                "turns as text, or use a chat model",
                "role",
            )
        if isinstance(segment, Image):
            raise Unsupported(f"image: {api} continues a text and takes no images", "image")
        texts.append(_text(segment))
    return "".join(texts)


def conversation(prompt: list[Segment], api: str) -> Conversation:
    """The prompt as messages. White space between turns is not part of any and is left out.

    Raises:
        Unsupported: There is text outside of roles, or it is not the assistant's turn.
    """
    messages: list[Message] = []
    role: str | None = None
    said: list[str | Image] = []
    for segment in prompt:
        if isinstance(segment, Role):
            if segment.at == "end" and role is not None:
                messages.append({"role": role, "content": _joined(said)})
            role = segment.role if segment.at == "begin" else None
            said = []
            continue
        if isinstance(segment, Image):
            if role != "user":
                raise Unsupported("image: only a user shows images; put it into user(…)", "image")
            said.append(segment)
            continue
        text = _text(segment)
        if role is not None:
            said.append(text)
        elif text.strip():
            raise Unsupported(
                f"text {text.strip()[:40]!r} outside of roles: {api} takes messages; put it into "
                "user(…), system(…) or assistant(…)",
                "prompt",
            )
    if role != "assistant":
        where = "outside of roles" if role is None else f"in a turn of {role}"
        raise Unsupported(
            f"generation {where}: {api} answers as the assistant; put it into assistant(…)",
            "prompt",
        )
    begun = _joined(said)
    assert isinstance(begun, str), "images are of users"
    return Conversation(tuple(messages), begun)


def open_turn(prompt: list[Segment]) -> tuple[list[Segment], str]:
    """The prompt up to the last role mark, and the text after it."""
    last = max((i for i, item in enumerate(prompt) if isinstance(item, Role)), default=-1) + 1
    return prompt[:last], "".join(_text(item) for item in prompt[last:])


def added(before: list[Segment], now: list[Segment]) -> str | None:
    """The text that `now` has after all of `before`; None where that is not all it has."""
    old, new = ([s for s in part if s != Text("")] for part in (before, now))
    rest = new[len(old) :]
    if new[: len(old)] != old or any(isinstance(segment, Role | Image) for segment in rest):
        return None
    return "".join(map(_text, rest))


def _joined(said: list[str | Image]) -> str | list[str | Image]:
    """A content: one text, or texts and images where there are any."""
    parts: list[str | Image] = []
    for part in said:
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        else:
            parts.append(part)
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if len(texts) == len(parts) else parts


def _text(segment: Segment) -> str:
    assert isinstance(segment, Text | Content), "others were refused or are marks"
    return segment.text if isinstance(segment, Text) else segment.content
