"""Vectors over HTTP: the bodies of `/encode` and `/v1/embeddings` read, and their answers' shapes.

Of `/encode` unknown keys are ignored, as SGLang does, and those that SGLang knows and we lack are
refused when they are set; of OpenAI's body every field is implemented or refused. This module knows
no engine but as what encodes.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from boughs.lang.backend import Encoding
from boughs.lang.errors import BoughsError, InvalidRequest, Unsupported
from boughs.lang.requests import EncodeRequest, Prompt
from boughs.lang.results import Embedding
from boughs.runtime.gather import gather
from boughs.runtime.naming import naming, placed, renamed

from .generate import read_prompts, read_rids
from .merge import MOST_AT_ONCE
from .openai_answer import Json
from .openai_request import LABELS, read_inputs

MOST_INPUTS = 2048
"""Prompts in one call, as OpenAI has it: an answer holds a vector of each."""

LACKED = frozenset(
    (
        "audio_data",
        "background",
        "decision_layout",
        "dimensions",
        "embed_override_token_id",
        "embed_overrides",
        "image_data",
        "input_embeds",
        "is_cross_encoder_request",
        "lora_id",
        "lora_path",
        "modalities",
        "multi_item_delimiter_indices",
        "positional_embed_overrides",
        "return_pooled_hidden_states",
        "return_prompt_token_ids",
        "sampling_params",
        "token_indices_to_pool",
        "video_data",
    )
)
"""Keys of SGLang that would change the answer, or ask for what no vector has."""

_OURS = ("pooling", "normalize", "cache_salt", "priority", "timeout")
_OPENAI = {"input", "model", "encoding_format", "dimensions", *_OURS}


class EncodeCall(NamedTuple):
    """One call.

    Attributes:
        requests: In order.
        is_list: Whether the answer is a list.
        name: What the list of prompts is called.
        rid: A name for all requests together, if the caller gave one to a list.
        model: The model's name, if one was given.
        as_base64: Whether vectors go out as bytes.
    """

    requests: list[EncodeRequest]
    is_list: bool
    name: str
    rid: str | None = None
    model: str | None = None
    as_base64: bool = False


def read_encode(body: Mapping[str, Any]) -> EncodeCall:
    """The call that a body of `/encode` describes.

    Raises:
        InvalidRequest: Names the field.
        Unsupported: A field that SGLang has and we lack.
    """
    for key in sorted(LACKED.intersection(body)):
        if body[key] not in (None, False, [], {}, ""):
            raise Unsupported(f"{key} is not supported", key)
    name, prompts, is_list = read_prompts(body)
    rids, group = read_rids(body, len(prompts), is_list=is_list)
    fields = _ours(body)
    if body.get("extra_key") is not None:
        fields.setdefault("cache_salt", body["extra_key"])
    key = "extra_key" if "cache_salt" not in body else "cache_salt"
    with naming({"cache_salt": key}):
        requests = _requests(name, prompts, rids, fields)
    return EncodeCall(requests, is_list, name, group)


def read_embeddings(body: Mapping[str, Any]) -> EncodeCall:
    """The call that a body of `/v1/embeddings` describes.

    Raises:
        InvalidRequest: Names the field.
        Unsupported: `dimensions`.
    """
    for key in body:
        if key not in _OPENAI and key not in LABELS:
            raise InvalidRequest(f"{key}: unknown field", key)
    if body.get("dimensions") is not None:
        raise Unsupported(
            "dimensions is not supported: only of models trained for it says the beginning of a "
            "vector what the whole says",
            "dimensions",
        )
    encoding = body.get("encoding_format") or "float"
    if encoding not in ("float", "base64"):
        raise InvalidRequest(
            f"encoding_format must be float or base64, got {encoding!r:.40}", "encoding_format"
        )
    model = body.get("model")
    if not isinstance(model, str | None):
        raise InvalidRequest(f"model: expected a string, got {model!r:.40}", "model")
    prompts, is_list = read_inputs(body.get("input"), "input")
    requests = _requests("input", prompts, [None] * len(prompts), _ours(body))
    return EncodeCall(requests, is_list, "input", None, model, encoding == "base64")


async def encode_all(served: Encoding, call: EncodeCall) -> list[Embedding]:
    """The vectors of a call, in order.

    Raises:
        BoughsError: The first failure, with the place of its prompt; the others are aborted.
    """

    async def one(at: int, request: EncodeRequest) -> Embedding:
        try:
            return await served.encode(request)
        except BoughsError as error:
            if not call.is_list:
                raise renamed(error, {"prompt": call.name, "segments": call.name}) from error
            place = f"{call.name}[{at}]"
            raise placed(error, {"prompt": place, "segments": place}, place) from error

    return await gather(one, call.requests, MOST_AT_ONCE)


def openai_list(made: Sequence[Embedding], model: str, *, as_base64: bool) -> Json:
    """OpenAI's list of embeddings."""
    prompt = sum(one.prompt_tokens for one in made)
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": at,
                "embedding": _as_base64(one.vector) if as_base64 else one.vector,
            }
            for at, one in enumerate(made)
        ],
        "model": model,
        "usage": {
            "prompt_tokens": prompt,
            "total_tokens": prompt,
            "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in made)},
        },
    }


def _ours(body: Mapping[str, Any]) -> Json:
    """The fields of `EncodeRequest` among the keys; null stands for the default."""
    return {key: body[key] for key in _OURS if body.get(key) is not None}


def _requests(
    name: str, prompts: Sequence[Prompt], rids: Sequence[str | None], fields: Json
) -> list[EncodeRequest]:
    if len(prompts) > MOST_INPUTS:
        raise InvalidRequest(
            f"{name}: {len(prompts)} prompts in one call; at most {MOST_INPUTS}", name
        )
    EncodeRequest(prompt="", **fields).check()
    return [
        EncodeRequest(prompt=prompt, rid=rid, **fields)
        for prompt, rid in zip(prompts, rids, strict=True)
    ]


def _as_base64(vector: list[float]) -> str:
    """As OpenAI's clients read it: float32, little-endian."""
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()
