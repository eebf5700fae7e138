"""The sampling parameters: one definition for the language, the Python API, HTTP and the core.

Defaults are SGLang's. Aliases are declared here and nowhere else. The struct itself crosses the
process border (msgspec), so it is plain data; what depends on a model (its context, its
vocabulary) is checked by the engine's front, against the limits that its core reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from boughs.lang import constraints
from boughs.lang.beams import check_search
from boughs.lang.constraints import CONSTRAINTS, Constraint
from boughs.lang.errors import InvalidRequest, Unsupported

ALIASES = {
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "min_tokens": "min_new_tokens",
    "sampling_seed": "seed",
}
"""Other spellings of a field, in every interface."""

NOT_YET = {
    "custom_params": "custom logit processors",
    "stream_interval": "stream_interval",
}
"""Fields of SGLang and vLLM that we know and do not have; they are refused by name."""

MAX_STOPS = 32
MAX_STOP_REGEX_BYTES = 256
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_CHARS = 128
GREEDY_BELOW = 1e-6
"""Temperatures below this one are greedy, as in SGLang."""

LEAST_REPETITION_PENALTY = 1e-6
"""Logits are divided by it, and those of one far below would be infinite."""


_AS_IS: Mapping[str, str] = MappingProxyType({})


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How to choose the next token, and when to end.

    Penalties and `logit_bias` move logits; then tokens are forbidden, by whatever is given of a
    grammar, `allowed_token_ids`, `bad_words` and `min_new_tokens`, which no bias overrides; then
    temperature, `top_k`, `top_p` and `min_p` act, in this order, on what is left. Where nothing is
    left the request fails, and it alone; only `min_new_tokens` yields, to a grammar that must end.

    Attributes:
        max_new_tokens: At most this many tokens; 0 only prefills; None means up to the context.
        min_new_tokens: No stop of any kind before this many tokens.
        temperature: Divides the logits; below 1e-6 decoding is greedy.
        top_p: Keep the smallest set of most likely tokens whose probability reaches this.
        top_k: Keep this many most likely tokens; -1 keeps all.
        min_p: Keep tokens at least this likely relative to the most likely one.
        frequency_penalty: Subtracted from a logit per occurrence in the output, -2 to 2.
        presence_penalty: Subtracted once from the logit of a token in the output, -2 to 2.
        repetition_penalty: Divides (multiplies, below 0) logits of tokens in prompt or output
            (CTRL, arXiv 1909.05858).
        logit_bias: Added to the logits of these token ids.
        allowed_token_ids: Only these tokens are produced. The model's EOS is one of them only if
            it is listed; else the output goes on to another end.
        bad_words: Texts whose tokens, as the model's tokenizer cuts them at the start of a text
            and behind a space, are not produced in a row. What the prompt began of one does not
            count, and other ways to spell it stay possible.
        stop: Strings that end the output; the earliest in the text wins.
        stop_token_ids: Tokens that end the output, beside the model's own EOS.
        stop_regex: Patterns (of the `regex` package) that end the output.
        ignore_eos: Do not end at the model's EOS.
        no_stop_trim: Keep the matched stop at the end of the text.
        skip_special_tokens: Leave special tokens out of the text.
        spaces_between_special_tokens: Only True: tokenizers of today know no other way.
        n: Number of choices.
        best_of: Make this many choices and return the `n` with the highest sum of the logprobs of
            their tokens, best first.
        beam_width: Beam search with this many beams, as transformers' `num_beams`; the choices are
            the `n` best. What it honours is in `boughs.lang.beams`.
        length_penalty: A beam's score is the sum of its logprobs, divided by its length to this
            power: above 0 favours long outputs.
        early_stopping: Whether beam search ends with its `beam_width`-th finished output (true), at
            a guess that none better will come (false), or when none can (`never`).
        seed: Seed of the choice's random numbers; drawn by the front when None.
        regex: The output matches this regular expression, wholly.
        json_schema: The output is JSON that is valid under this schema (a JSON string).
        strict: Refuse a `json_schema` with keywords that no grammar holds (`not`, `uniqueItems`,
            ...). Otherwise the finished value is checked, and a violation told in its
            `finish_reason`.
        json_object: The output is a JSON object.
        json_whitespace: Where JSON is asked for: at most so many characters of white space between
            two of its tokens, as the model likes; 0: the separators, and no other.
        json_separators: Where JSON is asked for: what stands between items, and behind keys;
            `, ` and `: ` if not given.
        ebnf: The output is derived from this grammar: GBNF, or Lark in llguidance's dialect.
        lark: The output is derived from this grammar, of llguidance's dialect of Lark.
        choices: The output is one of these texts.
        structural_tag: The output is text with constrained islands, as this says (a JSON string):
            SGLang's `structures` and `triggers`, or a `format` of xgrammar's.
        priority: Higher is admitted earlier; the scheduler's policy orders those of one priority.
        cache_salt: Requests of different salts share no cached prefix.
        timeout: Seconds from arrival after which the request ends with `RequestTimeout`.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    stop_regex: tuple[str, ...] = ()
    ignore_eos: bool = False
    no_stop_trim: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    n: int = 1
    best_of: int | None = None
    beam_width: int | None = None
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    seed: int | None = None
    regex: str | None = None
    json_schema: str | None = None
    json_object: bool = False
    json_whitespace: int = 0
    json_separators: tuple[str, str] | None = None
    ebnf: str | None = None
    lark: str | None = None
    choices: tuple[str, ...] | None = None
    structural_tag: str | None = None
    strict: bool = False
    priority: int = 0
    cache_salt: str | None = None
    timeout: float | None = None

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, without a random number."""
        return self.temperature < GREEDY_BELOW

    @property
    def constraint(self) -> Constraint | None:
        """The grammar that the output obeys, if any."""
        return constraints.constraint(self)

    @property
    def stops_in_text(self) -> bool:
        """Whether only the text, and so only the front, can tell the end."""
        return bool(self.stop or self.stop_regex)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], where: str = "") -> SamplingParams:
        """Validated parameters from a mapping that a user wrote.

        `None` stands for the default, one string or int for a list of one, an empty string for
        "unset". Aliases are resolved.

        Args:
            values: Field names or aliases to values.
            where: What stands before a field's name in an error (`sampling_params.`).

        Raises:
            InvalidRequest: Names the field, its value and what is allowed.
            Unsupported: A field that is known elsewhere and missing here.
        """
        fields: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for key, value in values.items():
            if key in NOT_YET:
                if value is None:
                    continue
                raise Unsupported(f"{where}{key}: {NOT_YET[key]} is not supported", f"{where}{key}")
            name = ALIASES.get(key, key)
            if name not in cls.__struct_fields__:
                raise InvalidRequest(_unknown(key, where), f"{where}{key}")
            if name in fields:
                raise InvalidRequest(
                    f"{where}{key}: given twice, it is another name of {name}", f"{where}{key}"
                )
            if value is None and name != "max_new_tokens":
                continue
            try:
                fields[name], spelled[name] = _widened(name, value), key
            except InvalidRequest as error:
                raise InvalidRequest(f"{where}{error}", f"{where}{key}") from None
        try:
            params = msgspec.convert(fields, cls)
        except msgspec.ValidationError as error:
            raise _named(error, where, spelled) from None
        except UnicodeEncodeError:
            raise _no_text(fields, where, spelled) from None
        params.check(where, spelled)
        return params

    def check(self, where: str = "", spelled: Mapping[str, str] = _AS_IS) -> None:
        """Raise `InvalidRequest` for the first field whose value is out of range.

        Args:
            where: What stands before a field's name in the error.
            spelled: The names that the user wrote for fields, where they are aliases.
        """
        for name, bad, allowed in self._bounds():
            if bad:
                written = where + spelled.get(name, name)
                raise InvalidRequest(
                    f"{written} must be {allowed}, got {getattr(self, name)!r:.80}", written
                )
        for place, value, allowed in self._wrong_items():
            written = where + place
            raise InvalidRequest(f"{written} must be {allowed}, got {value!r:.80}", written)
        constraints.check(self, where)
        if not self.spaces_between_special_tokens:
            raise Unsupported(
                f"{where}spaces_between_special_tokens: only true is supported",
                f"{where}spaces_between_special_tokens",
            )
        check_search(self, where, spelled)

    def _bounds(self) -> tuple[tuple[str, bool, str], ...]:
        """(field, whether it is out of range, what is allowed)."""
        most, best, width = self.max_new_tokens, self.best_of, self.beam_width
        return (
            ("max_new_tokens", most is not None and most < 0, "at least 0"),
            ("min_new_tokens", self.min_new_tokens < 0, "at least 0"),
            (
                "min_new_tokens",
                most is not None and self.min_new_tokens > most,
                f"at most max_new_tokens ({most})",
            ),
            ("min_new_tokens", self.min_new_tokens >= 2**31, "a 32-bit integer"),
            ("top_k", self.top_k >= 2**31, "a 32-bit integer, or -1 for all"),
            ("temperature", not 0 <= self.temperature < math.inf, "a finite number of at least 0"),
            ("top_p", not 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k < 1 and self.top_k != -1, "at least 1, or -1 for all"),
            ("min_p", not 0 <= self.min_p <= 1, "from 0 to 1"),
            ("frequency_penalty", not -2 <= self.frequency_penalty <= 2, "from -2 to 2"),
            ("presence_penalty", not -2 <= self.presence_penalty <= 2, "from -2 to 2"),
            (
                "repetition_penalty",
                not LEAST_REPETITION_PENALTY <= self.repetition_penalty <= 2,
                f"from {LEAST_REPETITION_PENALTY:g} to 2",
            ),
            ("allowed_token_ids", self.allowed_token_ids == (), "at least one token id"),
            ("bad_words", len(self.bad_words) > MAX_BAD_WORDS, f"at most {MAX_BAD_WORDS} strings"),
            ("stop", len(self.stop) > MAX_STOPS, f"at most {MAX_STOPS} strings"),
            ("stop_regex", len(self.stop_regex) > MAX_STOPS, f"at most {MAX_STOPS} patterns"),
            ("n", not 1 <= self.n <= 128, "from 1 to 128"),
            ("best_of", not 1 <= (1 if best is None else best) <= 128, "from 1 to 128"),
            ("beam_width", not 1 <= (1 if width is None else width) <= 128, "from 1 to 128"),
            ("length_penalty", not -10 <= self.length_penalty <= 10, "from -10 to 10"),
            ("seed", self.seed is not None and not 0 <= self.seed < 2**63, "from 0 to 2**63 - 1"),
            ("priority", abs(self.priority) >= 2**31, "a 32-bit integer"),
            (
                "timeout",
                self.timeout is not None and not 0 < self.timeout < math.inf,
                "above 0 and finite",
            ),
            *constraints.bounds(self),
        )

    def _wrong_items(self) -> Iterator[tuple[str, object, str]]:
        """(place, value, what is allowed) of what is out of range in a list or mapping."""
        words, most = self.bad_words, MAX_BAD_WORD_CHARS
        lists: tuple[tuple[str, tuple[str, ...], Callable[[str], bool], str], ...] = (
            ("bad_words", words, lambda word: 0 < len(word) <= most, f"of 1 to {most} characters"),
            ("stop", self.stop, bool, "a string that is not empty"),
            ("stop_regex", self.stop_regex, _is_short, f"at most {MAX_STOP_REGEX_BYTES} bytes"),
        )
        for name, items, is_fine, allowed in lists:
            for at, item in enumerate(items):
                if not is_fine(item):
                    yield f"{name}[{at}]", item, allowed
        for id_, bias in (self.logit_bias or {}).items():
            if not -100 <= bias <= 100:
                yield f"logit_bias.{id_}", bias, "from -100 to 100"


