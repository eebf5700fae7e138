"""A state's segments to token ids.

The rules are those of `docs/design.md`, section 2. Neighbouring text, content and rendered roles
are tokenized as one string between the special tokens that occur in text and roles; ids pass
through. This module knows no template (roles come rendered) and no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from boughs.lang.errors import InvalidRequest
from boughs.lang.segments import Content, Ids, Image, Role, Segment, Text

from .tokenizer import Place, Tokenizer

Part = tuple[str, bool]
"""A text, and whether special tokens in it are parsed."""


def encode_segments(
    tokenizer: Tokenizer, segments: Sequence[Segment], roles: Sequence[str] = ()
) -> list[int]:
    """The prompt that `segments` stand for.

    Args:
        tokenizer: The model's.
        segments: A state.
        roles: The rendered text of each `Role` in `segments`, in order.

    Raises:
        InvalidRequest: A text that is no Unicode, an id outside the tokenizer's reach, or
            `skip_bytes` that do not agree with the text before.
    """
    marks = iter(roles)
    out: list[int] = []
    run: list[Part] = []
    for at, segment in enumerate(segments):
        if isinstance(segment, Ids):
            stretch = _encode_run(tokenizer, run, out)
            if segment.skip_bytes:
                run = _give_back(tokenizer, run, segment, f"segments[{at}]")
                # The model saw the longer text's tokens; the shorter may be cut otherwise.
                kept = _less(tokenizer, stretch, segment.skip_bytes)
                stretch = _encode_run(tokenizer, run, out) if kept is None else kept
            out += stretch + segment.ids
            run = []
        else:
            assert not isinstance(segment, Image), "images are refused before"
            run.append(_part(segment, marks, f"segments[{at}]"))
    out += _encode_run(tokenizer, run, out)
    prefix = list(tokenizer.prefix)
    if not out or not prefix or _begins_with_ids(segments) or out[: len(prefix)] == prefix:
        return out
    return prefix + out


def encode_text(tokenizer: Tokenizer, text: str, *, starts: bool) -> list[int]:
    """The ids of one text, special tokens parsed, without BOS.

    Args:
        tokenizer: The model's.
        text: Unicode.
        starts: Whether it is the start of a whole text; else it follows other tokens.
    """
    return _encode_run(tokenizer, [(text, True)], [] if starts else [0])


def last_stretch(tokenizer: Tokenizer, segments: Sequence[Text | Content]) -> str:
    """What neighbouring texts end with, behind the last special token in them."""
    last = _pieces(tokenizer, [_part(segment, (), "segments") for segment in segments])[-1]
    assert isinstance(last, str), "a run ends with a stretch"
    return last


def _begins_with_ids(segments: Sequence[Segment]) -> bool:
    for segment in segments:
        if isinstance(segment, Ids):
            if segment.ids:
                return True
        elif not isinstance(segment, Text | Content) or _part(segment, (), "")[0]:
            return False
    return False


def _part(segment: Text | Content | Role, marks: object, where: str) -> Part:
    if isinstance(segment, Role):
        part = (next(marks), True)  # type: ignore[call-overload]
    elif isinstance(segment, Content):
        part = (segment.content, False)
    else:
        part = (segment.text, True)
    require_unicode(part[0], where)
    return part


def require_unicode(text: str, where: str) -> None:
    """Raise `InvalidRequest` for a text with lone surrogates, which no encoding can carry."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{where}: character {error.start} is a lone surrogate "
            f"(U+{ord(text[error.start]):04X}), which is not text",
            where,
        ) from None


def _encode_run(tokenizer: Tokenizer, run: list[Part], before: list[int]) -> list[int]:
    """The ids of neighbouring text that follows the ids `before`."""
    ids: list[int] = []
    place: Place = "ids" if before else "start"
    pieces = _pieces(tokenizer, run)
    for at, piece in enumerate(pieces):
        if isinstance(piece, int):
            ids.append(piece)
            place = "special"
            continue
        stretch = piece
        if at > 0 and tokenizer.strips(pieces[at - 1])[1]:  # type: ignore[arg-type]
            stretch = stretch.lstrip()
        if at + 1 < len(pieces) and tokenizer.strips(pieces[at + 1])[0]:  # type: ignore[arg-type]
            stretch = stretch.rstrip()
        ids += tokenizer.encode(stretch, place)
    return ids


def _pieces(tokenizer: Tokenizer, run: list[Part]) -> list[str | int]:
    """Stretches and special tokens in turn, with a stretch (maybe empty) at both ends."""
    pieces: list[str | int] = [""]
    for parsed, parts in groupby(run, key=lambda part: part[1]):
        text = "".join(part[0] for part in parts)
        first, *rest = tokenizer.split(text) if parsed else [text]
        pieces[-1] = f"{pieces[-1]}{first}"
        pieces += rest
    return pieces


def _give_back(tokenizer: Tokenizer, run: list[Part], segment: Ids, where: str) -> list[Part]:
    """`run` without the last bytes of its text, which the ids that follow spell instead."""
    count = segment.skip_bytes
    where = f"{where}.skip_bytes"
    text = _pieces(tokenizer, run)[-1]
    assert isinstance(text, str), "a run ends with a stretch"
    raw = text.encode()
    spelt = b"".join(map(tokenizer.token_bytes, segment.ids[:count]))[:count]
    if count < 0 or count > len(raw) or raw[len(raw) - count :] != spelt:
        raise InvalidRequest(
            f"{where}: the first {count} bytes of these ids must be the last bytes of the text "
            "before, and not reach into a special token",
            where,
        )
    try:
        left = raw[: len(raw) - count].decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{where}: {count} bytes end inside a character", where) from None
    return _without_tail(run, len(text) - len(left))


def _less(tokenizer: Tokenizer, ids: list[int], count: int) -> list[int] | None:
    """`ids` without the last ones, which spell `count` bytes; None where no token ends there."""
    for kept in range(len(ids), 0, -1):
        if count <= 0:
            return ids[:kept] if count == 0 else None
        count -= len(tokenizer.token_bytes(ids[kept - 1]))
    return [] if count == 0 else None


def _without_tail(run: list[Part], chars: int) -> list[Part]:
    """`run` without its last characters."""
    cut = list(run)
    while chars:
        text, parsed = cut.pop()
        if len(text) > chars:
            cut.append((text[: len(text) - chars], parsed))
            break
        chars -= len(text)
    return cut
