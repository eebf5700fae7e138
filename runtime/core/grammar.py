"""Grammars: from a source to the tokens that may come next, over llguidance.

One `Grammar` a source, compiled once and cloned per request. This module knows no request and no
logits.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from boughs.lang.errors import GrammarError

MAX_CACHED = 256
"""Compiled grammars that are kept; the oldest goes first."""

MAX_MESSAGE = 400
"""Characters of a compiler's message that are kept: it may quote the whole source."""


class Matcher:
    """The state of one output under a grammar."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def mask(self, vocab_size: int) -> np.ndarray:
        """Which tokens may come next: bool [vocab_size]. EOS is among them where it may end."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._raise_error()
        allowed = np.unpackbits(bits, bitorder="little")[:vocab_size].view(bool)
        if len(allowed) == vocab_size:
            return allowed
        return np.pad(allowed, (0, vocab_size - len(allowed)))

    def accept(self, token: int) -> None:
        """Go on past `token`, which the mask allowed."""
        if not self._matcher.consume_token(token):
            self._raise_error()
            raise GrammarError(f"the grammar refuses token {token}")

    @property
    def complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self._matcher.is_stopped())

    def _raise_error(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_reason(self._matcher.get_error()))


class GrammarCompiler:
    """Compiles grammars for one tokenizer, each source once.

    Args:
        folder: The model's folder, with `tokenizer.json`.
        vocab_size: Width of the logits.
        eos_token_ids: The tokens that may end an output.
    """

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: tuple[int, ...]) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos = list(eos_token_ids)
        self._tokenizer: LLTokenizer | None = None
        self._compiled: dict[tuple[str, str], LLMatcher] = {}

    def matcher(self, kind: str, source: str) -> Matcher:
        """A fresh matcher for a `regex`, `json_schema` or `ebnf` source.

        Raises:
            GrammarError: The source cannot be compiled; says why.
        """
        compiled = self._compiled.get((kind, source))
        if compiled is None:
            compiled = self._compile(kind, source)
            if len(self._compiled) >= MAX_CACHED:
                del self._compiled[next(iter(self._compiled))]
            self._compiled[kind, source] = compiled
        return Matcher(compiled.deep_copy())

    def _compile(self, kind: str, source: str) -> LLMatcher:
        if self._tokenizer is None:
            # Built at the first grammar: it takes a second, which most engines need not spend.
            text = (self._folder / "tokenizer.json").read_text(encoding="utf-8")
            self._tokenizer = LLTokenizer(text, n_vocab=self._vocab_size, eos_token=self._eos)
        try:
            grammar = _GRAMMARS[kind](source)
        except RecursionError:
            raise GrammarError(f"{kind}: it is nested too deeply", kind) from None
        except GrammarError:
            raise
        except ValueError as error:
            raise GrammarError(f"{kind}: {_reason(str(error))}", kind) from None
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise GrammarError(f"{kind}: {_reason(matcher.get_error())}", kind)
        return matcher


def _json_schema(source: str) -> str:
    """White space between JSON's tokens is at most one space, so that a model cannot loop on it."""
    schema = json.loads(source, parse_constant=_no_constant)
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    elif not isinstance(schema, dict):
        raise GrammarError(
            f"json_schema: expected an object or a boolean, got {schema!r:.40}", "json_schema"
        )
    options = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    return str(LLMatcher.grammar_from_json_schema(schema, overrides=options))


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_GRAMMARS = {
    "regex": LLMatcher.grammar_from_regex,
    "json_schema": _json_schema,
    "ebnf": LLMatcher.grammar_from_lark,
}


def _reason(message: str) -> str:
    """What is wrong, in llguidance's words; it appends its own state and trace."""
    first = message.strip().split("\n\n")[0].split("\n<state>")[0]
    if first == "NoExtensionBias":
        return "the grammar allows no output"
    first = first.removeprefix("ParserTooComplex: ").strip()
    return first if len(first) <= MAX_MESSAGE else f"{first[:MAX_MESSAGE]} ..."
