"""One choice of an answer while it grows: tokens to text, stops, chunks.

Tokens come in as the core makes them; `Chunk`s come out, in which nothing is ever taken back. This
module knows no core and no socket.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import regex

from boughs.lang.results import Chunk, Finish, TokenLogprob, finite
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Ids, Segment, Text
from boughs.runtime.messages import Output

from .detokenize import Detokenizer
from .stops import StopFinder
from .tokenizer import Tokenizer

Top = list[tuple[int, float]]


@dataclass(frozen=True)
class Asked:
    """What one request asks of the text of each of its choices.

    Attributes:
        rid: The request.
        prompt_ids: Its prompt.
        params: How to choose and to end.
        rendered: The text of each role mark.
        prompt_logprobs_from: The first prompt position with a logprob, if any.
        logprobs: Whether output tokens carry logprobs.
        top_logprobs: How many alternatives at each position.
        token_ids_logprob: Tokens whose logprobs are asked for at each position.
        bad_ids: Token sequences that are not produced whole.
        patterns: The compiled `stop_regex`.
        stop_texts: Stops that are one special token: its id to the text. The core ends there.
        given_back: The prompt's last token or tokens, which are spelt anew and so not in
            `prompt_ids`.
        heal: Their text.
    """

    rid: str
    prompt_ids: list[int]
    params: SamplingParams
    rendered: list[str] = field(default_factory=list)
    prompt_logprobs_from: int | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    token_ids_logprob: list[int] = field(default_factory=list)
    bad_ids: list[list[int]] = field(default_factory=list)
    patterns: Sequence[regex.Pattern[str]] = ()
    stop_texts: Mapping[int, str] = field(default_factory=dict)
    given_back: list[int] = field(default_factory=list)
    heal: str = ""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt as it was given."""
        return len(self.prompt_ids) + len(self.given_back)


