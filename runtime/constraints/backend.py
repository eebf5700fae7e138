"""What compiles grammars and follows them, as the rest of this package and a core know it.

A backend is a module with a function `load`, which gives a `Backend` for one model; which module,
is said here and nowhere else. This module knows no grammar.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from boughs.lang.constraints import JsonForm

MODULE = "boughs.runtime.constraints.llguidance_backend"


class State(Protocol):
    """Where one output stands in a grammar.

    What goes wrong leaves it in an error, and then it is of no use.
    """

    def deep_copy(self) -> State:
        """The same, for an output that goes on another way."""

    def consume_token(self, token: int) -> bool:
        """Go on past a token, also one that ends the output; whether it may stand here."""

    def rollback(self, count: int) -> bool:
        """Go back before the last tokens, of which none ended the output."""

    def compute_ff_tokens(self) -> list[int]:
        """The tokens that must follow, as the tokenizer cuts their text.

        One that could be longer, with what follows it, is not among them.
        """

    def is_stopped(self) -> bool:
        """Whether nothing but the end may follow."""

    def is_accepting(self) -> bool:
        """Whether the output may end here."""

    def is_error(self) -> bool:
        """Whether it is in an error."""


class Translated(NamedTuple):
    """A grammar in a backend's own form, and what of a schema it leaves out, by JSON pointers."""

    grammar: str
    weaker: tuple[str, ...] = ()


class Backend(Protocol):
    """Grammars over one model's tokens. What may take long drops the GIL."""

    @property
    def version(self) -> str:
        """What tells verdicts of this backend from those of others, and of other versions."""

    def translate(self, kind: str, source: str, form: JsonForm) -> Translated:
        """The grammar of a `Constraint`; raises `GrammarError`, which names its kind and place."""

    def with_prefix(self, grammar: str | None, prefix: str) -> str:
        """The grammar of a text, and then what a grammar allows; or anything, where it is None."""

    def build(self, grammar: str) -> State:
        """The start of a grammar; raises `GrammarError`, whose message may be as long as it."""

    def explain(self, kind: str, source: str, message: str) -> str:
        """What `build` said, with the place in the user's source, where it can be found."""

    def reason(self, state: State) -> str:
        """What is wrong with a state that is in an error."""

    def fill(self, states: Sequence[State], bits: NDArray[np.uint32]) -> None:
        """Write which tokens may come next: uint32 [states, words], a bit for each token.

        Those that end the output are among them where it may end. What takes more work than a
        mask may leaves its state in an error, and its row of any bits.
        """

    def token_bytes(self, token: int) -> bytes:
        """What a token spells."""


def load(
    folder: Path, vocab_size: int, eos: tuple[int, ...], threads: int = 1, module: str | None = None
) -> Backend:
    """The backend for the model in a folder. Takes a third of a second.

    Args:
        folder: With `tokenizer.json`.
        vocab_size: Width of the logits.
        eos: The tokens that may end an output.
        threads: How many may fill masks at the same time.
        module: Where it is from; by default `MODULE`.
    """
    made: Backend = importlib.import_module(module or MODULE).load(folder, vocab_size, eos, threads)
    return made
