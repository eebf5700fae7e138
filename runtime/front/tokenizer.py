"""A model's tokenizer: text to ids by stretches, ids to bytes.

A stretch is text between special tokens. It is always tokenized with special tokens not parsed:
which of them count as special tokens and which are a user's text is decided before, in `prompt`.
Byte-level BPE and SentencePiece's BPE or unigram (with byte fallback or not) are supported, all
through the `tokenizers` package. This module knows neither segments nor requests.
"""

from __future__ import annotations

import bisect
import functools
import json
import re
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer as Rust

from boughs.lang.errors import InvalidRequest, NotFound, Unsupported

Place = Literal["start", "special", "ids"]
"""What stands before a stretch: nothing, a special token, or token ids."""

MOST_KEPT, LONGEST_KEPT = 4096, 1 << 14
"""So many stretches of at most so many characters are remembered with their ids."""

SPACE = "\u2581"
"""What SentencePiece writes for a space."""


class Tokenizer:
    """The tokenizer of one model.

    Args:
        hf: A fast tokenizer of transformers.
        name: What the model is called in errors.

    Attributes:
        hf: The tokenizer of transformers, which renders chat templates.
        name: What the model is called in errors.
        special: The text of each special token, to its id.
        special_ids: Their ids: what `skip_special_tokens` leaves out of a text.
        control: The same with the tokens that the chat template writes: what text may spell, and
            a user's content never does.
        prefix: The ids that the tokenizer puts before every text (BOS), mostly one or none.
        bytes_of: The bytes that each id adds to a text.
        longest: Bytes of the longest token.
        words_apart: Whether no token has a letter before a space.
        dummy_space: Whether decoding drops the first space of a text, as SentencePiece does.
        merges: Whether it is a BPE of bytes: its tokens are any that were merged of shorter ones.

    Raises:
        Unsupported: The tokenizer is of a kind whose tokens are not bytes of the text.
    """

    def __init__(self, hf: Any, name: str) -> None:
        self.hf = hf
        self.name = name
        rust: Rust = hf.backend_tokenizer
        plain = json.loads(rust.to_str())
        plain["truncation"] = plain["padding"] = None
        added = {item["id"]: item for item in plain["added_tokens"]}
        self.special = {item["content"]: id_ for id_, item in added.items() if item["special"]}
        self.special_ids = frozenset(self.special.values())
        template = _source(hf.chat_template)
        self.control = dict(self.special)
        for id_, item in added.items():
            if item["content"].strip() and item["content"] in template:
                self.control[item["content"]] = id_
                item["special"] = True  # in `plain`, where no special token is parsed
        self._strips = {id_: (item["lstrip"], item["rstrip"]) for id_, item in added.items()}
        self._pattern = _any_of(self.control)
        # An unknown character's token is special, and comes from ordinary text.
        self._never = frozenset(self.control.values()) - {hf.unk_token_id}
        self.prefix = tuple(_prefix(rust))
        self._rust = _by_place(plain)
        # A state's texts come again with every turn and every fork.
        self._known = functools.lru_cache(MOST_KEPT)(self._encode)
        steps = _steps(plain.get("decoder"))
        kind = _kind(steps, name)
        self.dummy_space = any(_drops_space(step) for step in steps)
        self.bytes_of = [
            _token_bytes(kind, rust.id_to_token(id_), added.get(id_)) for id_ in range(_size(rust))
        ]
        self.longest = max(map(len, self.bytes_of))
        fallback = any(step["type"] == "ByteFallback" for step in steps)
        self.merges = plain["model"]["type"] == "BPE" and (kind == "bytelevel" or fallback)
        self._sorted: list[bytes] | None = None
        self.words_apart = not any(re.search(rb"[A-Za-z] ", raw) for raw in self.bytes_of)

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """The tokenizer in a model's folder.

        Raises:
            NotFound: The folder has no tokenizer, or a broken one.
            Unsupported: transformers has only a slow tokenizer for it, or of an unknown kind.
        """
        try:
            if (Path(folder) / "tokenizer.json").is_file():
                # As it is written there; and unlike AutoTokenizer this class imports no torch.
                from transformers import PreTrainedTokenizerFast

                hf = PreTrainedTokenizerFast.from_pretrained(folder)
            else:
                from transformers import AutoTokenizer

                hf = AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # tokenizers raises that, transformers a dozen others
            raise NotFound(f"{folder}: the tokenizer cannot be loaded: {error}") from error
        if not hf.is_fast:
            raise Unsupported(f"{folder}: {type(hf).__name__} has no fast (tokenizers) form")
        return cls(hf, Path(folder).name)

    def encode(self, stretch: str, place: Place) -> list[int]:
        """The ids of a text in which no special token is parsed.

        Args:
            stretch: The text.
            place: What stands before it; decides on the dummy space before the first word.
        """
        if len(stretch) <= LONGEST_KEPT:
            return list(self._known(stretch, place))
        return self._encode(stretch, place)

    def _encode(self, stretch: str, place: Place) -> list[int]:
        if not stretch:
            return []
        # Of a batch it makes no offsets, and lets other threads run.
        (encoding,) = self._rust[place].encode_batch_fast([stretch], add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._never.isdisjoint(ids):
            return ids
        return self._without_special(ids)

    def _without_special(self, ids: list[int]) -> list[int]:
        """Spell out special tokens that the model itself (not the parser) found in a text."""
        out: list[int] = []
        for id_ in ids:
            if id_ in self._never:
                text = self.text_of(id_)
                if len(text) < 2:
                    raise InvalidRequest(
                        f"prompt: the text {text!r} can only be written as a special token"
                    )
                out += self.encode(text[0], "ids") + self.encode(text[1:], "ids")
            else:
                out.append(id_)
        return out

    def split(self, text: str) -> list[str | int]:
        """A text's stretches and, between them, the control tokens that it spells.

        Stretches and ids alternate; the first and the last are stretches and may be empty. White
        space that a token takes with it (`lstrip`, `rstrip`) is in neither.
        """
        out: list[str | int] = []
        at = 0
        for match in self._pattern.finditer(text):
            out += [text[at : match.start()], self.control[match[0]]]
            at = match.end()
        out.append(text[at:])
        return out

    def is_unknown(self, ids: list[int], text: str) -> bool:
        """Whether `ids` stand for some of `text` by the token of what the tokenizer cannot cut."""
        unknown = self.hf.unk_token_id
        return unknown in ids and self.text_of(unknown) not in text

    def strips(self, id_: int) -> tuple[bool, bool]:
        """Whether a special token takes the white space before and behind it."""
        return self._strips[id_]

    def text_of(self, id_: int) -> str:
        """The text of one token by itself; what is no UTF-8 becomes U+FFFD."""
        return self.token_bytes(id_).decode("utf-8", "replace")

    def token_bytes(self, id_: int) -> bytes:
        """The bytes of a token; none for ids that pad the model's vocabulary."""
        return self.bytes_of[id_] if id_ < len(self.bytes_of) else b""

    def extends(self, raw: bytes) -> bool:
        """Whether some token of text spells `raw` and more."""
        if self._sorted is None:
            special = frozenset(self.control.values())
            self._sorted = sorted(
                spelt for id_, spelt in enumerate(self.bytes_of) if id_ not in special
            )
        at = bisect.bisect_right(self._sorted, raw)
        return at < len(self._sorted) and self._sorted[at].startswith(raw)


def _source(template: str | dict[str, str] | None) -> str:
    """The text of a chat template, or of all where a model has several."""
    if isinstance(template, dict):
        return "".join(template.values())
    return template or ""


def _any_of(texts: dict[str, int]) -> re.Pattern[str]:
    """Matches any of the texts, the longest at each place, as the tokenizer's own parser does."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _size(rust: Rust) -> int:
    return max(rust.get_vocab(with_added_tokens=True).values()) + 1


def _prefix(rust: Rust) -> list[int]:
    """The ids that the post-processor puts before a text."""
    bare = rust.encode("a", add_special_tokens=False).ids
    full = rust.encode("a", add_special_tokens=True).ids
    for at in range(len(full) - len(bare) + 1):
        if full[at : at + len(bare)] == bare:
            return list(full[:at])
    return []


def _by_place(plain: dict[str, Any]) -> dict[Place, Rust]:
    """Tokenizers that parse no special token, by what stands before the stretch."""
    made: dict[str, Rust] = {}

    def make(place: Place) -> Rust:
        source = json.dumps({**plain, **_without_dummy_space(plain, place)})
        if source not in made:
            made[source] = Rust.from_str(source)
            made[source].encode_special_tokens = True
        return made[source]

    return {"start": make("start"), "special": make("special"), "ids": make("ids")}


def _without_dummy_space(plain: dict[str, Any], place: Place) -> dict[str, Any]:
    """Normalizer and pre-tokenizer as they act at a place."""

    def at(step: dict[str, Any] | None) -> dict[str, Any] | None:
        if step is None or place == "start":
            return step
        kind = step["type"]
        if kind == "Sequence":
            key = "normalizers" if "normalizers" in step else "pretokenizers"
            return {**step, key: [made for inner in step[key] if (made := at(inner))]}
        if kind == "Metaspace" and (place == "ids" or step["prepend_scheme"] == "first"):
            return {**step, "prepend_scheme": "never"}
        if kind == "Prepend" and place == "ids":
            return None
        if kind == "ByteLevel" and place == "ids":
            return {**step, "add_prefix_space": False}
        return step

    return {key: at(plain.get(key)) for key in ("normalizer", "pre_tokenizer")}


Kind = Literal["bytelevel", "sentencepiece"]


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What a decoder does, in turn."""
    if decoder is None:
        return []
    steps: list[dict[str, Any]] = decoder.get("decoders", [decoder])
    return steps


def _drops_space(step: dict[str, Any]) -> bool:
    """Whether a decoder's step takes the space off the start of a text."""
    if step["type"] == "Metaspace":
        return bool(step["prepend_scheme"] != "never")
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"])


def _kind(steps: list[dict[str, Any]], name: str) -> Kind:
    """How tokens spell text, read from what the decoder does."""
    kinds = [step["type"] for step in steps]
    if "ByteLevel" in kinds:
        return "bytelevel"
    if any(
        step["type"] in ("ByteFallback", "Metaspace")
        or (step["type"] == "Replace" and step["pattern"] == {"String": SPACE})
        for step in steps
    ):
        return "sentencepiece"
    raise Unsupported(
        f"{name}: a tokenizer that decodes with {' and '.join(kinds) or 'nothing'} is not "
        "supported; byte-level BPE and SentencePiece are"
    )


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's character for each byte: printable Latin-1 stays, the rest moves up."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + i): byte for i, byte in enumerate(hidden)
    }


_ALPHABET = _byte_alphabet()


def _token_bytes(kind: Kind, token: str | None, added: dict[str, Any] | None) -> bytes:
    if token is None:  # a hole in the vocabulary
        return b""
    if added is not None:
        return str(added["content"]).encode()
    if kind == "bytelevel":
        try:
            return bytes(_ALPHABET[char] for char in token)
        except KeyError:  # no byte spells it, so no text holds it
            return token.encode()
    byte = re.fullmatch("<0x([0-9A-F]{2})>", token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode()
