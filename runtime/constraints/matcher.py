"""Matchers: the state of one output under a grammar.

This module knows no request, no logits and no language in which users write grammars.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from boughs.lang.errors import GrammarError

from .backend import Backend, State

MAX_MESSAGE = 400
"""Characters of a compiler's message that are kept: it may quote the whole source."""


class Matcher:
    """The state of one output under a grammar.

    Args:
        state: Fresh, and this one's own.
        backend: It is of this.
        kind: What errors name, as `regex`.
        weaker: Whether its grammar allows more than its source does, so that the finished value
            is to be checked.
        prefix: Bytes that an output spells before it comes to what its source allows.
    """

    def __init__(
        self,
        state: State,
        backend: Backend,
        kind: str,
        *,
        weaker: bool = False,
        prefix: int = 0,
    ) -> None:
        self.state = state
        self.backend = backend
        self.weaker = weaker
        self._kind = kind
        self._prefix = prefix

    @property
    def in_prefix(self) -> bool:
        """Whether some of the prefix is still to be spelt."""
        return self._prefix > 0

    def fork(self) -> Matcher:
        """The same state, for an output that goes on another way."""
        state, backend = self.state.deep_copy(), self.backend
        return Matcher(state, backend, self._kind, weaker=self.weaker, prefix=self._prefix)

    def mask(self, vocab_size: int) -> NDArray[np.bool_]:
        """Which tokens may come next: bool [vocab_size]. EOS is among them where it may end.

        Raises:
            GrammarError: It takes more work than a mask may; the output cannot go on.
        """
        bits = np.zeros((1, -(-vocab_size // 32)), dtype=np.uint32)
        self.backend.fill([self.state], bits)
        self.check()
        return np.unpackbits(bits.view(np.uint8), bitorder="little")[:vocab_size].view(bool)

    def accept(self, token: int) -> bool:
        """Go on past `token`, which the mask allowed; whether it spells the prefix alone."""
        if not self.state.consume_token(token):
            self.check()
            raise GrammarError(f"{self._kind}: the grammar refuses token {token}", self._kind)
        if not self._prefix:
            return False
        self._prefix -= len(self.backend.token_bytes(token))
        if self._prefix >= 0:
            return True
        self._prefix = 0
        return False

    def back(self, count: int) -> None:
        """Go back before the last `count` tokens that it accepted; EOS is none of them."""
        self.state.rollback(count)
        self.check()

    def forced(self) -> list[int]:
        """The tokens that follow in any case, as the tokenizer cuts their text.

        A token that could be longer, with what follows it, is not among them.
        """
        return self.state.compute_ff_tokens()

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return self.state.is_stopped()

    @property
    def accepting(self) -> bool:
        """Whether the output may end here."""
        return self.state.is_accepting()

    def check(self) -> None:
        """Raise the `GrammarError` that it has met, if it has."""
        if self.state.is_error():
            message = short(self.backend.reason(self.state))
            raise GrammarError(f"{self._kind}: {message}", self._kind)


def short(message: str) -> str:
    """A message without what is beyond its bound."""
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]} ..."
