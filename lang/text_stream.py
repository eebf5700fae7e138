"""The stream of all text of a state: pieces, each as soon as what stands before it is known.

The text of a role mark is known once a request has rendered it; what comes behind it waits. This
module knows no requests and no statements.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

from boughs.lang.contents import Contents
from boughs.lang.waiting import Stream


class TextStream:
    """What readers of a state's text are told, from its start on.

    Args:
        contents: The state's.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._stream: Stream[str] = Stream()
        self._told = 0  # pieces of the contents' text that the stream has
        self._waiting = ""  # text of the running request that it has not
        self._apart = False  # whether that is not told before it is among the contents

    @property
    def closed(self) -> bool:
        """Whether nothing more comes."""
        return self._stream.closed

    def read(self) -> Iterator[list[str]]:
        """The pieces, those that come together in one list."""
        return self._stream.read()

    def read_async(self) -> AsyncIterator[list[str]]:
        """`read` on any event loop."""
        return self._stream.read_async()

    def begin(self, contents: Contents) -> None:
        """A branch has come to its begin, with these contents."""
        self._contents = contents

    def begin_answer(self, *, apart: bool) -> None:
        """A request is made, whose text comes by `add`; if `apart`, it is not told as it comes."""
        self._waiting, self._apart = "", apart

    def add(self, text: str) -> None:
        """Text of the running request."""
        if not self._apart:
            self._waiting += text
        if self._waiting and self._told == len(self._contents.shown):
            self._stream.append(self._waiting)
            self._waiting = ""

    def end_answer(self, put: Callable[[], None]) -> None:
        """Have the request's text put among the contents, which may have been told by now."""
        told = self._told == len(self._contents.shown) and not self._waiting and not self._apart
        put()
        self._told += told

    def flush(self) -> None:
        """Tell what the contents hold, up to the first role mark that is not rendered yet."""
        self._tell(self._contents.settled)

    def finish(self) -> None:
        """Tell what there is; nothing more comes."""
        self._tell(len(self._contents.shown))
        self._stream.close()

    def fail(self, make: Callable[[], BaseException]) -> None:
        """Have readers raise this once they have read what there is."""
        self._stream.close(make)

    def _tell(self, end: int) -> None:
        if self._told < end:
            text = "".join(self._contents.shown[self._told : end])
            self._told = end
            if text:
                self._stream.append(text)
