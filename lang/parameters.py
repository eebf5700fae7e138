"""How a `gen`'s own parameters and those of `run` become a request.

A parameter that a `gen` does not give (or gives as None) is the one of `run`, and where that does
not give it either, the default of `SamplingParams`. This module knows no state and no backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from boughs.lang.constraints import CONSTRAINTS
from boughs.lang.errors import InvalidRequest
from boughs.lang.sampling import ALIASES, NOT_YET, SamplingParams


class RequestOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a request beside its sampling.

    Attributes:
        return_logprob: Whether its meta info holds logprobs.
        logprob_start_len: Prompt tokens from this position on have them too; -1 is none.
        top_logprobs_num: This many most likely tokens at each position.
        token_ids_logprob: These tokens' logprobs at each position, too.
        return_text_in_logprobs: Whether each entry holds its token's text.
        heal: Whether the text may begin with the rest of the token that the program's text before
            ends in (token healing). An API that is given text does as it does.
    """

    return_logprob: bool = False
    logprob_start_len: Annotated[int, msgspec.Meta(ge=-1)] = -1
    top_logprobs_num: Annotated[int, msgspec.Meta(ge=0)] = 0
    token_ids_logprob: tuple[Annotated[int, msgspec.Meta(ge=0)], ...] = ()
    return_text_in_logprobs: bool = False
    heal: bool = True


RUN_PARAMETERS = frozenset(
    {*SamplingParams.__struct_fields__, *ALIASES, *NOT_YET, *RequestOptions.__struct_fields__}
    - set(CONSTRAINTS)
)
"""What `run` accepts as defaults for every `gen` of a program."""


class Given(msgspec.Struct, frozen=True):
    """Validated parameters that somebody gave, and nothing else."""

    sampling: dict[str, Any]
    options: dict[str, Any]

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str) -> Given:
        """Check what a user wrote; None stands for "not given".

        Args:
            values: Names of `SamplingParams` (or their aliases) and of `RequestOptions`.
            where: What stands before a name in an error.

        Raises:
            InvalidRequest: Names the parameter.
        """
        given = {name: value for name, value in values.items() if value is not None}
        options = {n: given.pop(n) for n in RequestOptions.__struct_fields__ if n in given}
        for name, value in options.items():
            try:
                read = msgspec.convert({name: value}, RequestOptions)
            except (msgspec.ValidationError, UnicodeEncodeError) as error:
                what = str(error).partition(" - at ")[0]
                raise InvalidRequest(f"{where}{name}: {what}, got {value!r:.60}", name) from None
            options[name] = getattr(read, name)
        if not given:
            return cls({}, options)
        names = [ALIASES.get(name, name) for name in given]
        if "max_new_tokens" not in names:  # it may come from `run`, so nothing is compared to it
            given["max_new_tokens"] = None
        params = SamplingParams.from_mapping(given, where)
        return cls({name: getattr(params, name) for name in names if name not in NOT_YET}, options)


class Defaults:
    """The parameters of one `run`."""

    def __init__(self, given: Given) -> None:
        self._sampling = SamplingParams(**given.sampling)
        self._sampling.check()
        self._options = given.options

    @property
    def cache_salt(self) -> str | None:
        """The one for every request that has none of its own."""
        return self._sampling.cache_salt

    @property
    def priority(self) -> int:
        """The one for every request that has none of its own."""
        return self._sampling.priority

    @property
    def timeout(self) -> float | None:
        """Seconds for every request that has no limit of its own."""
        return self._sampling.timeout

    def prefill(self) -> SamplingParams:
        """The parameters of a request that makes no text."""
        params = self._sampling
        return SamplingParams(
            max_new_tokens=0,
            cache_salt=params.cache_salt,
            priority=params.priority,
            timeout=params.timeout,
        )

    def sampling(self, own: Mapping[str, Any]) -> SamplingParams:
        """The parameters of a `gen` that gave `own`.

        Raises:
            InvalidRequest: The two together are out of range.
        """
        if not own:
            return self._sampling
        params: SamplingParams = msgspec.structs.replace(self._sampling, **own)
        params.check()
        return params

    def options(self, own: Mapping[str, Any]) -> RequestOptions:
        """What a `gen` asks for that gave `own`."""
        if not own and not self._options:
            return _USUAL
        options = RequestOptions(**{**self._options, **own})
        if not options.return_logprob:
            asked = [name for name in _NEED_LOGPROBS if name in own]
            if asked:
                raise InvalidRequest(f"{asked[0]}: needs return_logprob=True", asked[0])
        return options


_USUAL = RequestOptions()
_NEED_LOGPROBS = ("top_logprobs_num", "logprob_start_len", "token_ids_logprob")
