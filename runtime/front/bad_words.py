"""Words that must not be produced, as the token sequences to forbid.

A word is cut as the tokenizer cuts it at the start of a text, behind other text, and behind a
space, as vLLM does (which leaves the last away where the number of tokens differs). This module
knows no core and no logits.
"""

from __future__ import annotations

from collections.abc import Sequence

from boughs.lang.errors import InvalidRequest

from .prompt import encode_text, require_unicode
from .tokenizer import Tokenizer


def bad_sequences(tokenizer: Tokenizer, words: Sequence[str]) -> list[list[int]]:
    """The token sequences that spell `words`, each once.

    Raises:
        InvalidRequest: A word is no Unicode, or the tokenizer has no tokens for it.
    """
    made: dict[tuple[int, ...], None] = {}
    for at, word in enumerate(words):
        where = f"bad_words[{at}]"
        require_unicode(word, where)
        bare = word.lstrip(" ") or word
        for text, starts in ((bare, True), (bare, False), (f" {bare}", False)):
            ids = encode_text(tokenizer, text, starts=starts)
            if not ids or tokenizer.is_unknown(ids, text):
                raise InvalidRequest(
                    f"{where}: the tokenizer has no tokens for {word!r:.80}; leave it out",
                    where,
                )
            made[tuple(ids)] = None
    return [list(ids) for ids in made]
