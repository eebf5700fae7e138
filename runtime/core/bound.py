"""The constrained requests of a core: their grammars, their masks, and when they jump.

What becomes of a request whose grammar fails is the core's business. This module knows no queue,
no pages and no logits.
"""

from __future__ import annotations

from collections.abc import Iterable

from boughs.kernels.bitmask import Bits
from boughs.lang.errors import GrammarError
from boughs.lang.home import default_home
from boughs.runtime.config import EngineConfig, parse_bytes
from boughs.runtime.constraints.compiler import HEAL, Compiled, GrammarCompiler
from boughs.runtime.constraints.masks import Masks
from boughs.runtime.constraints.worker import Bounds
from boughs.runtime.core.request import Request
from boughs.runtime.messages import Limits, Submit


def compiler(config: EngineConfig, limits: Limits, mask_threads: int) -> GrammarCompiler:
    """What compiles grammars for a core's tokenizer; verdicts are kept in the cache folder."""
    bounds = Bounds(config.grammar_timeout, parse_bytes(config.grammar_memory, "grammar_memory"))
    cache = default_home() / "grammars"
    sizes = (limits.vocab_size, limits.eos_token_ids)
    return GrammarCompiler(config.model_path, *sizes, bounds, cache, mask_threads=mask_threads)


class Bound:
    """What a core's constrained requests have in common.

    Args:
        grammars: Compiles their grammars.
        masks: Fills their masks.
        jump: Whether tokens that a grammar forces may take no step each.
    """

    def __init__(self, grammars: GrammarCompiler, masks: Masks, *, jump: bool) -> None:
        self._grammars = grammars
        self._masks = masks
        self._jump = jump
        self._requests: list[Request] = []

    def warm(self) -> None:
        """Load what every grammar needs; returns at once."""
        self._grammars.warm()

    def close(self) -> None:
        """End processes and threads."""
        self._grammars.close()
        self._masks.close()

    def ask(self, submit: Submit) -> Compiled | None:
        """Where a submission's grammar will be, if it has one; returns at once."""
        if submit.params.constraint is None:
            return self._grammars.ask(HEAL, "", prefix=submit.heal) if submit.heal else None
        return self._grammars.ask(*submit.params.constraint, prefix=submit.heal)

    def begin(self, request: Request, compiled: Compiled) -> None:
        """Give a request its matcher, advanced over the output of a core before this one.

        Raises:
            BoughsError: Its grammar cannot be compiled, or holds less than it asks for.
        """
        params, grammar = request.submit.params, compiled.result()
        kind = HEAL if params.constraint is None else params.constraint.kind
        if params.strict and grammar.weaker:
            raise GrammarError(
                f"{kind}: {grammar.weaker[0]}: no grammar holds this keyword; without strict the "
                "finished value is checked, and a violation told",
                kind,
            )
        request.matcher = grammar.matcher(kind)
        for token in request.submit.output_ids:
            self.accept(request, token)

    def accept(self, request: Request, token: int) -> bool:
        """Have a request's grammar go on past a token; whether that spells its prefix alone.

        What has no grammar but for a prefix has none when that is spelt.
        """
        matcher = request.matcher
        if matcher is None:
            return False
        in_prefix = matcher.accept(token)
        if request.submit.params.constraint is None and not matcher.in_prefix:
            request.matcher = None
        return in_prefix

    def begin_masks(self, requests: Iterable[Request]) -> None:
        """Begin to fill the masks of those that have a grammar."""
        self._requests = [request for request in requests if request.matcher is not None]
        if self._requests:
            self._masks.begin([r.matcher for r in self._requests if r.matcher is not None])

    def take_masks(self) -> dict[Request, Bits]:
        """The masks that were begun."""
        if not self._requests:
            return {}
        return dict(zip(self._requests, self._masks.take(), strict=True))

    def jumps(self, request: Request) -> bool:
        """Whether tokens that its grammar forces need no step each.

        What a request's own lists forbid is for the sampler to see.
        """
        return self._jump and request.row.forbidden is None
