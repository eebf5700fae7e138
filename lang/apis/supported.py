"""What an API can do, and the refusal of what it cannot.

A parameter that is not at its default is sent, done on this side, or refused by name. This module
knows no API by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from boughs.lang.errors import Unsupported
from boughs.lang.requests import GenerateRequest
from boughs.lang.sampling import SamplingParams

_DONE_HERE = frozenset(
    {"max_new_tokens", "n", "stop", "stop_regex", "no_stop_trim", "regex", "timeout"}
)
_DEFAULTS = SamplingParams()


@dataclass(frozen=True)
class Features:
    """What an API can do.

    Attributes:
        fields: Fields of `SamplingParams` that it takes, with its own names for them.
        json_schema: Whether it can be held to a JSON schema.
        json_object: Whether it can be held to any JSON object.
        chat: Whether it takes messages, and not one text.
        continues: Whether it goes on with a turn that has begun.
        many: Whether one request gives several choices.
        top_logprobs: The most likely tokens of a position that it tells; None: no logprobs at all.
        stops: How many stop strings it takes.
        blank_stops: Whether a stop string may be white space.
        scores: Whether it tells the logprobs of a given text.
        needs_limit: Whether each request must have a `max_tokens`.
        images: Whether a user's message may hold images.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    json_schema: bool = False
    json_object: bool = False
    chat: bool = True
    continues: bool = False
    many: bool = False
    top_logprobs: int | None = None
    stops: int = 0
    blank_stops: bool = True
    scores: bool = False
    needs_limit: bool = False
    images: bool = False

    def check(self, request: GenerateRequest, api: str) -> None:
        """Raise `Unsupported` for the first thing that the API cannot do.

        Args:
            request: What is asked for.
            api: Who is asked, for the message.
        """
        params = request.params
        for name in SamplingParams.__struct_fields__:
            if name in _DONE_HERE or name in self.fields:
                continue
            if (name == "json_schema" and self.json_schema) or (
                name == "json_object" and self.json_object
            ):
                continue
            if getattr(params, name) != getattr(_DEFAULTS, name):
                raise Unsupported(f"{name}: {api} has no such parameter", name)
        if params.n > 1 and not self.many:
            raise Unsupported(f"n: {api} gives one choice a request; use fork({params.n})", "n")
        if params.max_new_tokens is None and self.needs_limit:
            raise Unsupported(f"max_tokens: {api} needs a number", "max_tokens")
        self._check_logprobs(request, api)
        if params.regex is not None:
            for name, given in (("n", params.n > 1), ("return_logprob", request.return_logprob)):
                if given:
                    raise Unsupported(
                        f"{name}: cannot be had together with a regex (or dtype) from {api}, "
                        "which is asked until its answer matches",
                        name,
                    )

    def _check_logprobs(self, request: GenerateRequest, api: str) -> None:
        if not request.return_logprob:
            return
        if self.top_logprobs is None:
            raise Unsupported(f"return_logprob: {api} gives no logprobs", "return_logprob")
        if request.top_logprobs_num > self.top_logprobs:
            raise Unsupported(
                f"top_logprobs_num: {api} gives at most {self.top_logprobs}", "top_logprobs_num"
            )
        for name, default in (("logprob_start_len", -1), ("token_ids_logprob", ())):
            if getattr(request, name) != default:
                raise Unsupported(f"{name}: {api} gives only its output's logprobs", name)

    def sent(self, params: SamplingParams) -> dict[str, object]:
        """The parameters that are not at their defaults, under the API's names."""
        return {
            theirs: getattr(params, ours)
            for ours, theirs in self.fields.items()
            if getattr(params, ours) != getattr(_DEFAULTS, ours)
        }

    def takes_stops(self, params: SamplingParams) -> bool:
        """Whether the API itself can end the output at all of its stops."""
        if params.stop_regex or params.no_stop_trim or params.regex is not None:
            return False
        blank = any(not text.strip() for text in params.stop)
        return len(params.stop) <= self.stops and (self.blank_stops or not blank)
