"""The body of `POST /generate`, read: SGLang's fields become requests.

Unknown keys are ignored at the top level and refused in `sampling_params`, as SGLang does; keys
that SGLang knows and we lack are refused when they are set. This module knows no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from boughs.lang.beams import check_stream
from boughs.lang.errors import InvalidRequest, Unsupported
from boughs.lang.requests import GenerateRequest, Prompt
from boughs.lang.sampling import SamplingParams
from boughs.lang.segments import from_json
from boughs.runtime.front.batch import read_token_ids
from boughs.runtime.naming import Names, call_names, naming

from .body import converted

T = TypeVar("T")

LACKED = frozenset(
    (
        "audio_data",
        "background",
        "bootstrap_host",
        "bootstrap_pair_key",
        "bootstrap_port",
        "bootstrap_room",
        "custom_logit_processor",
        "data_parallel_rank",
        "decode_tp_size",
        "disagg_prefill_dp_rank",
        "image_data",
        "image_max_dynamic_patch",
        "images_config",
        "input_embeds",
        "lora_id",
        "lora_path",
        "max_dynamic_patch",
        "max_thinking_tokens",
        "min_dynamic_patch",
        "mm_content_hashes",
        "mm_hashes",
        "mm_processor_kwargs",
        "modalities",
        "multi_item_delimiter_indices",
        "positional_embed_overrides",
        "require_reasoning",
        "return_bytes",
        "return_entropy",
        "return_flat_raw_output_top_logprobs",
        "return_flat_raw_top_logprobs",
        "return_flat_raw_top_logprobs_b64",
        "return_hidden_states",
        "return_indexer_topk",
        "return_prompt_token_ids",
        "return_routed_experts",
        "return_sampling_mask",
        "routed_dp_rank",
        "routed_experts_start_len",
        "sampling_logprobs_mode",
        "session_params",
        "token_indices_to_pool",
        "use_audio_in_video",
        "video_config",
        "video_data",
        "video_max_dynamic_patch",
        "watermark",
    )
)
"""Keys that would change the answer and are not implemented. Those that only label, log or route a
request (`session_id`, `log_metrics`, `routing_key`) count as unknown."""

MOST_PROMPTS = 100_000
"""Prompts in one call."""

PROMPTS = ("text", "input_ids", "segments")

_PARAMS_ABOVE = {"priority": "priority", "extra_key": "cache_salt", "cache_salt": "cache_salt"}
"""Keys at the top level that are sampling parameters here."""


class GenerateCall(NamedTuple):
    """One call of `/generate`.

    Attributes:
        requests: In order.
        name: Which of `PROMPTS` was given.
        is_list: Whether a list of prompts was given.
        rid: A name for all requests together, if the caller gave one to a list.
        stream: Whether to answer as it comes.
        return_text: Whether logprobs carry their token's text.
        names: What the caller calls the fields of each request.
    """

    requests: list[GenerateRequest]
    name: str
    is_list: bool
    rid: str | None
    stream: bool
    return_text: bool
    names: list[Names]

    @property
    def gives_list(self) -> bool:
        """Whether the answer is a list."""
        return self.is_list or self.requests[0].params.n > 1


def read_generate(body: Mapping[str, Any]) -> GenerateCall:
    """The call that a body describes.

    Raises:
        InvalidRequest: Names the field.
        Unsupported: A field that SGLang has and we lack.
    """
    for key in sorted(LACKED.intersection(body)):
        if body[key] not in (None, False, [], {}, ""):
            raise Unsupported(f"{key} is not supported", key)
    name, prompts, is_list = read_prompts(body)
    count = len(prompts)
    scores = name != "segments"  # SGLang's client scores choices so, and knows no segments
    params = _read_params(body, count, is_list=is_list)
    names = _names(body, name, count, is_list=is_list)
    if _flag(body, "stream") and scores:  # the language has no other way to ask
        for one, spelled in zip(params, names, strict=True):
            with naming(spelled):
                check_stream(one)
    asked = _each(body, "return_logprob", bool, [False] * count, is_list=is_list)
    starts = _each(
        body,
        "logprob_start_len",
        int,
        # For a score, no start means the beginning.
        [
            0 if scores and lp and p.max_new_tokens == 0 else -1
            for p, lp in zip(params, asked, strict=True)
        ],
        is_list=is_list,
    )
    tops = _each(body, "top_logprobs_num", int, [0] * count, is_list=is_list)
    given = read_token_ids(body.get("token_ids_logprob"), count, is_list=is_list)
    heals = _each(body, "heal", bool, [False] * count, is_list=is_list)
    rids, group = read_rids(body, count, is_list=is_list)
    requests = [
        GenerateRequest(
            prompt=prompts[at],
            params=params[at],
            rid=rids[at],
            return_logprob=asked[at],
            logprob_start_len=starts[at],
            top_logprobs_num=tops[at],
            token_ids_logprob=given[at],
            heal=heals[at],
        )
        for at in range(count)
    ]
    return GenerateCall(
        requests=requests,
        name=name,
        is_list=is_list,
        rid=group,
        stream=_flag(body, "stream"),
        return_text=_flag(body, "return_text_in_logprobs"),
        names=names,
    )


def read_prompts(body: Mapping[str, Any]) -> tuple[str, list[Prompt], bool]:
    """Which of `PROMPTS` is given, the prompts, and whether they are a list."""
    given = [key for key in PROMPTS if body.get(key) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"give exactly one of {', '.join(PROMPTS)}, got {' and '.join(given) or 'none'}", "text"
        )
    name = given[0]
    value = body[name]
    if name == "text" and isinstance(value, str):
        return name, [value], False
    if not isinstance(value, list):
        kinds = "a string or a list of strings" if name == "text" else "a list"
        raise InvalidRequest(f"{name}: expected {kinds}, got {value!r:.40}", name)
    if not value:
        raise InvalidRequest(f"{name}: the list is empty", name)
    check_length(value, name)
    if name == "text":
        return name, list(converted(value, list[str], name)), True
    nested = isinstance(value[0], list)
    if name == "input_ids":
        if nested:
            return name, list(converted(value, list[list[int]], name)), True
        return name, [converted(value, list[int], name)], False
    if nested:
        return name, [from_json(item, f"{name}[{at}]") for at, item in enumerate(value)], True
    return name, [from_json(value, name)], False


def prompt_name(body: Mapping[str, Any]) -> str:
    """What the prompt of a body is called."""
    return next(key for key in PROMPTS if body.get(key) is not None)


def _names(body: Mapping[str, Any], name: str, count: int, *, is_list: bool) -> list[Names]:
    listed = {
        key: body.get(key)
        for key in ("return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob")
    }
    params = body.get("sampling_params")
    made = call_names(name, params, listed, count, is_list=is_list)
    for at, one in enumerate(made):
        own = params[at] if isinstance(params, list) else params
        above = {ours: key for key, ours in _above(body, own).items()}
        place = f"{name}[{at}]" if is_list else name
        made[at] = {**one, **above, "segments": place}
    return made


def _above(body: Mapping[str, Any], params: Any) -> dict[str, str]:
    """The keys of the body that are parameters here, and are not among `params`, to these."""
    own = params if isinstance(params, dict) else {}
    return {
        given: name
        for given, name in _PARAMS_ABOVE.items()
        if body.get(given) is not None and name not in own
    }


def check_length(prompts: list[Any], name: str) -> None:
    """Refuse a list of prompts that would fill the memory. A list of ids is none."""
    if len(prompts) > MOST_PROMPTS and not isinstance(prompts[0], int):
        raise InvalidRequest(
            f"{name}: {len(prompts)} prompts in one call; at most {MOST_PROMPTS}", name
        )


def _read_params(body: Mapping[str, Any], count: int, *, is_list: bool) -> list[SamplingParams]:
    key = "sampling_params"
    value = body.get(key)
    if isinstance(value, list) and is_list:
        _check_count(value, count, key)
        return [_one_params(item, body, f"{key}[{at}]") for at, item in enumerate(value)]
    return [_one_params(value, body, key)] * count


def _one_params(value: Any, body: Mapping[str, Any], where: str) -> SamplingParams:
    if not isinstance(value, dict | None):
        raise InvalidRequest(f"{where}: expected an object, got {value!r:.40}", where)
    above = _above(body, value)
    with naming({f"{where}.{name}": key for key, name in above.items()}):
        values = {name: body[key] for key, name in above.items()}
        return SamplingParams.from_mapping({**values, **(value or {})}, f"{where}.")


def read_rids(
    body: Mapping[str, Any], count: int, *, is_list: bool
) -> tuple[list[str] | list[None], str | None]:
    """The id of each request, and the name of all of them."""
    rid = body.get("rid")
    if rid is None:
        return [None] * count, None
    if isinstance(rid, str) and is_list:
        return [f"{rid}-{at}" for at in range(count)], rid
    if not is_list:
        return [converted(rid, str, "rid")], None
    rids = converted(rid, list[str], "rid")
    _check_count(rids, count, "rid")
    for at, one in enumerate(rids):
        if one in rids[:at]:
            raise InvalidRequest(f"rid[{at}]: {one!r} is given twice", f"rid[{at}]")
    return rids, None


def _each(
    body: Mapping[str, Any], key: str, kind: type[T], default: list[T], *, is_list: bool
) -> list[T]:
    """The value of a field for each prompt; None means its default."""
    value = body.get(key)
    listed = isinstance(value, list) and is_list
    values: list[Any] = value if isinstance(value, list) and listed else [value] * len(default)
    _check_count(values, len(default), key)
    for at, item in enumerate(values):
        if item is not None and type(item) is not kind:
            where = f"{key}[{at}]" if listed else key
            raise InvalidRequest(f"{where}: expected {kind.__name__}, got {item!r:.40}", where)
    return [usual if item is None else item for item, usual in zip(values, default, strict=True)]


def _flag(body: Mapping[str, Any], key: str) -> bool:
    value = body.get(key)
    if not isinstance(value, bool | None):
        raise InvalidRequest(f"{key}: expected a boolean, got {value!r:.40}", key)
    return bool(value)


def _check_count(values: list[Any], count: int, key: str) -> None:
    if len(values) != count:
        raise InvalidRequest(f"{key}: {len(values)} values for {count} prompts", key)
