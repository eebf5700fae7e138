"""What a program adds to its state: `gen` and `select`.

Signatures are SGLang's, with the parameters that its server has and its language hides behind
them. Everything is checked here, when the expression is made, so that a wrong argument is an
error of the line that wrote it. A parameter that is None means the one of `run`.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from boughs.lang.choices import ChoicesSamplingMethod, token_length_normalized
from boughs.lang.constraints import json_schema_text
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.expression import Expression
from boughs.lang.gens import (
    OnIncomplete,
    check_name,
    dtype_of,
    gen_of,
    grammar_source,
    put_dtype,
    type_of,
)
from boughs.lang.grammar import Grammar
from boughs.lang.ir import Gen, Select
from boughs.lang.parameters import Given
from boughs.lang.typed import options


def gen(  # noqa: PLR0917 - SGLang's signature
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: builtins.type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: ChoicesSamplingMethod | None = None,
    regex: str | None = None,
    json_schema: str | bool | Mapping[str, Any] | builtins.type | None = None,
    *,
    type: Any = None,  # noqa: A002 - the word for it
    on_incomplete: OnIncomplete = "raise",
    grammar: Grammar | None = None,
    json_object: bool | None = None,
    json_whitespace: int | None = None,
    json_separators: Sequence[str] | None = None,
    strict: bool | None = None,
    ebnf: str | None = None,
    lark: str | None = None,
    structural_tag: str | Mapping[str, Any] | None = None,
    seed: int | None = None,
    repetition_penalty: float | None = None,
    logit_bias: Mapping[int, float] | None = None,
    allowed_token_ids: Sequence[int] | None = None,
    bad_words: str | Sequence[str] | None = None,
    token_ids_logprob: Sequence[int] | None = None,
    heal: bool | None = None,
    best_of: int | None = None,
    beam_width: int | None = None,
    length_penalty: float | None = None,
    early_stopping: bool | str | None = None,
    no_stop_trim: bool | None = None,
    skip_special_tokens: bool | None = None,
    priority: int | None = None,
    cache_salt: str | None = None,
    timeout: float | None = None,
) -> Expression:
    """Text from the model.

    What is not given is `run`'s, and else: 128 tokens, temperature 1, no filter, no penalty.

        import boughs

        @boughs.function
        def record(s):
            s += "A fox has " + boughs.gen("legs", regex="[0-9]{1,2}") + " legs and is "
            s += boughs.gen("colour", max_tokens=4, stop=[".", ","], temperature=0)

        print(record.run().text())

    Args:
        name: The variable that holds it.
        max_tokens: At most this many tokens.
        min_tokens: No stop before this many tokens.
        n: Number of choices; with more than one the variable is a list, and the program goes on
            with the first.
        stop: One or several strings that end the text; they are not part of it.
        stop_token_ids: Tokens that end the text.
        stop_regex: Patterns that end the text.
        temperature: Divides the logits; 0 takes the most likely token.
        top_p: Keep the smallest set of tokens whose probability reaches this.
        top_k: Keep this many tokens; -1 keeps all.
        min_p: Keep tokens at least this likely, relative to the most likely one.
        frequency_penalty: Subtracted per occurrence of a token in the output.
        presence_penalty: Subtracted once for a token in the output.
        ignore_eos: Do not end at the model's end of text.
        return_logprob: Put logprobs into the meta info.
        logprob_start_len: Also those of the prompt, from this token on.
        top_logprobs_num: Also this many most likely tokens at each position.
        return_text_in_logprobs: With each token's text.
        dtype: `int`, `float`, `bool` or `str` (in double quotes): the text is one, and stays
            text.
        choices: The text is one of these, as with `select`.
        choices_method: How to decide between them.
        regex: The text matches this, wholly.
        json_schema: The text is JSON that is valid under this schema (JSON text, a dict, or a type
            that Pydantic can describe).
        type: A Python type. The text is one of its values, and the variable holds the value:
            `s["x"]` is an `int`, a `date`, an object of a class; `s.raw("x")` is the text. Numbers,
            bools, enumerations, literals, dates and times are written plainly, all else as JSON;
            docs/types.md tells more. The text ends where the value does, so stops are refused, and
            those of `run` do not count.
        on_incomplete: What a typed variable is whose text `max_tokens` cut, or which the type's
            own rules refuse: "raise" raises `Incomplete` or `InvalidValue` when it is read,
            "value" makes the error itself the variable's value.
        grammar: The text is one of this grammar, made of parts by the functions of
            `boughs.grammar`.
        json_object: The text is a JSON object.
        json_whitespace: Of JSON: at most so many characters of white space between two tokens.
        json_separators: Of JSON: what stands between items, and behind keys.
        strict: Refuse a JSON schema with keywords that no grammar holds.
        ebnf: The text is derived from this grammar: GBNF, or Lark.
        lark: The text is derived from this grammar, of llguidance's dialect of Lark.
        structural_tag: The text is free, with constrained islands; docs/constraints.md tells how.
        seed: Seed of the random numbers.
        repetition_penalty: Divides the logits of tokens in prompt or output.
        logit_bias: Added to the logits of these token ids.
        allowed_token_ids: Only these tokens are produced, EOS too only if it is listed.
        bad_words: Texts that are not produced, as the tokenizer spells them.
        token_ids_logprob: Also the logprobs of these tokens at each position.
        heal: Whether the text may begin with the rest of the token in which the program's text
            before it ends (token healing); it may by default.
        best_of: Make so many choices, and keep the `n` most likely.
        beam_width: Beam search with so many beams, of which the `n` best are kept.
        length_penalty: A beam's score is its logprob over its length to this power.
        early_stopping: End a beam search with as many outputs as beams (true), when no better one
            is likely (false), or when none is possible (`never`).
        no_stop_trim: Keep the stop in the text.
        skip_special_tokens: Leave special tokens out of the text.
        priority: Higher runs earlier.
        cache_salt: Requests of different salts share no cached prefix.
        timeout: Seconds after which the request ends with `RequestTimeout`.

    Raises:
        InvalidRequest: An argument is wrong; the message names it.
    """
    arguments = dict(locals())
    check_name(arguments.pop("name"), "gen")
    del arguments["on_incomplete"]
    if choices is not None or choices_method is not None:
        return _gen_choices(name, arguments)
    del arguments["choices"], arguments["choices_method"]
    if arguments.pop("type") is not None:
        return gen_of(name, type_of(name, type), arguments, on_incomplete)
    if on_incomplete != "raise":
        raise InvalidRequest("on_incomplete: only a gen with a type has values", "on_incomplete")
    parts = None
    if arguments.pop("grammar") is not None:
        arguments["ebnf"], parts = grammar_source(name, grammar, arguments)
    kind = dtype_of(arguments.pop("dtype"))
    arguments["json_schema"] = json_schema_text(json_schema)
    if kind is not None:
        put_dtype(arguments, kind)
    given = Given.parse(arguments, "gen: ")
    return Gen(name, given.sampling, given.options, kind, parts=parts)


def gen_int(  # noqa: PLR0917 - SGLang's signature
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> Expression:
    """A whole number, as text. `gen` with `dtype=int`."""
    return gen(**locals(), dtype=int)


def gen_string(  # noqa: PLR0917 - SGLang's signature
    name: str | None = None,
    max_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> Expression:
    """A string in double quotes, with JSON's escapes. `gen` with `dtype=str`."""
    return gen(**locals(), dtype=str)


