"""A request checked against what the core can serve, and made ready for it.

Everything a caller can get wrong is refused here, before anything runs. This module knows no core
and no loop.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from boughs.lang.beams import check_whole
from boughs.lang.errors import InvalidRequest, Unservable, Unsupported
from boughs.lang.requests import EncodeRequest, GenerateRequest, Prompt, ScoreRequest
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import Content, Ids, Image, Segment, Text
from boughs.runtime.messages import Limits, Submit
from boughs.runtime.naming import Names, naming

from .bad_words import bad_sequences
from .chat import ChatTemplate
from .endings import encode_endings
from .healing import given_back
from .output import Asked
from .prompt import encode_segments, require_unicode
from .score import ScorePlan
from .stops import compile_patterns
from .tokenizer import Tokenizer

MAX_TOP_LOGPROBS = 1024
"""Alternatives at each position, or token ids, that a request may ask for the logprobs of."""


class Planner:
    """Makes a request ready for the core.

    Args:
        tokenizer: The model's.
        chat: Its chat template.
        limits: What the core can serve.
    """

    def __init__(self, tokenizer: Tokenizer, chat: ChatTemplate, limits: Limits) -> None:
        self._tokenizer = tokenizer
        self._chat = chat
        self._limits = limits

    def plan(self, request: GenerateRequest, rid: str) -> Asked:
        """What `request` asks of each of its choices.

        Raises:
            InvalidRequest: Names the field.
            Unservable: The prompt can never fit.
        """
        with naming(_prompt_names(request.prompt)):
            return self._plan(request, rid)

    def _plan(self, request: GenerateRequest, rid: str) -> Asked:
        params = request.params
        params.check()
        check_whole(params)
        self._check_texts(params)
        segments = as_segments(request.prompt)
        rendered = self._chat.render_roles(segments)
        ids = self.encode(segments, rendered, output=0 if params.max_new_tokens == 0 else 1)
        self._check_ids(request)
        bad_ids = bad_sequences(self._tokenizer, params.bad_words)
        for sequence in bad_ids:
            self._require_known(sequence, "bad_words", "")
        logprobs_from = self._check_logprobs(request, len(ids))
        given = self._given_back(request, segments, ids, bad_ids)
        # The seed is drawn at arrival, so that a replay draws the same numbers.
        filled = msgspec.structs.replace(
            params,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            max_new_tokens=self._max_new_tokens(params, len(ids)),
        )
        return Asked(
            rid=rid,
            prompt_ids=ids[: len(ids) - given],
            params=filled,
            rendered=rendered,
            given_back=ids[len(ids) - given :],
            heal=b"".join(map(self._tokenizer.token_bytes, ids[len(ids) - given :])).decode(),
            prompt_logprobs_from=logprobs_from,
            logprobs=request.return_logprob,
            top_logprobs=request.top_logprobs_num,
            token_ids_logprob=list(request.token_ids_logprob),
            bad_ids=bad_ids,
            patterns=compile_patterns(params.stop_regex),
            stop_texts={
                self._tokenizer.special[stop]: stop
                for stop in params.stop
                if stop in self._tokenizer.special
            },
        )

    def encode(
        self, segments: list[Segment], rendered: Sequence[str], *, output: int = 1
    ) -> list[int]:
        """The prompt that segments stand for.

        Args:
            segments: A state.
            rendered: The text of each role mark.
            output: Tokens that are to follow it.

        Raises:
            InvalidRequest: It is empty, or holds what is no text or no token.
            Unservable: It can never fit.
        """
        for at, segment in enumerate(segments):
            if isinstance(segment, Ids):
                self._require_known(segment.ids, f"segments[{at}].ids")
        self._require_bounded(segments)
        ids = encode_segments(self._tokenizer, segments, rendered)
        if not ids:
            raise InvalidRequest("prompt: it is empty; give it at least one token", "prompt")
        self._require_fit(ids, "prompt", output)
        return ids

    def _given_back(
        self,
        request: GenerateRequest,
        segments: list[Segment],
        ids: list[int],
        bad_ids: Sequence[Sequence[int]],
    ) -> int:
        """How many of the prompt's last tokens the output is to spell anew.

        None where nothing is generated, where each has its logprob, in a beam search, and where
        they are, or may be, forbidden: their text could then be spelt in another way at best.
        """
        params = request.params
        if (
            not request.heal
            or not self._tokenizer.merges
            or params.max_new_tokens == 0
            or params.beam_width is not None
            or params.allowed_token_ids is not None
            or request.logprob_start_len >= 0
        ):
            return 0
        count = given_back(self._tokenizer, segments, ids)
        return 0 if any([id_] in bad_ids for id_ in ids[len(ids) - count :]) else count

    def plan_scores(self, request: ScoreRequest) -> ScorePlan:
        """The choices of `request` as token sequences, and the border from which they are scored.

        Raises:
            InvalidRequest: There is no choice, or what `plan` refuses.
            Unservable: Prompt and choice can never fit.
        """
        require_unicode(request.cache_salt or "", "cache_salt")
        segments = as_segments(request.prompt)
        with naming(_prompt_names(request.prompt)):
            rendered = self._chat.render_roles([*segments, Text("")])
            prompt = self.encode(segments, rendered, output=0)
        for at, choice in enumerate(request.choices):
            require_unicode(choice, f"choices[{at}]")
        sequences = encode_endings(self._tokenizer, segments, rendered, prompt, request.choices)
        for at, ids in enumerate(sequences):
            self._require_fit(ids, f"choices[{at}]: prompt and choice", 0)
        border = min(_common(prompt, ids) for ids in sequences)
        return ScorePlan(prompt, [ids[border:] for ids in sequences], border, rendered)

    def plan_encoding(self, request: EncodeRequest) -> list[int]:
        """The tokens to be encoded.

        Raises:
            InvalidRequest: Names the field.
            Unservable: The prompt can never fit.
        """
        require_unicode(request.cache_salt or "", "cache_salt")
        segments = as_segments(request.prompt)
        with naming(_prompt_names(request.prompt)):
            return self.encode(segments, self._chat.render_roles(segments), output=0)

    # ---- checks ----

    def _require_bounded(self, segments: list[Segment]) -> None:
        """Refuse what is far too long before it is tokenized.

        A normalizer may shrink a text, though hardly to a quarter.
        """
        most = 4 * self._tokenizer.longest * self._limits.context_length
        size = text_size(segments)
        if size > most:
            raise Unservable(
                f"prompt: {size} characters are more than the context of "
                f"{self._limits.context_length} tokens can ever hold",
                "prompt",
            )

    def _require_fit(self, ids: Sequence[int], what: str, output: int) -> None:
        context, pool = self._limits.context_length, self._limits.pool_tokens
        bound, where, setting = min(
            (context, "context", "context_length"), (pool, "KV cache", "kv_memory")
        )
        if len(ids) + output > bound:
            asked = f"{len(ids)} tokens{', and one of output,' if output else ''}"
            raise Unservable(
                f"{what}: {asked} do not fit the {where} of {bound} "
                f"tokens; shorten it, or raise {setting} as far as model and memory allow",
                what.partition(":")[0],
            )

    def _max_new_tokens(self, params: SamplingParams, prompt: int) -> int:
        """An output that reaches the context ends there, with `length`."""
        room = self._limits.context_length - prompt
        return room if params.max_new_tokens is None else min(params.max_new_tokens, room)

    def _check_texts(self, params: SamplingParams) -> None:
        for name in ("regex", "json_schema", "ebnf", "lark", "structural_tag", "cache_salt"):
            require_unicode(getattr(params, name) or "", name)
        for name in ("stop", "stop_regex", "choices"):
            for at, text in enumerate(getattr(params, name) or ()):
                require_unicode(text, f"{name}[{at}]")

    def _check_ids(self, request: GenerateRequest) -> None:
        params = request.params
        for name, ids in (
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", tuple(params.logit_bias or ())),
            ("allowed_token_ids", params.allowed_token_ids or ()),
            ("token_ids_logprob", request.token_ids_logprob),
        ):
            most = self._limits.vocab_size
            if name == "token_ids_logprob":
                most = min(MAX_TOP_LOGPROBS, most)
            if len(ids) > most:
                raise InvalidRequest(f"{name}: {len(ids)} token ids; at most {most}", name)
            if name == "logit_bias":
                for id_ in ids:
                    self._require_known([id_], name, f".{id_}")
            else:
                self._require_known(ids, name)

    def _require_known(self, ids: Sequence[int], where: str, place: str | None = None) -> None:
        """Refuse an id beyond the vocabulary; it is at `place` of `where`, by default its index."""
        for at, id_ in enumerate(ids):
            if type(id_) is not int or not 0 <= id_ < self._limits.vocab_size:
                path = where + (f"[{at}]" if place is None else place)
                raise InvalidRequest(
                    f"{path}: token id {id_!r} is not in the vocabulary of "
                    f"{self._limits.vocab_size} tokens (0 to {self._limits.vocab_size - 1})",
                    path,
                )

    def _check_logprobs(self, request: GenerateRequest, prompt: int) -> int | None:
        """The first prompt position with a logprob."""
        start, top = request.logprob_start_len, request.top_logprobs_num
        most = min(MAX_TOP_LOGPROBS, self._limits.vocab_size)
        if not 0 <= top <= most:
            raise InvalidRequest(
                f"top_logprobs_num must be from 0 to {most}, got {top}", "top_logprobs_num"
            )
        if start < -1:
            raise InvalidRequest(
                f"logprob_start_len must be at least -1, got {start}", "logprob_start_len"
            )
        if not request.return_logprob:
            for name, given in (
                ("logprob_start_len", start >= 0),
                ("top_logprobs_num", top > 0),
                ("token_ids_logprob", request.token_ids_logprob),
            ):
                if given:
                    raise InvalidRequest(f"{name} needs return_logprob=True", name)
            return None
        if start >= prompt:
            raise InvalidRequest(
                f"logprob_start_len is {start}, past the prompt of {prompt} tokens",
                "logprob_start_len",
            )
        return None if start < 0 else start


def as_segments(prompt: Prompt) -> list[Segment]:
    """A prompt of any form as segments.

    Raises:
        InvalidRequest: It is none of the forms.
    """
    if isinstance(prompt, str):
        return [Text(prompt)] if prompt else []
    if not isinstance(prompt, list):
        raise InvalidRequest(
            f"prompt: expected a string, token ids or segments, got {prompt!r:.40}", "prompt"
        )
    if all(type(item) is int for item in prompt):
        return [Ids(prompt)] if prompt else []  # type: ignore[arg-type]
    of_ids = type(prompt[0]) is int
    for at, item in enumerate(prompt):
        if not (type(item) is int if of_ids else isinstance(item, Segment)):
            where = f"prompt[{at}]"
            raise InvalidRequest(
                f"{where}: expected token ids or segments alone, got {item!r:.40}", where
            )
        if isinstance(item, Image):
            raise Unsupported(f"prompt[{at}]: the model has no eyes: it takes no images", "prompt")
    return list(prompt)  # type: ignore[arg-type]


def _prompt_names(prompt: Prompt) -> Names:
    """What places in the segments of a prompt are called, where it is given as something else."""
    if isinstance(prompt, str):
        return {"segments[0]": "prompt"}
    if isinstance(prompt, list) and not any(isinstance(item, Segment) for item in prompt):
        return {"segments[0].ids": "prompt"}
    return {}


def text_size(prompt: object) -> int:
    """Characters of a prompt that are to be tokenized; none of what `as_segments` refuses."""
    if isinstance(prompt, str):
        return len(prompt)
    if not isinstance(prompt, list):
        return 0
    return sum(
        len(part.text if isinstance(part, Text) else part.content)
        for part in prompt
        if isinstance(part, Text | Content)
    )


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many first elements are equal."""
    return next(
        (at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def submit_choice(asked: Asked, choice: int) -> Submit:
    """The message for one choice. Its key is drawn when it is sent."""
    params = msgspec.structs.replace(
        asked.params,
        n=1,
        stop=(),
        stop_regex=(),
        stop_token_ids=(*asked.params.stop_token_ids, *asked.stop_texts),
        bad_words=(),
        timeout=None,
    )
    return Submit(
        key=0,
        prompt_ids=asked.prompt_ids,
        params=params,
        choice=choice,
        namespace=params.cache_salt or "",
        logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs,
        token_ids_logprob=asked.token_ids_logprob,
        prompt_logprobs_from=asked.prompt_logprobs_from if choice == 0 else None,
        bad_ids=asked.bad_ids,
        given_back=asked.given_back,
        heal=asked.heal,
        confirm=asked.params.stops_in_text,
    )