class ChoiceOutput:
    """One choice.

    Args:
        tokenizer: The model's.
        asked: What is asked.
        index: Which choice.

    Attributes:
        finish: Why it ended, once it has.
        length: Tokens of the output, once it has ended: what the core made beyond does not count.
    """

    def __init__(self, tokenizer: Tokenizer, asked: Asked, index: int = 0) -> None:
        params = asked.params
        self._tokenizer = tokenizer
        self._asked = asked
        self._index = index
        self._text = Detokenizer(
            tokenizer,
            skip_special=params.skip_special_tokens,
            at_start=tokenizer.special_ids.issuperset(asked.prompt_ids),
        )
        self._finder = StopFinder(params.stop, asked.patterns) if params.stops_in_text else None
        self._heal = asked.heal  # text of the prompt that is to be spelt yet
        self._spelt: list[int] = []  # tokens that spell nothing else
        self._ids: list[int] = []
        self._pieces: list[str] = []  # the characters that each token completed
        self._ends: list[int] = []  # characters up to and with each token's
        self._whole: list[bool] = []  # whether each token ends with a whole character
        self._forced: list[int] = []  # forced tokens up to and with each
        self._steps: list[int] = []  # steps of the model up to and with each
        self._all_steps = 0
        self._logprobs: list[TokenLogprob] = []
        self._prompt_logprobs: list[TokenLogprob] | None = None
        self._cached_tokens = 0
        self._unsent = ""
        self._sent_ids = 0
        self._started = False
        self.finish: Finish | None = None
        self.length = 0

    @property
    def whole_text(self) -> str:
        """All text of its tokens, those of a stop included."""
        return "".join(self._pieces)

    @property
    def ended(self) -> bool:
        """Whether the last chunk has been made."""
        return self.finish is not None

    def add(self, output: Output, cached_tokens: int) -> Chunk | None:
        """Take what a step made; the chunk to send, if there is anything to send.

        Args:
            output: Of the core, without an error.
            cached_tokens: Prompt tokens that were not computed.

        Raises:
            InvalidRequest: A stop pattern takes too long.
        """
        self._cached_tokens = cached_tokens
        self._all_steps = output.forward_steps
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = self._of_prompt(output)
        if output.healed:
            output = self._spell(output)
        if output.logprobs is not None:
            self._logprobs += self._entries(output.ids, output.logprobs, output.top, output.given)
        chosen = len(output.ids) - output.forced
        for at, token in enumerate(output.ids, 1):
            self._forced.append((self._forced[-1] if self._forced else 0) + (at > chosen))
            self._steps.append(output.forward_steps)
            self._take(token, is_stop=output.matched is not None and at == len(output.ids))
            if self._finder is not None and self._finder.final:
                return self._end_at_stop()
        if output.finish is None:
            return self._chunk()
        hidden = output.matched is not None and not self._pieces[-1]
        self._close_text()
        if self._finder is not None and self._finder.best is not None:
            return self._end_at_stop()
        if output.finish == "length":
            cut = Finish("length", length=len(self._ids), incomplete=output.incomplete)
            return self._end(cut, self._ids)
        kept = self._ids[:-1] if hidden else self._ids
        matched: str | int | None = output.matched
        if output.matched is not None:
            matched = self._asked.stop_texts.get(output.matched, output.matched)
        return self._end(Finish("stop", matched=matched), kept)

    def abort(self, message: str) -> Chunk:
        """End it here; the chunk that says so, with what was held back."""
        self._close_text()
        if self._finder is not None and self._finder.best is not None:
            return self._end_at_stop()
        return self._end(Finish("abort", message=message), self._ids)

    # ---- in ----

    def _spell(self, output: Output) -> Output:
        """Take the tokens that spell the prompt's end alone; the output without them."""
        count = output.healed
        for token in output.ids[:count]:
            self._spelt.append(token)
            self._beyond(self._text.add(token))
        return msgspec.structs.replace(
            output,
            ids=output.ids[count:],
            logprobs=None if output.logprobs is None else output.logprobs[count:],
            top=None if output.top is None else output.top[count:],
            given=None if output.given is None else output.given[count:],
        )

    def _beyond(self, piece: str) -> str:
        """A token's text without what of it was the prompt's."""
        count = min(len(piece), len(self._heal))
        self._heal = self._heal[count:]
        return piece[count:]

    def _take(self, token: int, *, is_stop: bool) -> None:
        if not is_stop:
            piece = self._beyond(self._text.add(token))
        elif not self._asked.params.no_stop_trim:
            piece = ""
        else:  # a stop that the user gave as a text is shown as text, special or not
            piece = self._asked.stop_texts.get(token) or self._text.add(token)
        self._ids.append(token)
        self._pieces.append(piece)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(piece))
        self._whole.append(not self._text.incomplete)
        self._grow(piece)

    def _close_text(self) -> None:
        """No token follows: an incomplete character becomes U+FFFD."""
        tail = self._beyond(self._text.end())
        if tail:
            self._pieces[-1] += tail
            self._ends[-1] += len(tail)
            self._whole[-1] = True
            self._grow(tail)

    def _grow(self, piece: str) -> None:
        self._unsent += piece
        if self._finder is not None:
            enough = len(self._ids) >= self._asked.params.min_new_tokens
            self._finder.feed(piece, counts=enough)

    # ---- out ----

    def _chunk(self) -> Chunk | None:
        """What may be sent while the output goes on."""
        chars = len(self._unsent)
        if self._finder is not None:
            if self._finder.best is not None:  # tokens beyond it may turn out not to count
                return None
            held = self._ends[-1] - self._finder.safe if self._ends else 0
            chars -= held
        news = chars or len(self._ids) > self._sent_ids or self._prompt_logprobs is not None
        return self._send(chars, len(self._ids)) if news else None

    def _end_at_stop(self) -> Chunk:
        """End at the finder's match: cut text, tokens and segments there."""
        assert self._finder is not None
        match = self._finder.best
        assert match is not None
        upto = match.end if self._asked.params.no_stop_trim else match.start
        count = next(at for at, end in enumerate(self._ends, 1) if end >= match.seen)
        kept, begin = 0, 0
        for at, end in enumerate(self._ends, 1):
            if end > upto:
                break
            if self._whole[at - 1]:
                kept, begin = at, end
        rest = "".join(self._pieces[kept:])[: upto - begin]
        sent = self._ends[-1] - len(self._unsent)
        self._unsent = self._unsent[: upto - sent]
        del self._ids[count:]
        return self._end(Finish("stop", matched=match.stop), self._ids[:kept], rest)

    def _end(self, finish: Finish, kept: list[int], rest: str = "") -> Chunk:
        """The last chunk; `kept` and `rest` are what goes into the state."""
        self.finish = finish
        self.length = len(self._ids)
        chunk = self._send(len(self._unsent), self.length)
        segments = self._segments(kept)
        if rest:
            segments.append(Text(rest))
        chunk.segments = segments
        chunk.finish = finish
        chunk.token_chars = [len(piece) for piece in self._pieces[: self.length]]
        sums = [0, *self._forced[: self.length]]
        chunk.forced_at = [at for at, (a, b) in enumerate(pairwise(sums)) if b > a]
        return chunk

    def _segments(self, kept: list[int]) -> list[Segment]:
        """Tokens as a state holds them: with those before them that are not the prompt's own."""
        if not kept:
            return []
        if not self._asked.heal or self._spelt == self._asked.given_back:
            return [Ids(list(kept))]
        return [Ids(self._spelt + kept, skip_bytes=len(self._asked.heal.encode()))]

    def _send(self, chars: int, count: int) -> Chunk:
        """A chunk of the next `chars` characters and all tokens up to `count`."""
        chunk = Chunk(
            rid=self._asked.rid,
            index=self._index,
            text=self._unsent[:chars],
            output_ids=self._ids[self._sent_ids : count],
            prompt_tokens=self._asked.prompt_tokens,
            completion_tokens=count,
            forced_tokens=self._forced[count - 1] if count else 0,
            forward_steps=self._steps[count - 1] if count else self._all_steps,
            cached_tokens=self._cached_tokens,
            prompt_logprobs=self._prompt_logprobs,
            rendered=None if self._started else self._asked.rendered,
        )
        if self._asked.logprobs:
            chunk.logprobs = self._logprobs[self._sent_ids : count]
        self._unsent = self._unsent[chars:]
        self._prompt_logprobs = None
        self._sent_ids = count
        self._started = True
        return chunk

    # ---- logprobs ----

    def _of_prompt(self, output: Output) -> list[TokenLogprob]:
        start = self._asked.prompt_logprobs_from
        assert start is not None, "the core gives prompt logprobs where they are asked for"
        assert output.prompt_logprobs is not None
        return self._entries(
            self._asked.prompt_ids[start:],
            output.prompt_logprobs,
            output.prompt_top,
            output.prompt_given,
        )

    def _entries(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float | None],
        top: list[Top] | None,
        given: list[list[float]] | None,
    ) -> list[TokenLogprob]:
        """Of each token; nothing predicts a prompt's first, which has no alternatives either."""
        text_of, asked = self._tokenizer.text_of, self._asked.token_ids_logprob
        return [
            TokenLogprob(None, id_, text_of(id_))
            if logprob is None
            else TokenLogprob(
                finite(logprob),
                id_,
                text_of(id_),
                None if top is None else [(finite(lp), t, text_of(t)) for t, lp in top[at]],
                None
                if given is None
                else [(finite(lp), t, text_of(t)) for t, lp in zip(asked, given[at], strict=True)],
            )
            for at, (id_, logprob) in enumerate(zip(ids, logprobs, strict=True))
        ]
