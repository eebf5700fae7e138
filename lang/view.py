"""What `state.trace()` shows: a state's text by who wrote it, its branches, requests and errors.

    trace = state.trace()
    rich.print(trace)          # coloured on a terminal, plain where it is piped
    trace.save("trace.html")   # one file that needs no other

In a notebook it shows itself. It is plain data, made of a state's journal at one moment; how it is
drawn is in `view_text` and `view_html`. This module runs nothing and asks no backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from boughs.lang.call import Author, Call, CallKind
from boughs.lang.contents import Contents
from boughs.lang.errors import InvalidRequest
from boughs.lang.journal import Journal
from boughs.lang.usage import Usage

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Writer = Literal["program", "template", "model", "forced", "choice"]
Status = Literal["running", "finished", "failed"]


@dataclass(frozen=True)
class Request:
    """A request of a state.

    Attributes:
        kind: What it was for; a prefill computes what branches share, or has role marks rendered.
        name: The variable that it made, if any.
        text: Of the first choice, so far.
        usage: What it cost so far.
        begin: Seconds from the begin of the state that the trace was asked of.
        choices: How many answers there were.
        finish: Why the first one ended; None while it runs, and of a select.
        probs: How likely each choice of a select was, where the backend scores.
        failed: Whether it ended without a whole answer.
    """

    kind: CallKind
    name: str | None
    text: str
    usage: Usage
    begin: float
    choices: int = 1
    finish: str | None = None
    probs: dict[str, float] | None = None
    failed: bool = False


@dataclass(frozen=True)
class Span:
    """Text by one writer.

    Attributes:
        text: May be empty: a role mark that is not rendered, an answer without text.
        writer: The program; the model's template; the model; a grammar that forced the model; a
            select.
        tokens: The text token by token, where the backend tells it.
        request: Where it came from, if from one.
        mark: What a role mark stands for: `user begins`.
    """

    text: str
    writer: Writer
    tokens: tuple[str, ...] = ()
    request: Request | None = None
    mark: str = ""


@dataclass(frozen=True)
class Fault:
    """An error, where it happened."""

    message: str


@dataclass(frozen=True)
class Branches:
    """Branches, where they began; `joined` says how they were joined, if they were."""

    states: tuple[StateTrace, ...]
    joined: str | None = None


Part = Span | Fault | Branches


@dataclass(frozen=True)
class StateTrace:
    """What happened in a state.

    Attributes:
        label: What errors call it.
        status: `running`, `finished` or `failed`.
        seconds: From its begin to its end, or to now.
        parts: What was added to it, in order.
        requests: Its own ones, in order, those that only prefill among them.
        before: Of a branch that was asked for by itself: the text that it began with.
    """

    label: str
    status: Status
    seconds: float
    parts: tuple[Part, ...]
    requests: tuple[Request, ...]
    before: tuple[Span, ...] = ()

    @property
    def spans(self) -> tuple[Span, ...]:
        """All text of the state, without that of its branches; joined it is `state.text()`."""
        return (*self.before, *(part for part in self.parts if isinstance(part, Span)))

    @property
    def text(self) -> str:
        """The same as a text."""
        return "".join(span.text for span in self.spans)

    @property
    def branches(self) -> tuple[StateTrace, ...]:
        """The states that were forked from this one."""
        found = [part.states for part in self.parts if isinstance(part, Branches)]
        return tuple(state for states in found for state in states)

    @property
    def usage(self) -> Usage:
        """What its requests cost, and those of its branches."""
        return Usage.total(request.usage for state in self.walk() for request in state.requests)

    def walk(self) -> Iterator[StateTrace]:
        """This state and all branches in it, in the order in which they began."""
        yield self
        for branch in self.branches:
            yield from branch.walk()

    def html(self) -> str:
        """A whole HTML document that needs no other file."""
        from boughs.lang import view_html

        return view_html.document(self)

    def plain(self) -> str:
        """As text without colours: «model», «=forced by a grammar=», «?chosen?»."""
        from boughs.lang import view_text

        return view_text.plain(self)

    def save(self, path: str | Path) -> None:
        """Write it to a file: `.html` as `html` makes it, or `.txt` as `plain` does.

        Raises:
            InvalidRequest: The name ends otherwise.
            OSError: The file cannot be written.
        """
        kinds = {".html": self.html, ".htm": self.html, ".txt": self.plain}
        make = kinds.get(Path(path).suffix.lower())
        if make is None:
            raise InvalidRequest(
                f"path: expected a name in .html or .txt, got {path!s:.80}", "path"
            )
        Path(path).write_text(make(), encoding="utf-8", errors="replace")

    def __str__(self) -> str:
        """As `print` shows it: in colours if standard output is a terminal, else plain."""
        from boughs.lang import view_text

        return view_text.shown(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from boughs.lang import view_text

        yield view_text.drawn(self, marked=console.color_system is None or console.no_color)

    def _repr_html_(self) -> str:
        from boughs.lang import view_html

        return view_html.fragment(self)


def look(journal: Journal, contents: Contents) -> StateTrace:
    """What happened in a state so far, and in its branches.

    Args:
        journal: The state's.
        contents: All that it holds, also if its journal has let go of it.
    """
    looker = _Looker(journal.began)
    start = journal.start
    own = (contents.shown[start:], contents.authors[start:])
    before = looker.spans(contents.shown[:start], contents.authors[:start])
    return looker.state(journal, own, tuple(before))


@dataclass
class _Looker:
    """Makes the states of one trace.

    Args:
        began: When the state began that the trace was asked of.
    """

    began: float
    _requests: dict[int, Request] = field(default_factory=dict)  # by the identity of the call

    def state(
        self,
        journal: Journal,
        own: tuple[Sequence[str], Sequence[Author]],
        before: tuple[Span, ...] = (),
        parent: Journal | None = None,
    ) -> StateTrace:
        """A state with these pieces of its own."""
        shown, authors = own
        parts: list[Part] = []
        at = 0
        for forked in journal.forks:
            end = forked.at - journal.start
            parts += self.written(shown[at:end], authors[at:end])
            at = end
            inner = [self.state(b, b.own(), parent=journal) for b in forked.branches]
            parts.append(Branches(tuple(inner), forked.joined))
        parts += self.written(shown[at:], authors[at:])
        parts += self._unfinished(journal)
        if journal.failure is not None:
            above = None if parent is None else parent.failure
            with_parent = above is not None and above.error is journal.failure.error
            parts.append(_fault(journal, with_parent=with_parent))
        return StateTrace(
            label=journal.label,
            status=_status(journal),
            seconds=journal.seconds,
            parts=tuple(parts),
            requests=tuple(map(self.request, journal.calls)),
            before=before,
        )

    def written(self, shown: Sequence[str], authors: Sequence[Author]) -> Iterator[Part]:
        """Pieces of text, each with what is wrong with the value that was read from it."""
        for text, author in zip(shown, authors, strict=True):
            yield from self.spans([text], [author])
            if author.call is not None and author.call.problem is not None:
                yield Fault(author.call.problem)

    def spans(self, shown: Sequence[str], authors: Sequence[Author]) -> Iterator[Span]:
        """Pieces of text by their writers."""
        for text, author in zip(shown, authors, strict=True):
            call = author.call
            if call is None:
                yield Span(text, author.writer, mark=author.mark)
            elif author.writer == "choice" or text != call.text:
                yield Span(text, author.writer, request=self.request(call))
            else:
                yield from self._answer(text, call.token_chars, call.forced_at, self.request(call))

    def request(self, call: Call) -> Request:
        """What there is to tell about a request; always the same object."""
        made = self._requests.get(id(call))
        if made is None:
            first = call.answers.get(0)
            made = self._requests[id(call)] = Request(
                kind=call.kind,
                name=call.name,
                text=call.text if first is None else first.text,
                usage=call.so_far(),
                begin=call.began - self.began,
                choices=call.choices,
                finish=call.finish,
                probs=call.probs,
                failed=call.failed,
            )
        return made

    def _answer(
        self, text: str, chars: Sequence[int], forced_at: Sequence[int], request: Request
    ) -> Iterator[Span]:
        """An answer, cut where a grammar began or ceased to force the model."""
        forced, at, begin = frozenset(forced_at), 0, 0
        tokens: list[str] = []
        for i, count in enumerate(chars):
            token = text[at : at + count]  # empty beyond a trimmed stop
            at += len(token)
            if token:
                tokens.append(token)
            last = i + 1 == len(chars)
            if last or (i in forced) != (i + 1 in forced):
                end = len(text) if last else at
                if end > begin:
                    writer: Writer = "forced" if i in forced else "model"
                    yield Span(text[begin:end], writer, tuple(tokens), request)
                tokens, begin = [], end
        if not chars or not text:
            yield Span(text, "model", request=request)

    def _unfinished(self, journal: Journal) -> Iterator[Span]:
        """What the last request has made so far, or had made when it failed."""
        last = journal.calls[-1] if journal.calls else None
        if last is not None and last.kind == "gen" and (last.seconds is None or last.failed):
            request = self.request(last)
            if request.text:
                yield Span(request.text, "model", request=request)


def _fault(journal: Journal, *, with_parent: bool) -> Fault:
    """What ended a state: told once, where it happened."""
    failure = journal.failure
    assert failure is not None, "it has failed"
    if journal.blames_branch:
        return Fault("ended by an error of a branch")
    if with_parent and not journal.owns_failure:
        return Fault("ended with the state that it was forked from")
    error = failure.make()
    return Fault(f"{type(error).__name__}: {error}")


def _status(journal: Journal) -> Status:
    if journal.failure is not None:
        return "failed"
    return "running" if journal.ended is None else "finished"
