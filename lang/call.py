"""One request of a program as it is noted while it runs, and who wrote a piece of a state's text.

This module knows no state and no backend.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from boughs.lang.results import Answer, Scores
from boughs.lang.usage import Usage

CallKind = Literal["gen", "select", "prefill"]


@dataclass(eq=False)
class Call:
    """One request.

    Attributes:
        kind: What it was for. A prefill computes what branches share, or has role marks rendered.
        name: The variable that it makes, if any.
        rid: The request's id.
        began: When, by `time.perf_counter`.
        answers: What has come so far, by choice, while it runs.
        usage: What it cost, once it has ended.
        seconds: How long it took, once it has ended.
        text: What the first choice's text is, once it has ended.
        token_chars: As `Chunk.token_chars`, of the first choice.
        forced_at: Beside it.
        choices: How many answers there were.
        finish: Why the first one ended.
        probs: How likely each choice of a select was.
        failed: Whether it ended without a whole answer.
        problem: Why the variable has no value, where the text is not one of its type.
    """

    kind: CallKind
    name: str | None
    rid: str
    began: float = field(default_factory=time.perf_counter)
    answers: dict[int, Answer] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    seconds: float | None = None
    text: str = ""
    token_chars: Sequence[int] = ()
    forced_at: Sequence[int] = ()
    choices: int = 1
    finish: str | None = None
    probs: dict[str, float] | None = None
    failed: bool = False
    problem: str | None = None

    @property
    def elapsed(self) -> float:
        """Seconds that it took, or takes so far."""
        return time.perf_counter() - self.began if self.seconds is None else self.seconds

    def so_far(self) -> Usage:
        """What it cost, or costs so far."""
        if self.seconds is not None:
            return self.usage
        return Usage.of_answers(tuple(self.answers.values()), self.elapsed)

    def end(self, *, failed: bool = False) -> None:
        """All answers are in `answers`, or none will come any more."""
        seconds = time.perf_counter() - self.began
        ordered = [self.answers[index] for index in sorted(self.answers)]
        self.usage = Usage.of_answers(ordered, seconds)
        self.failed, self.choices = failed, max(len(ordered), 1)
        if ordered:
            first = ordered[0]
            self.text, self.finish = first.text, None if first.finish is None else first.finish.type
            self.token_chars = first.token_chars or ()
            self.forced_at = first.forced_at or ()
        self.seconds = seconds  # from here on others read what is above
        self.answers = {}

    def end_select(self, scores: Scores | None) -> None:
        """The choices are scored; None: they will not be."""
        seconds = time.perf_counter() - self.began
        self.failed = scores is None
        if scores is not None:
            self.usage = Usage.of_scores(scores, seconds)
        self.seconds = seconds


Writer = Literal["program", "template", "model", "choice"]


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote a piece of text.

    Attributes:
        writer: The program; the model's template, a role mark; the model; or a select.
        call: The request, where one made it.
        mark: What a role mark stands for: `user begins`.
    """

    writer: Writer
    call: Call | None = None
    mark: str = ""


PROGRAM = Author("program")
MODEL = Author("model")
