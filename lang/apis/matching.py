"""Whether a text is what a pattern allows, while it comes.

An API that cannot be held to a pattern is asked again until its answer fits. This module knows no
API.
"""

from __future__ import annotations

from boughs.lang.apis.stops import Pattern, Stopper


class Trial:
    """One attempt at a text that matches a pattern wholly, or is the begin of such a text.

    Stops end the text as they do with an engine: with the stop, it is the begin of a match.

    Attributes:
        text: What was accepted; None as long as nothing was.
        ended: Whether nothing more is to be read.
        cut: Whether the text is only the begin of a match, because of the limit.
    """

    def __init__(self, source: str, stopper: Stopper) -> None:
        self._pattern = Pattern(source, "regex")
        self._stopper = stopper
        self._shown = ""
        self.text: str | None = None
        self.ended = False
        self.cut = False

    @property
    def raw(self) -> str:
        """All that was written."""
        return self._stopper.raw

    def feed(self, text: str) -> bool:
        """Take a piece; whether nothing more is to be read."""
        self._shown += self._stopper.feed(text)
        if not self._pattern.matches(self.raw, partial=True):
            self.text, self.ended = self._longest(), True
        elif self._stopper.matched is not None:
            self.text, self.ended = self._shown, True
        return self.ended

    def finish(self, *, cut: bool) -> None:
        """No more comes; `cut` says that the API's limit was the reason."""
        if self.ended:
            return
        self.ended = True
        self._shown += self._stopper.rest()
        stopped = self._stopper.matched is not None
        if self._pattern.matches(self.raw, partial=stopped or cut):
            self.text, self.cut = self._shown, cut and not stopped
        else:
            self.text = self._longest()

    @property
    def matched(self) -> str | None:
        """The stop that ended it."""
        return self._stopper.matched

    def _longest(self) -> str | None:
        """The longest beginning that matches. An empty one would say nothing of the answer."""
        shown = self._shown
        for end in range(len(shown), 0, -1):
            if self._pattern.matches(shown[:end]):
                return shown[:end]
        return None
