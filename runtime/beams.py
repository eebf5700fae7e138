"""Whether a beam search fits an engine, and how long its beams may get.

The front asks before it lets a request in, the core again for its own pages. This module knows
neither of them.
"""

from __future__ import annotations

from boughs.lang.errors import InvalidRequest, Unservable
from boughs.runtime.config import EngineConfig
from boughs.runtime.messages import Limits


def beam_limit(width: int, prompt: int, limits: Limits, config: EngineConfig) -> int:
    """Most tokens, prompt and output, that each beam may have so that all fit the pool.

    The whole pages of the prompt are shared. The rest is counted once for each beam, as if they
    parted at the first token, and one page more: the tree may keep the last page of what a beam
    shares, of which the beam has a copy. So a search that runs alone never lacks a page. A beam's
    last token needs no row.

    Args:
        width: Beams.
        prompt: Tokens of the prompt.
        limits: What the core can serve.
        config: The engine's settings.

    Raises:
        InvalidRequest: Wider than a step, or than the vocabulary.
        Unservable: Prompt and beams can never fit.
    """
    for name, most in (
        ("max_batched_tokens", config.max_batched_tokens or limits.max_batched_tokens),
        ("max_running_requests", config.max_running_requests),
        ("vocabulary", limits.vocab_size // 2),
    ):
        if width > most:
            half = "half the " if name == "vocabulary" else ""
            raise InvalidRequest(
                f"beam_width: {width} beams are more than {half}{name} allows ({most})",
                "beam_width",
            )
    size, pages = limits.page_size, limits.num_pages - 1
    shared = prompt // size
    own = max(0, (pages - shared) // width - 1)
    most = size * (shared + own) + 1
    if most <= prompt:
        raise Unservable(
            f"beam_width: a prompt of {prompt} tokens and {width} beams do not fit the KV cache of "
            f"{pages * size} tokens; lower beam_width, or raise kv_memory",
            "beam_width",
        )
    return min(most, limits.context_length)