def _is_short(pattern: str) -> bool:
    return len(pattern.encode("utf-8", "replace")) <= MAX_STOP_REGEX_BYTES


def _widened(name: str, value: Any) -> Any:
    """What a user may write for a field, as what the field holds."""
    if name in ("stop", "stop_regex", "bad_words"):
        if value == "":
            return ()
        return (value,) if isinstance(value, str) else value
    if name in ("stop_token_ids", "allowed_token_ids") and isinstance(value, int):
        return (value,)
    if name in CONSTRAINTS:
        return constraints.widened(name, value)
    if name == "logit_bias" and isinstance(value, Mapping):
        return {_int_key(key): bias for key, bias in value.items()}
    return value


def _int_key(key: Any) -> Any:
    """JSON has only string keys; everything but a whole number is left for the type check."""
    if isinstance(key, str) and key.isascii() and key.isdigit():
        return int(key)
    return key


def _no_text(fields: Mapping[str, Any], where: str, spelled: Mapping[str, str]) -> InvalidRequest:
    """A text with lone surrogates where something else was expected; msgspec does not say where."""
    for name, value in fields.items():
        try:
            msgspec.convert({name: value}, SamplingParams)
        except UnicodeEncodeError:
            break
        except msgspec.ValidationError:
            continue
    written = where + spelled[name]
    return InvalidRequest(
        f"{written}: got {value!r:.40}, which has a lone surrogate and is not text", written
    )


def _unknown(key: str, where: str) -> str:
    known = ", ".join(SamplingParams.__struct_fields__)
    return f"{where}{key}: unknown parameter; there are {known}"


def _named(
    error: msgspec.ValidationError, where: str, spelled: Mapping[str, str]
) -> InvalidRequest:
    """msgspec says "Expected `int`, got `str` - at `$.n`"; put the field first."""
    what, _, place = str(error).partition(" - at `")
    field = place.rstrip("`").removeprefix("$").removeprefix(".") or "parameters"
    if field.startswith(("[", "key")):
        field = "logit_bias"
    field = spelled.get(field, field)
    return InvalidRequest(f"{where}{field}: {what[0].lower()}{what[1:]}", f"{where}{field}")
