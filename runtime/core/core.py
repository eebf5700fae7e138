"""The engine core: a loop of receive, schedule, run, sample, send.

It holds the model, the pages and the queues, and speaks `boughs.runtime.messages` with the front.
How messages travel is the caller's business: `run` takes a way to receive and a way to send.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from torch import Tensor

from boughs.kernels.bitmask import Bits
from boughs.lang.errors import BoughsError, Unservable
from boughs.radix import PrefixCache
from boughs.runtime.beams import beam_limit
from boughs.runtime.config import EngineConfig
from boughs.runtime.constraints.compiler import GrammarCompiler
from boughs.runtime.constraints.masks import Masks
from boughs.runtime.core import forced, prompt_logprobs
from boughs.runtime.core.beam import BeamSearch
from boughs.runtime.core.beam_text import BeamText, Texts
from boughs.runtime.core.bound import Bound, compiler
from boughs.runtime.core.calls import Calls
from boughs.runtime.core.forbidden import Forbidden
from boughs.runtime.core.next_token import NextTokens, failure
from boughs.runtime.core.pooling import embedding, pool
from boughs.runtime.core.request import Compiling, Request
from boughs.runtime.core.runner import ModelRunner, Runner
from boughs.runtime.core.sampler import RowState, most_likely
from boughs.runtime.core.scheduler import Scheduler
from boughs.runtime.core.scoring import gather_scores
from boughs.runtime.core.times import StepTimes
from boughs.runtime.front.tokenizer import Tokenizer
from boughs.runtime.messages import (
    Abort,
    Call,
    Finish,
    FromCore,
    Limits,
    Output,
    Outputs,
    Ready,
    Shutdown,
    Submit,
    ToCore,
)

Receive = Callable[[float | None], list[ToCore]]
"""Messages that are there; waits up to so many seconds for the first (None: for ever)."""

Send = Callable[[FromCore], None]


GRAMMAR_POLL = 0.002
"""Seconds after which a core that has nothing else to do looks for compiled grammars again."""


class Core:
    """One model, one cache, one queue.

    Args:
        config: The engine's settings; `model_path` is a resolved folder.
        runner: What computes; by default the model in that folder.
        grammars: What compiles grammars; by default for the tokenizer in that folder.
        tokenizer: Loads the tokenizer for the text of beams; by default that one.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner | None = None,
        grammars: GrammarCompiler | None = None,
        tokenizer: Callable[[], Tokenizer] | None = None,
    ) -> None:
        folder = Path(config.model_path)
        self.runner = ModelRunner(config, folder) if runner is None else runner
        placement = self.runner.placement
        self.cache = PrefixCache(
            self.runner.num_pages,
            config.page_size,
            policy=config.radix_eviction_policy,
            enabled=not config.disable_radix_cache,
        )
        self.scheduler = Scheduler(
            self.cache,
            config.page_size,
            placement.max_batched_tokens,
            max_running=config.max_running_requests,
            policy=config.schedule_policy,
            conservativeness=config.schedule_conservativeness,
        )
        self.times = StepTimes()
        self._config = config
        eos = self.runner.eos_token_ids
        self._eos = frozenset(eos)
        self.limits = Limits(
            model_path=config.model_path,
            vocab_size=self.runner.vocab_size,
            context_length=self.runner.context_length,
            pool_tokens=(self.runner.num_pages - 1) * config.page_size,
            page_size=config.page_size,
            num_pages=self.runner.num_pages,
            eos_token_ids=eos,
            attention_backend=self.runner.attention_name,
            dtype=str(placement.dtype).removeprefix("torch."),
            device=str(placement.device),
            device_why=placement.why,
            attention_why=self.runner.attention_why,
            weights=self.runner.weights_name,
            attention_costs=self.runner.costs_from,
            kv_cache_dtype=str(placement.kv_dtype).removeprefix("torch."),
            max_batched_tokens=placement.max_batched_tokens,
        )
        threads = config.threads or len(os.sched_getaffinity(0))
        grammars = grammars or compiler(config, self.limits, threads)
        masks = Masks(self.runner.vocab_size)
        self._bound = Bound(grammars, masks, jump=not config.disable_jump_forward)
        self._texts = Texts(tokenizer or (lambda: Tokenizer.load(folder)))
        self._next = NextTokens(self.scheduler, self._bound, self.runner.filters)
        self._arrivals = 0

    def run(self, receive: Receive, send: Send) -> None:
        """Serve until `Shutdown` arrives. An idle core waits in `receive` and costs nothing."""
        try:
            self._serve(receive, send)
        finally:
            self._bound.close()
            self._texts.close()

    def _serve(self, receive: Receive, send: Send) -> None:
        calls = Calls(self.scheduler, self.times, send)
        send(Ready(self.limits))
        self._bound.warm()
        stalled = False
        times = self.times
        while True:
            outputs: list[Output] = []
            wait = calls.patience if stalled or not self.scheduler.has_work else 0.0
            if self.scheduler.compiling:
                wait = GRAMMAR_POLL if wait is None else min(wait, GRAMMAR_POLL)
            for message in receive(wait):
                if isinstance(message, Shutdown):
                    return
                if isinstance(message, Call):
                    calls.take(message)
                else:
                    self._take(message, outputs)
            self._take_grammars(outputs)
            times.begin()
            stalled = not self._step(outputs) and self.scheduler.has_work
            if outputs:
                send(Outputs(outputs))
            times.end("send")
            if calls.turn():
                stalled = False
            if self._config.check_invariants:
                self.scheduler.check()

    # ---- messages ----

    def _take(self, message: Submit | Finish | Abort, outputs: list[Output]) -> None:
        if isinstance(message, Submit):
            self._submit(message, outputs)
            return
        request = self.scheduler.find(message.key)
        if request is None:
            return  # it has ended meanwhile, which its own output says
        if isinstance(message, Finish):
            self.scheduler.finish(request, message.length)
        else:
            self.scheduler.abort(request)

    def _submit(self, submit: Submit, outputs: list[Output]) -> None:
        try:
            request = self._request(submit)
        except BoughsError as error:
            outputs.append(failure(submit.key, error))
            return
        if request.compiled is not None and request.compiled.done():
            compiled, request.compiled = request.compiled, None
            if not self._begin(request, compiled, outputs):
                return
        if request.output_len and len(request.tokens) >= request.limit:
            outputs.append(request.output(finish="length"))  # the core before it had more pages
        else:
            self.scheduler.add(request)

    def _request(self, submit: Submit) -> Request:
        params = submit.params
        assert params.max_new_tokens is not None, "the front sets max_new_tokens"
        prompt, pool = len(submit.prompt_ids), self.limits.pool_tokens
        if prompt > pool:  # the front knew another core's limits when it let the request in
            raise Unservable(
                f"prompt: {prompt} tokens do not fit the KV cache of {pool} tokens", "prompt"
            )
        ends = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self._eos)
        row = RowState(params, submit.choice, ends)
        row.note_prompt(submit.prompt_ids)
        if params.allowed_token_ids is not None or submit.bad_ids:
            vocab = self.limits.vocab_size
            row.forbidden = Forbidden(vocab, params.allowed_token_ids, submit.bad_ids)
        compiled = Compiling(self._bound.ask(submit), self._texts.ask(submit))
        if params.constraint is not None:
            row.ends |= self._eos  # a grammar's end is EOS, also under `ignore_eos`
        row.note_prompt(submit.output_ids[: submit.healed])
        for token in submit.output_ids[submit.healed :]:
            row.note_output(token)
        self._arrivals += 1
        most = min(self.limits.context_length, pool + 1)  # the last token needs no row
        limit = min(prompt + submit.healed + params.max_new_tokens, most)
        if params.beam_width is not None:
            limit = min(limit, beam_limit(params.beam_width, prompt, self.limits, self._config))
        request = Request(
            submit=submit,
            arrival=self._arrivals,
            limit=limit,
            most=most,
            healed=submit.healed,
            tokens=array("i", submit.prompt_ids + submit.output_ids),
            row=row,
            compiled=compiled if any(compiled) else None,
            search=None if params.beam_width is None else _search(submit, row, limit - prompt),
        )
        # Mostly one token was given back, and is what spells its text: then both rows are computed
        # in one step. A grammar's next mask would have to wait for the first.
        free = not submit.output_ids and params.constraint is None and limit < most
        if free and len(submit.given_back) == 1:
            request.guess(submit.given_back[0])
        return request

    def _take_grammars(self, outputs: list[Output]) -> None:
        """Let the requests go on whose grammars are compiled, and tokenizer loaded, by now."""
        for request in self.scheduler.compiling:
            assert request.compiled is not None, "it waits for it"
            if not request.compiled.done():
                continue
            if self._begin(request, request.compiled, outputs):
                self.scheduler.free(request)
            else:
                self.scheduler.abort(request)

    def _begin(self, request: Request, compiled: Compiling, outputs: list[Output]) -> bool:
        """Give a request what it waited for, or the front the error; whether it can run."""
        try:
            if compiled.grammar is not None:
                self._bound.begin(request, compiled.grammar)
            if request.search is not None:
                loaded = compiled.tokenizer
                text = None if loaded is None else BeamText.of(loaded.result(), request.submit)
                request.search.begin(request.matcher, text)
        except BoughsError as error:
            outputs.append(failure(request.key, error))
            return False
        return True

    def check(self) -> None:
        """Raise AssertionError where the pages or queues disagree."""
        self.scheduler.check()

    # ---- a step ----

    def _step(self, outputs: list[Output]) -> bool:
        """Run one step; whether there was anything to do."""
        step = self.scheduler.schedule()
        if not step.works:
            self.scheduler.computed(step)
            self.times.drop()
            return False
        self.times.admitted(step)
        self.times.end("schedule")
        guessed, (last, prefilled) = step.guessed_rows(), step.last_rows()
        sampling = [*guessed, *last]
        self._bound.begin_masks(dict.fromkeys(request for request, _ in sampling))
        hidden = self.runner.forward(step)
        self.times.end("model")
        if any(work.request.reads_rows for work in step.works):
            prompt_logprobs.gather(step, hidden, self.runner.logits)
            forced.gather(step, hidden, self.runner.logits)
            gather_scores(step, hidden, self.runner.logits)
            pool(step, hidden)
        self.scheduler.computed(step)
        outputs += map(self._prefilled, prefilled)
        if sampling:
            logits = self.runner.logits(hidden[[row for _, row in sampling]])
            masks = self._bound.take_masks()
            # A request's second row is that of a guess: no mask is left when it counts.
            bits = [masks.pop(request, None) for request, _ in sampling]
            likely = most_likely(logits, [request.is_plain for request, _ in sampling], bits)
            for at, (request, _) in enumerate(guessed):
                outputs.append(self._next.settle(request, logits, at, likely[at], bits[at]))
            at = len(guessed)
            for request, lines in groupby(sampling[at:], key=lambda pair: pair[0].group or pair[0]):
                begin, at = at, at + sum(1 for _ in lines)
                if request.search is None:
                    if request.computed < len(request.tokens):
                        continue  # it guessed wrong, or has ended
                    outputs += forced.tell(request)
                    outputs.append(
                        self._next.take(request, logits, begin, likely[begin], bits[begin])
                    )
                else:
                    rows = logits[begin:at].cpu()
                    outputs += self._searched(request, request.search, rows, bits[begin:at])
        self.times.end("sample")
        return True

    def _searched(
        self, request: Request, search: BeamSearch, logits: Tensor, masks: list[Bits | None]
    ) -> list[Output]:
        """Take a step of a beam search; what it found, if it is over."""
        try:
            parents = search.advance(logits, masks)
        except BoughsError as error:  # of this request alone
            self.scheduler.abort(request)
            return [failure(request.key, error)]
        if not search.over:
            self.scheduler.regroup(request, parents)
            for member, beam in zip(request.beams, search.beams, strict=True):
                member.matcher = beam.matcher
            return []
        found = search.best()
        output = request.output(finish=found[0].finish, hypotheses=found)
        self.scheduler.finish(request)
        return [prompt_logprobs.attach(request, output)]

    def _prefilled(self, request: Request) -> Output:
        self.scheduler.finish(request)
        output = request.output(finish="length", embedding=embedding(request))
        if request.submit.targets:
            output.scores = request.scores
        return prompt_logprobs.attach(request, output)


def _search(submit: Submit, row: RowState, most: int) -> BeamSearch:
    return BeamSearch(
        row,
        most,
        logprobs=submit.logprobs,
        top=submit.top_logprobs,
        given=submit.token_ids_logprob,
    )
