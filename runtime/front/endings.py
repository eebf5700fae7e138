"""Prompts that differ in their last text alone: what they share is tokenized once.

A text may be tokenized in two parts where no token reaches over the border, whatever follows: at a
space between two letters, if the vocabulary has no token with a letter before a space. This module
knows no choices and no request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from boughs.lang.segments import Content, Ids, Image, Role, Segment, Text

from .prompt import encode_segments
from .tokenizer import Tokenizer

_BORDER = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")


def encode_endings(
    tokenizer: Tokenizer,
    segments: Sequence[Segment],
    roles: Sequence[str],
    whole: list[int],
    endings: Sequence[str],
) -> list[list[int]]:
    """The prompt that `segments` stand for with each of some texts behind it.

    Args:
        tokenizer: The model's.
        segments: A state.
        roles: The rendered text of each `Role`, in order.
        whole: The prompt that they stand for without more text.
        endings: Texts, in which special tokens are parsed.
    """
    rest: list[Segment] = list(segments)
    cut = _cut(tokenizer, segments)
    if cut is not None:
        head, tail = cut
        begun = sum(isinstance(segment, Role) for segment in head)
        ids = encode_segments(tokenizer, head, roles[:begun])
        shorter: list[Segment] = [Ids(ids), *tail]
        if ids and encode_segments(tokenizer, shorter, roles[begun:]) == whole:
            rest, roles = shorter, roles[begun:]
    return [encode_segments(tokenizer, [*rest, Text(ending)], roles) for ending in endings]


def _cut(
    tokenizer: Tokenizer, segments: Sequence[Segment]
) -> tuple[list[Segment], list[Segment]] | None:
    """The last place where segments may be cut in two, if there is one."""
    for at in range(len(segments) - 1, -1, -1):
        segment = segments[at]
        before, behind = list(segments[:at]), list(segments[at + 1 :])
        if isinstance(segment, Ids):
            return [*before, segment], behind
        if isinstance(segment, Role) or not tokenizer.words_apart:
            continue
        assert not isinstance(segment, Image), "images are refused before"
        text = segment.text if isinstance(segment, Text) else segment.content
        border = max((match.start() for match in _BORDER.finditer(text)), default=0)
        if border and isinstance(segment, Text):
            return [*before, Text(text[:border])], [Text(text[border:]), *behind]
        if border:
            return [*before, Content(text[:border])], [Content(text[border:]), *behind]
    return None
