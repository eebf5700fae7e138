"""Messages rendered with the model's own chat template.

The template is a program that renders a whole conversation; what a state needs is the text of
each role mark by itself. It is found by rendering the messages so far with a sentinel in place of
each content and cutting at the sentinels. This module knows no tokens and no requests.
"""

from __future__ import annotations

import functools
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from jinja2.exceptions import TemplateError

from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.segments import Content, Ids, Role, Segment, Text

from .conversation import plain_messages, texts_in
from .tokenizer import Tokenizer

_REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError)
"""What a template raises, of itself or because a message is not what it expects."""

_REASONING = (("<think>", "</think>"), ("◁think▷", "◁/think▷"))
"""The marks around a reasoning that models write."""

MAX_KNOWN = 4096
"""Conversations (as roles in turn) whose marks are remembered."""


class ChatTemplate:
    """The chat template of one model.

    Args:
        tokenizer: Its tokenizer, which holds the template.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._nonce = "x" + secrets.token_hex(8)
        self._marks: dict[tuple[str, ...], tuple[str, str, str]] = {}
        """Roles in turn -> the last one's begin before text, begin before a generation, end."""
        self._settled: dict[tuple[str, ...], str | None] = {}
        """Roles in turn -> the begin of the last but one."""

    def render_roles(self, segments: Sequence[Segment]) -> list[str]:
        """The text of each role mark of a state, in order.

        An assistant's begin which a generation follows is the template's generation prompt, as
        far as it has one; every other mark is what the template writes around a content. Some
        templates write the begin of a turn otherwise once the next one has come (they mark
        missing reasoning in the last answer only): so does this, unless the turn holds what a
        model generated, which keeps the marks that the model saw.

        Raises:
            InvalidRequest: Marks that do not pair, or a conversation that the template refuses.
            Unsupported: There is no template, or it moves or drops earlier turns.
        """
        rendered: list[str] = []
        roles: list[str] = []
        is_open = False
        for at, segment in enumerate(segments):
            if not isinstance(segment, Role):
                continue
            where = f"segments[{at}]"
            if segment.at == "begin":
                if is_open:
                    raise InvalidRequest(
                        f"{where}: {segment.role} begins inside {roles[-1]}; end that one first",
                        where,
                    )
                roles.append(segment.role)
            elif not is_open or segment.role != roles[-1]:
                inside = f"{roles[-1]} is open" if is_open else "no message is open"
                raise InvalidRequest(f"{where}: {segment.role} ends, but {inside}", where)
            is_open = segment.at == "begin"
            before_text, before_output, end = self._marks_of(tuple(roles))
            if segment.at == "end":
                rendered.append(end)
            elif all(isinstance(s, Ids) for s in segments[at + 1 : at + 2]):
                rendered.append(before_output)
            else:
                following = _next_role(segments, at + 1)
                settled = None if following is None else self._settled_begin(*roles, following)
                rendered.append(before_text if settled is None else settled)
            if len(rendered) == 1 and any(_is_something(before) for before in segments[:at]):
                rendered[0] = rendered[0].removeprefix(self._bos)
        return rendered

    def render_messages(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> list[Segment]:
        """A conversation in OpenAI's form as segments; special tokens in contents stay text.

        Args:
            messages: Dicts with `role`, `content` (a string, a list of text parts, or None), and
                what else the template knows (`tool_calls`, `name`).
            add_generation_prompt: Whether an answer of the assistant is to follow.
            continue_final_message: Whether the last message is to be continued: the rendering
                ends with its content.
            kwargs: Passed to the template (`tools`, `enable_thinking`).

        Raises:
            InvalidRequest: The messages are malformed, or the template refuses them.
            Unsupported: There is no template, or it rewrites a content that holds special tokens.
        """
        plain = plain_messages(messages)
        self._require_no_special(plain)
        if continue_final_message:
            add_generation_prompt = False
            if not plain[-1].get("content"):
                raise InvalidRequest(
                    "messages: the last one has no content to continue", "messages"
                )
        contents = [message.get("content") or "" for message in plain]
        marked = [
            {**message, "content": self._sentinel(at)} if content else message
            for at, (message, content) in enumerate(zip(plain, contents, strict=True))
        ]
        kwargs["add_generation_prompt"] = add_generation_prompt
        whole, cut = self._render(plain, **kwargs), self._render(marked, **kwargs)
        segments = self._filled(cut, contents, whole)
        if segments is not None:
            return _up_to_last_content(segments) if continue_final_message else segments
        if any(token in content for token in self._tokenizer.control for content in contents):
            raise Unsupported(
                f"{self._tokenizer.name}: a message holds the text of a special token, and the "
                "chat template rewrites it; take it out of the message",
                "messages",
            )
        if continue_final_message:
            raise Unsupported(
                f"{self._tokenizer.name}: the chat template rewrites the last message, which can "
                "therefore not be continued",
                "messages",
            )
        return [Text(whole)]

    @functools.cached_property
    def dropped_reasoning(self) -> list[str]:
        """The marks behind a reasoning that the template takes out of turns that are over."""
        return [end for begin, end in _REASONING if self._drops(begin, end)]

    # ---- role marks ----

    def _drops(self, begin: str, end: str) -> bool:
        thought, answer = self._sentinel(1), self._sentinel(2)
        messages = self._marked(("user", "assistant", "user"))
        messages[1]["content"] = f"{begin}\n{thought}\n{end}\n\n{answer}"
        try:
            rendered = self._render(messages)
        except InvalidRequest:  # it has no such turns
            return False
        return answer in rendered and thought not in rendered

    @property
    def _bos(self) -> str:
        return self._tokenizer.hf.bos_token or ""

    def _marks_of(self, roles: tuple[str, ...]) -> tuple[str, str, str]:
        """The last message's marks in a conversation of these roles."""
        if roles not in self._marks:
            while len(self._marks) >= MAX_KNOWN:
                self._marks.pop(next(iter(self._marks)), None)
            self._marks[roles] = self._find_marks(roles)
        return self._marks[roles]

    def _settled_begin(self, *roles: str) -> str | None:
        """The begin of the last message but one, now that the last one has come.

        None where the template does not say: the marks of the last one will tell what is wrong.
        """
        if roles not in self._settled:
            while len(self._settled) >= MAX_KNOWN:
                self._settled.pop(next(iter(self._settled)), None)
            last_end = self._marks_of(roles[:-2])[2] if len(roles) > 2 else ""
            begin = None
            with suppress(InvalidRequest):
                begin = self._cut(self._render(self._marked(roles)), roles)[-3]
            if begin is not None and not begin.startswith(last_end):
                begin = None
            self._settled[roles] = None if begin is None else begin.removeprefix(last_end)
        return self._settled[roles]

    def _find_marks(self, roles: tuple[str, ...]) -> tuple[str, str, str]:
        messages = self._marked(roles)
        where = f"message {len(roles)} ({roles[-1]})"
        try:
            *_, before, end = self._cut(self._render(messages, where), roles)
        except InvalidRequest:
            # Some templates write the system's words into the user's first message.
            if roles != ("system",):
                raise
            inside = ("system", "user")
            before, end, _ = self._cut(self._render(self._marked(inside), where), inside)
        last_end = self._marks_of(roles[:-1])[2] if len(roles) > 1 else ""
        begin = self._new_text(before, last_end)
        if roles[-1] != "assistant" or len(roles) == 1:
            return begin, begin, end
        prompted = self._render(messages[:-1], where, add_generation_prompt=True)
        tail = self._cut(prompted, roles[:-1])[-1]
        return begin, self._new_text(tail, last_end), end

    def _marked(self, roles: Sequence[str]) -> list[dict[str, str]]:
        return [{"role": role, "content": self._sentinel(at)} for at, role in enumerate(roles)]

    def _new_text(self, between: str, last_end: str) -> str:
        """What follows the last message's end in the text between two contents."""
        if not between.startswith(last_end):
            raise self._rewrites()
        return between.removeprefix(last_end)

    def _cut(self, rendering: str, roles: Sequence[str]) -> list[str]:
        """The pieces before, between and behind the contents."""
        parts = re.split(f"{self._nonce}n([0-9]+)z", rendering)
        found = [int(number) for number in parts[1::2]]
        if found == list(range(len(roles))):
            return parts[::2]
        for at, role in enumerate(roles):
            if at not in found and at == len(roles) - 1:
                raise InvalidRequest(
                    f"{self._tokenizer.name}: the chat template has no role {role!r}"
                )
        raise self._rewrites()

    def _rewrites(self) -> Unsupported:
        return Unsupported(
            f"{self._tokenizer.name}: the chat template moves, drops or repeats earlier turns when "
            "new ones come, so that a conversation cannot be continued with roles; write the "
            "marks as text, or use the chat endpoint, which renders every conversation anew"
        )

    # ---- rendering ----

    def _sentinel(self, at: int) -> str:
        """A text for a content: nothing that a template would trim, escape or look into."""
        return f"{self._nonce}n{at}z"

    def _filled(self, cut: str, contents: list[str], whole: str) -> list[Segment] | None:
        """A rendering with its sentinels replaced by contents, trimmed as the template does.

        Args:
            cut: The rendering with sentinels.
            contents: What they stand for.
            whole: The rendering with the contents themselves.

        Returns:
            None where the template does more to a content than to trim it.
        """
        text, *rest = re.split(f"{self._nonce}n([0-9]+)z", cut)
        if not whole.startswith(text):
            return None
        segments: list[Segment] = [Text(text)]
        at = len(text)
        for number, text in zip(rest[::2], rest[1::2], strict=True):
            content = contents[int(number)]
            for trimmed in (content, content.strip(), content.lstrip(), content.rstrip()):
                if whole.startswith(trimmed + text, at):
                    break
            else:
                return None
            segments += [Content(trimmed), Text(text)]
            at += len(trimmed) + len(text)
        return [s for s in segments if _is_something(s)] if at == len(whole) else None

    def _require_no_special(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Only contents can be told from what the template writes itself."""
        for at, message in enumerate(messages):
            for key, value in message.items():
                if key == "content":
                    continue
                for text in texts_in(value):
                    if any(token in text for token in self._tokenizer.special):
                        where = f"messages[{at}].{key}"
                        raise Unsupported(
                            f"{where}: it holds the text of a special token; only a content may",
                            where,
                        )

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        where: str = "messages",
        *,
        add_generation_prompt: bool = False,
        **kwargs: Any,
    ) -> str:
        hf = self._tokenizer.hf
        if not hf.chat_template:
            raise Unsupported(
                f"{self._tokenizer.name} has no chat template, so it knows no roles; it is a base "
                "model: write the prompt as text, or put a chat_template.jinja into its folder"
            )
        try:
            rendered = hf.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=add_generation_prompt, **kwargs
            )
        except _REFUSALS as error:
            raise InvalidRequest(
                f"{self._tokenizer.name}: the chat template refuses {where}: {error}", "messages"
            ) from error
        return str(rendered)


def _is_something(segment: Segment) -> bool:
    """Whether a segment adds anything to a prompt."""
    if isinstance(segment, Text | Content):
        return bool(segment.text if isinstance(segment, Text) else segment.content)
    return not isinstance(segment, Ids) or bool(segment.ids)


def _next_role(segments: Sequence[Segment], start: int) -> str | None:
    """The role of the next message, if there is one and nothing was generated before it."""
    for at in range(start, len(segments)):
        segment = segments[at]
        if isinstance(segment, Ids) and segment.ids:
            return None
        if isinstance(segment, Role) and segment.at == "begin":
            return segment.role
    return None


def _up_to_last_content(segments: list[Segment]) -> list[Segment]:
    last = max(at for at, segment in enumerate(segments) if isinstance(segment, Content))
    return segments[: last + 1]
