"""Which submission kills cores: found out without taking its neighbours down.

Under which of many submissions a core died cannot be told. Those that have seen two cores die are
given to the next one at a time, each when the one before has made something there: a submission
goes on where it was when the core died, so that what killed it then kills it at once. New ones
wait meanwhile. This module knows no process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from .submission import Submission

SUSPECTED_AFTER = 2
"""Cores that have died under a submission before it is tried alone."""


class Quarantine:
    """The submissions on their way to a core.

    Args:
        send: Gives a submission to the core.
    """

    def __init__(self, send: Callable[[Submission], None]) -> None:
        self._send = send
        self._line: deque[Submission] = deque()
        self._trial: Submission | None = None

    def begin(self, submissions: Iterable[Submission]) -> None:
        """A new core is there: give it all that is to go on, suspects one at a time."""
        every = list(submissions)
        suspects = [one for one in every if one.tries >= SUSPECTED_AFTER]
        self._line = deque(suspects + [one for one in every if one.tries < SUSPECTED_AFTER])
        self._go_on()

    def add(self, submission: Submission) -> None:
        """A new submission: give it to the core, now or when no suspect is tried any more."""
        if self._trial is None:
            self._send(submission)
        else:
            self._line.append(submission)

    def clear(self, submission: Submission) -> None:
        """It has made something, or has ended: it is not what kills cores."""
        if submission is self._trial:
            submission.tries = 1
            self._go_on()
        elif self._line and submission in self._line:
            self._line.remove(submission)

    def blame(self) -> Submission | None:
        """The core has died: the submission that did it, if one was being tried."""
        trial, self._trial = self._trial, None
        self._line.clear()
        return trial

    def _go_on(self) -> None:
        self._trial = None
        while self._line:
            one = self._line.popleft()
            if one.tries >= SUSPECTED_AFTER:
                self._trial = one
                self._send(one)
                return
            self._send(one)
