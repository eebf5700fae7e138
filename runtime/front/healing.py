"""Token healing: a prompt's last tokens given back, so that the output may spell their text anew.

A program's text ends where its author stopped typing, which is often inside of what the tokenizer
would have made one token: after `"http:"` no model was ever trained to go on with `"//"`. The last
token is given back, and the first tokens of the output spell its text and may go beyond it. This
module knows no requests and no grammars.
"""

from __future__ import annotations

from collections.abc import Sequence

from boughs.lang.segments import Content, Segment, Text

from .prompt import last_stretch
from .tokenizer import Tokenizer


def given_back(tokenizer: Tokenizer, segments: Sequence[Segment], ids: Sequence[int]) -> int:
    """How many of a prompt's last tokens are to be spelt anew; mostly one or none.

    None where no longer token could stand in their place, where they are not wholly text that
    stands behind the last role mark, special token and token ids, and where nothing would be left
    of the prompt. More than one where a character is spelt by several.

    Args:
        tokenizer: The model's.
        segments: The prompt.
        ids: Its tokens.
    """
    tail: list[Text | Content] = []
    for segment in reversed(segments):
        if not isinstance(segment, Text | Content):
            break
        tail.append(segment)
    text = last_stretch(tokenizer, tail[::-1]).encode()
    spelt = b""
    for count in range(1, len(ids)):
        spelt = tokenizer.token_bytes(ids[-count]) + spelt
        if not spelt or not text.endswith(spelt):
            return 0
        if _begins_a_character(spelt):
            return count if tokenizer.extends(spelt) else 0
    return 0


def _begins_a_character(raw: bytes) -> bool:
    """Whether some UTF-8 does not begin with a continuation byte."""
    return raw[0] & 0xC0 != 0x80