def select(
    name: str | None = None,
    choices: Sequence[str] | type | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesSamplingMethod = token_length_normalized,
    *,
    cache_salt: str | None = None,
) -> Expression:
    """The one of `choices` that the model likes best.

        import boughs

        @boughs.function
        def judge(s, claim):
            s += claim + " This is " + boughs.select("verdict", choices=["true", "false"])

        state = judge.run("Snow is white.")
        print(state["verdict"], state.choice_probs("verdict"))

    Args:
        name: The variable that holds it.
        choices: At least one text; none may be empty. Or an `Enum` or a `Literal`: the variable
            then holds the value.
        temperature: Only 0: the decision is not drawn.
        choices_method: How to decide; the highest mean logprob by default.
        cache_salt: Requests of different salts share no cached prefix.

    Raises:
        InvalidRequest: An argument is wrong; the message names it.
    """
    check_name(name, "select")
    values = None if choices is bool else options(choices)
    if values is not None:
        choices = list(values)
    if isinstance(choices, str) or not isinstance(choices, Sequence):
        raise InvalidRequest(f"choices: expected a list of texts, got {choices!r:.60}", "choices")
    if not choices:
        raise InvalidRequest("choices: there must be at least one", "choices")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise InvalidRequest(
                f"choices: each is a text that is not empty, got {choice!r:.60}", "choices"
            )
    if not isinstance(choices_method, ChoicesSamplingMethod):
        raise InvalidRequest(
            f"choices_method: expected a ChoicesSamplingMethod, got {choices_method!r:.60}",
            "choices_method",
        )
    given = Given.parse({"temperature": temperature, "cache_salt": cache_salt}, "select: ")
    if given.sampling.get("temperature", 0.0) > 1e-5:
        raise Unsupported(
            f"temperature: a choice is decided, not drawn; only 0 is possible, got {temperature}",
            "temperature",
        )
    return Select(name, tuple(choices), choices_method, cache_salt, values)


def _gen_choices(name: str | None, arguments: dict[str, Any]) -> Expression:
    """`gen(choices=…)` is `select`; what that cannot honour is refused."""
    honoured = ("choices", "choices_method", "temperature", "cache_salt")
    refused = [k for k, value in arguments.items() if value is not None and k not in honoured]
    if refused:
        raise InvalidRequest(
            f"{refused[0]}: cannot be given together with choices, which are scored and not "
            "generated",
            refused[0],
        )
    given = {k: arguments[k] for k in honoured if arguments[k] is not None}
    return select(name, **given)
