"""The text of a beam, searched for stops while it grows.

A beam that completes a stop has ended, which decides what else is searched; so, unlike those of
other outputs, its stops are looked for here and not in the front. The front makes the answer's
text of the same tokens by the same code. This module knows no scores and no queue.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from boughs.runtime.front.detokenize import Detokenizer
from boughs.runtime.front.stops import StopFinder, compile_patterns
from boughs.runtime.front.tokenizer import Tokenizer
from boughs.runtime.messages import Submit


class Texts:
    """The tokenizer of a core, which is loaded when a beam search has stops in its text.

    Args:
        load: Loads it; takes a second.
    """

    def __init__(self, load: Callable[[], Tokenizer]) -> None:
        self._load = load
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="boughs-texts")
        self._tokenizer: Future[Tokenizer] | None = None

    def ask(self, submit: Submit) -> Future[Tokenizer] | None:
        """Where the tokenizer will be, if a submission needs it; returns at once."""
        if submit.params.beam_width is None or not submit.params.stops_in_text:
            return None
        if self._tokenizer is None:
            self._tokenizer = self._threads.submit(self._load)
        return self._tokenizer

    def close(self) -> None:
        """End the thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class BeamText:
    """The text of one beam.

    Args:
        detokenizer: Of its tokens.
        finder: Looks for the stops. Those of all beams of a search share its budget of time.
        least: Tokens before which no stop counts.
    """

    def __init__(self, detokenizer: Detokenizer, finder: StopFinder, least: int) -> None:
        self._detokenizer = detokenizer
        self._finder = finder
        self._least = least

    @classmethod
    def of(cls, tokenizer: Tokenizer, submit: Submit) -> BeamText:
        """The empty text of an output of `submit`.

        Raises:
            InvalidRequest: A pattern cannot be compiled.
        """
        params = submit.params
        detokenizer = Detokenizer(
            tokenizer,
            skip_special=params.skip_special_tokens,
            at_start=tokenizer.special_ids.issuperset(submit.prompt_ids),
        )
        finder = StopFinder(params.stop, compile_patterns(params.stop_regex))
        return cls(detokenizer, finder, params.min_new_tokens)

    def after(self, token: int, length: int) -> BeamText:
        """The text of a beam that goes on with `token`, of which it then has `length`.

        Raises:
            InvalidRequest: A pattern takes too long.
        """
        made = BeamText(self._detokenizer.fork(), self._finder.fork(), self._least)
        made._finder.feed(made._detokenizer.add(token), counts=length >= self._least)
        return made

    @property
    def stopped(self) -> bool:
        """Whether a stop is complete."""
        return self._finder.best is not None
