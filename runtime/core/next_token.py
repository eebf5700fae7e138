"""The next token of a request: sampled, held to its grammar, and what follows from it.

This module knows no model and no queue but to end a request in it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boughs.kernels.bitmask import Bits
from boughs.kernels.filters import Filters
from boughs.lang.errors import BoughsError, GrammarError, as_plain
from boughs.runtime.constraints.matcher import Matcher
from boughs.runtime.core import forced, prompt_logprobs
from boughs.runtime.core.bound import Bound
from boughs.runtime.core.request import Request
from boughs.runtime.core.sampler import sample, top_logprobs
from boughs.runtime.core.scheduler import Scheduler
from boughs.runtime.messages import Output


class NextTokens:
    """Appends next tokens, and ends requests with their last.

    Args:
        scheduler: Of the requests.
        bound: What those with a grammar have in common.
        filters: What top-k and top-p are computed by.
    """

    def __init__(self, scheduler: Scheduler, bound: Bound, filters: Filters) -> None:
        self._scheduler = scheduler
        self._bound = bound
        self._filters = filters

    def take(
        self, request: Request, logits: Tensor, row: int, token: int | None, mask: Bits | None
    ) -> Output:
        """Sample one token unless it is known, append it, and end the request if it is the last.

        Its row of `logits` is made a tensor of its own only where that is needed.
        """
        output = request.output(ids=[])
        if request.submit.logprobs:
            logprobs = logits[row].log_softmax(-1)
        try:
            if request.matcher is not None:
                request.matcher.check()  # a mask that met its budget leaves EOS
            if token is None:
                token = self._sample(request, logits[row], mask)
            in_prefix = self._bound.accept(request, token)
        except BoughsError as error:  # of this request alone
            self._scheduler.abort(request)
            return failure(request.key, error)
        if request.submit.logprobs:
            output.logprobs = [float(logprobs[token])]
            if request.submit.top_logprobs:
                output.top = top_logprobs(logprobs[None], request.submit.top_logprobs)
            if request.submit.token_ids_logprob:
                output.given = [logprobs[request.submit.token_ids_logprob].tolist()]
        output.finish = self._append(request, token, output, in_prefix=in_prefix)
        prompt_logprobs.attach(request, output)
        if request.matcher is not None and output.finish is None and self._bound.jumps(request):
            try:
                if not request.submit.logprobs:
                    token = self._jump(request, request.matcher, output)
                elif not request.matcher.in_prefix:  # whose tokens are told apart
                    self._jump_ahead(request, request.matcher)
            except GrammarError as error:
                self._scheduler.abort(request)
                return failure(request.key, error)
        if request.matcher is not None and request.submit.params.constraint is not None:
            output.incomplete = output.finish == "length" and not request.matcher.accepting
            if output.finish == "stop" and request.matcher.weaker:
                output.weaker = request.matcher.complete or request.matcher.accepting
        if output.finish is not None:
            if output.finish == "stop" and token in request.row.ends:
                output.matched = token
            self._end(request, output.finish)
        return output

    def settle(
        self, request: Request, logits: Tensor, row: int, token: int | None, mask: Bits | None
    ) -> Output:
        """As `take`, of a request whose next token was guessed; its row is right if the guess was.

        The row of a wrong guess is written anew: the tree does not know it.
        """
        guess, computed = request.withdraw()
        output = self.take(request, logits, row, token, mask)
        if output.error is None and output.finish is None and request.tokens[-1] == guess:
            request.computed = computed
        return output

    @torch.inference_mode()
    def _sample(self, request: Request, logits: Tensor, mask: Bits | None) -> int:
        filters = self._filters
        return sample(logits.clone(), request.row, request.draw_index, mask, filters)

    def _append(
        self, request: Request, token: int, output: Output, *, in_prefix: bool
    ) -> str | None:
        """Take a token into the output, or into the prompt; why it ended with it, if it has."""
        request.tokens.append(token)
        output.ids.append(token)
        if in_prefix:
            output.healed += 1
            request.heal(token)
        else:
            request.row.note_output(token)
        return self._finish_reason(request, token)

    def _jump(self, request: Request, matcher: Matcher, output: Output) -> int:
        """Take the forced tokens into the output, up to its end; the last token that it has."""
        for token in matcher.forced():
            in_prefix = self._bound.accept(request, token)
            output.forced += not in_prefix
            output.finish = self._append(request, token, output, in_prefix=in_prefix)
            if output.finish is not None:
                break
        return request.tokens[-1]

    def _jump_ahead(self, request: Request, matcher: Matcher) -> None:
        """Take the forced tokens, to be told with their logprobs.

        What ends the output is left to a step of its own: no rows are computed behind it.
        """
        taken: list[int] = []
        for token in matcher.forced():
            matcher.accept(token)
            request.tokens.append(token)
            if self._finish_reason(request, token) is not None:
                request.tokens.pop()
                matcher.back(1)
                break
            request.row.note_output(token)
            taken.append(token)
        forced.hold(request, taken)

    def _finish_reason(self, request: Request, token: int) -> str | None:
        if token in request.row.ends and request.output_len > request.row.params.min_new_tokens:
            return "stop"
        if _complete(request.matcher):
            return "stop"
        return "length" if len(request.tokens) >= request.limit else None

    def _end(self, request: Request, finish: str) -> None:
        request.finish = finish
        if request.submit.confirm:
            self._scheduler.end_unconfirmed(request)
        else:
            self._scheduler.finish(request)


def _complete(matcher: Matcher | None) -> bool:
    return matcher is not None and matcher.complete


def failure(key: int, error: BoughsError) -> Output:
    """The last output of a submission that failed."""
    return Output(key=key, error=as_plain(error))
