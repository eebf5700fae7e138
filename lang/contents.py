"""What a state holds: segments for the backend, their text for people, variables.

Plain data that the executor changes and a fork copies. This module knows no queue, no thread and
no backend.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from boughs.lang import segments as seg
from boughs.lang.call import MODEL, PROGRAM, Author, Call
from boughs.lang.errors import InvalidRequest
from boughs.lang.failure import Failure
from boughs.lang.results import Answer


@dataclass(frozen=True)
class Origin:
    """How much a branch had when it began."""

    segments: int
    shown: int
    marks: int
    messages: int
    begun: int


@dataclass
class Contents:
    """A state's contents.

    Attributes:
        segments: What a request is made of.
        shown: The text of what was added, piece by piece; a role mark's is empty until a backend
            rendered it.
        authors: Who wrote each piece of `shown`.
        marks: The places of the role marks in `shown`.
        known: How many of the marks are rendered for good.
        messages: The messages that have ended, in OpenAI's form.
        images: The URL of each image, by its place in `shown`, where its text is empty.
        role: The role of the open message, if any.
        begun: Where its content begins in `shown`.
        variables: Name to value.
        raws: Name to text, for variables whose values were read from it.
        unread: Name to why there is no value, for variables that cannot be read.
        meta: Name to meta info, for variables that a request made.
        probs: Name to the probabilities of its choices, for selects.
        scopes: Name to where it begins in `shown`, for open variable scopes.
        written: The variables set since the state began.
        origin: Where the branch began, if it is one.
        healed: The answer that a branch began with: its tokens may spell text of before the fork.
    """

    segments: list[seg.Segment] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    authors: list[Author] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    known: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    images: dict[int, str] = field(default_factory=dict)
    role: str | None = None
    begun: int = 0
    variables: dict[str, Any] = field(default_factory=dict)
    raws: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, Failure] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    probs: dict[str, dict[str, float]] = field(default_factory=dict)
    scopes: dict[str, int] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    origin: Origin | None = None
    healed: Answer | None = None

    def copy(self) -> Contents:
        """What a branch begins with."""
        return Contents(
            segments=list(self.segments),
            shown=list(self.shown),
            authors=list(self.authors),
            marks=list(self.marks),
            known=self.known,
            messages=[dict(message) for message in self.messages],
            images=dict(self.images),
            role=self.role,
            begun=self.begun,
            variables=dict(self.variables),
            raws=dict(self.raws),
            unread=dict(self.unread),
            meta=dict(self.meta),
            probs=dict(self.probs),
            scopes=dict(self.scopes),
            origin=Origin(
                segments=len(self.segments),
                shown=len(self.shown),
                marks=len(self.marks),
                messages=len(self.messages),
                begun=self.begun,
            ),
        )

    def prompt(self) -> list[seg.Segment]:
        """What a request continues. Before anything is added, an empty text (and so a BOS)."""
        return list(self.segments) or [seg.Text("")]

    def text(self, begin: int = 0) -> str:
        """All text from the piece `begin` on."""
        return "".join(self.shown[begin:])

    @property
    def settled(self) -> int:
        """How many pieces of `shown` come before the first mark that is not rendered yet."""
        return self.marks[self.known] if self.known < len(self.marks) else len(self.shown)

    def add_text(self, text: str) -> None:
        """Add what the program's author wrote, or what its role makes of it."""
        if self.role in (None, "assistant"):
            self._add(seg.Text(text), text)
        else:
            self._add(seg.Content(text), text)

    def add_content(self, text: str, author: Author = PROGRAM) -> None:
        """Add a user's text, or what is treated as such."""
        self._add(seg.Content(text), text, author)

    def add_image(self, kind: str, data: bytes) -> None:
        """Add an image of a user.

        Raises:
            InvalidRequest: It is not the user's turn.
        """
        if self.role != "user":
            where = "outside of roles" if self.role is None else f"in a turn of {self.role}"
            raise InvalidRequest(f"image: it stands {where}; put it into user(…)", "image")
        image = seg.Image(kind, base64.b64encode(data).decode())
        self.images[len(self.shown)] = image.url
        self.segments.append(image)
        self._show("", PROGRAM)

    def add_choice(self, text: str, call: Call | None = None) -> None:
        """Add a choice, as the text that it was scored as."""
        self._add(seg.Text(text), text, Author("choice", call))

    def add_answer(self, answer: Answer, author: Author = MODEL) -> None:
        """Add what a backend produced."""
        if self.origin is not None and len(self.segments) == self.origin.segments:
            self.healed = answer
        self.segments += answer.segments
        self._show(answer.text, author)

    def add_message(self, role: str, text: str) -> Callable[[], None]:
        """Add a whole message of content; what is returned takes it away again."""
        before = (len(self.segments), len(self.shown), len(self.marks), len(self.messages))
        begun = self.begun
        self.begin_role(role)
        self.add_content(text)
        self.end_role(role)

        def undo() -> None:
            lists: tuple[list[Any], ...] = (self.segments, self.shown, self.marks, self.messages)
            for held, size in zip(lists, before, strict=True):
                del held[size:]
            del self.authors[len(self.shown) :]
            self.begun = begun

        return undo

    def begin_role(self, role: str) -> None:
        """Open a message."""
        if self.role is not None:
            raise InvalidRequest(f"a {role} message begins inside of the {self.role} message")
        self.role = role
        self._add_mark(seg.Role(role, "begin"))
        self.begun = len(self.shown)

    def end_role(self, role: str) -> None:
        """Close the open message."""
        if self.role != role:
            inside = f"the open one is {self.role}" if self.role else "none is open"
            raise InvalidRequest(f"a {role} message ends, but {inside}")
        self.messages.append({"role": role, "content": self._content()})
        self.role = None
        self._add_mark(seg.Role(role, "end"))

    def render(self, texts: Sequence[str], *, final: bool = True) -> None:
        """Take over the texts of the marks that a request held: the first `len(texts)` ones.

        Those that are known stay as they are, as streams have told them.

        Args:
            texts: In order.
            final: Whether something followed the last mark. If not, and it is a begin, what
                follows may change its text.
        """
        for place, text in list(zip(self.marks, texts, strict=False))[self.known :]:
            self.shown[place] = text
        known = len(texts)
        if not final and known == len(self.marks) and self._ends_with_begin():
            known -= 1
        self.known = max(self.known, known)

    def append_from(self, branch: Contents) -> None:
        """Append what `branch` holds beyond what it began with."""
        origin = branch.origin
        assert origin is not None, "only branches are joined"
        offset = len(self.shown) - origin.shown
        self.segments += branch.own_segments(len(self.segments))
        self.marks += [place + offset for place in branch.marks[origin.marks :]]
        begun = (at for at in branch.images if at >= origin.shown)
        self.images.update({at + offset: branch.images[at] for at in begun})
        self.shown += branch.shown[origin.shown :]
        self.authors += branch.authors[origin.shown :]
        self.messages += branch.messages[origin.messages :]
        if branch.begun != origin.begun:
            self.role, self.begun = branch.role, branch.begun + offset
        elif branch.role is None:
            self.role = None

    def own_segments(self, at: int) -> list[seg.Segment]:
        """What a branch holds beyond what it began with, to be put behind `at` segments.

        Tokens that also spell the end of the text before the fork are given as text in any other
        place.
        """
        assert self.origin is not None, "only branches are joined"
        own = self.segments[self.origin.segments :]
        first = own[0] if own else None
        if at == self.origin.segments or not isinstance(first, seg.Ids) or not first.skip_bytes:
            return own
        assert self.healed is not None, "a fork begins with no text to be skipped"
        return [seg.Text(self.healed.text), *own[len(self.healed.segments) :]]

    def set(self, name: str, value: Any, meta: Any = None) -> None:
        """Give a variable a value, with the meta info of the request that made it."""
        self.variables[name] = value
        self.written.add(name)
        for other in (self.probs, self.raws, self.unread):
            other.pop(name, None)
        if meta is None:
            self.meta.pop(name, None)
        else:
            self.meta[name] = meta

    def gather(self, name: str, branches: Sequence[Contents]) -> None:
        """Make a variable the list of what it is in each branch; None where it is not."""
        values = [branch.variables.get(name) for branch in branches]
        self.set(name, values, [branch.meta.get(name) for branch in branches])
        if any(name in branch.raws for branch in branches):
            self.raws[name] = [
                branch.raws.get(name, value) for branch, value in zip(branches, values, strict=True)
            ]
        failures = [branch.unread[name] for branch in branches if name in branch.unread]
        if failures:
            self.unread[name] = failures[0]

    def _content(self) -> str | list[dict[str, Any]]:
        """The content of the open message: a text, or its parts where it has images."""
        if not any(place >= self.begun for place in self.images):
            return self.text(self.begun)
        parts: list[dict[str, Any]] = []
        for place in range(self.begun, len(self.shown)):
            if place in self.images:
                parts.append({"type": "image_url", "image_url": {"url": self.images[place]}})
            elif parts and parts[-1]["type"] == "text":
                parts[-1]["text"] += self.shown[place]
            else:
                parts.append({"type": "text", "text": self.shown[place]})
        return parts

    def _add(self, segment: seg.Segment, text: str, author: Author = PROGRAM) -> None:
        if text:
            self.segments.append(segment)
            self._show(text, author)

    def _add_mark(self, mark: seg.Role) -> None:
        self.marks.append(len(self.shown))
        self.segments.append(mark)
        self._show("", Author("template", mark=f"{mark.role} {mark.at}s"))

    def _show(self, text: str, author: Author) -> None:
        self.shown.append(text)
        self.authors.append(author)

    def _ends_with_begin(self) -> bool:
        last = self.segments[-1] if self.segments else None
        return isinstance(last, seg.Role) and last.at == "begin"
