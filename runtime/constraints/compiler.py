"""Compiles grammars beside a core's loop: each source once, and only what has passed a trial.

This module knows no request: who waits for a grammar holds the future that `ask` gives.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from boughs.lang.constraints import JsonForm
from boughs.lang.errors import BackendError, BoughsError, GrammarError, Unsupported

from .backend import Backend, State, load
from .json_form import PLAIN
from .matcher import Matcher
from .trials import Trials, worker_command
from .verdicts import Verdicts
from .worker import Bounds

MAX_CACHED = 256
"""Compiled grammars that are kept; the one used longest ago goes first."""

AT_ONCE = 4
"""Sources that are tried at the same time."""


log = logging.getLogger("boughs")

HEAL = "heal"
"""The kind of a grammar that allows anything behind its prefix."""


class Grammar(NamedTuple):
    """A grammar at its start.

    Attributes:
        state: To be copied.
        backend: It is of this.
        weaker: JSON pointers of what it leaves out of its schema.
        prefix: Bytes of what it has every output spell first.
    """

    state: State
    backend: Backend
    weaker: tuple[str, ...] = ()
    prefix: int = 0

    def matcher(self, kind: str) -> Matcher:
        """A matcher of its own for one output."""
        state, weaker = self.state.deep_copy(), bool(self.weaker)
        return Matcher(state, self.backend, kind, weaker=weaker, prefix=self.prefix)


Compiled = Future[Grammar]
"""A grammar that is compiled, or is being compiled, or a `GrammarError`."""


class GrammarCompiler:
    """Compiles grammars for one tokenizer.

    Args:
        folder: The model's folder, with `tokenizer.json`.
        vocab_size: Width of the logits.
        eos_token_ids: The tokens that may end an output.
        bounds: What compiling one grammar may take.
        cache: Where verdicts are kept on disk; None keeps them in memory alone.
        mask_threads: How many may fill masks at the same time.
    """

    def __init__(
        self,
        folder: str | Path,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        bounds: Bounds = Bounds(5.0, 1 << 30),  # noqa: B008 -- a tuple
        cache: Path | None = None,
        *,
        mask_threads: int = 1,
    ) -> None:
        self._folder = folder = Path(folder)
        self._vocab_size = vocab_size
        self._eos = eos_token_ids
        self._bounds = bounds
        self._cache = cache
        self._trials = Trials(worker_command(folder, vocab_size, eos_token_ids, bounds))
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="boughs-grammars")
        self._mask_threads = mask_threads
        self._loaded: Future[tuple[Backend, Verdicts]] | None = None
        self._compiled: OrderedDict[bytes, Compiled] = OrderedDict()
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Load the tokenizer, so that no step waits for it later; returns at once."""
        with self._lock:
            if self._loaded is None:
                self._loaded = self._threads.submit(self._load)

    def ask(self, kind: str, source: str, form: JsonForm = PLAIN, prefix: str = "") -> Compiled:
        """The grammar of a `Constraint`; returns at once.

        Its `result()` raises `GrammarError` where the source cannot be compiled, and says why.

        Args:
            kind: Of the constraint; or `HEAL`, which has no source.
            source: As the user wrote it.
            form: How JSON is written.
            prefix: What the output spells first. Only the source is tried for it: a literal text
                costs nothing.
        """
        raw = f"{form}{prefix}\0{source}".encode("utf-8", "replace")
        key = hashlib.blake2b(raw, digest_size=32, person=kind.encode()).digest()
        compiled = self._compiled.get(key)
        if compiled is None:
            self.warm()
            compiled = self._threads.submit(self._compile, kind, source, form, prefix)
            self._compiled[key] = compiled
            if len(self._compiled) > MAX_CACHED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        return compiled

    def matcher(self, kind: str, source: str, form: JsonForm = PLAIN) -> Matcher:
        """A fresh matcher for a source; waits for it.

        Raises:
            GrammarError: The source cannot be compiled; says why.
        """
        return self.ask(kind, source, form).result().matcher(kind)

    def close(self) -> None:
        """End the process that tries grammars, and the threads."""
        self._trials.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _load(self) -> tuple[Backend, Verdicts]:
        backend = load(self._folder, self._vocab_size, self._eos, self._mask_threads)
        text = (self._folder / "tokenizer.json").read_text(encoding="utf-8")
        digest = hashlib.blake2b(text.encode()).hexdigest()
        about = f"{digest} {self._vocab_size} {self._eos} {self._bounds} {backend.version}"
        return backend, Verdicts(self._cache, about)

    def _compile(self, kind: str, source: str, form: JsonForm, prefix: str) -> Grammar:
        """In a thread: a fault here fails those that asked for this grammar, and no core."""
        try:
            return self._made(kind, source, form, prefix)
        except BoughsError:
            raise
        except Exception as error:
            log.exception("a grammar could not be compiled, by a fault of the compiler's own")
            raise BackendError(f"{kind}: compiling it failed: {error!r:.200}") from error

    def _made(self, kind: str, source: str, form: JsonForm, prefix: str) -> Grammar:
        assert self._loaded is not None, "`ask` has begun to load it"
        try:
            backend, verdicts = self._loaded.result()
        except Exception as error:
            raise Unsupported(
                f"{kind}: this model's tokenizer is of a kind that grammars do not know: {error}",
                kind,
            ) from error
        grammar: str | None = None
        weaker: tuple[str, ...] = ()
        if kind != HEAL:
            grammar, weaker = self._tried(kind, source, form, verdicts)
        if prefix or grammar is None:
            grammar = backend.with_prefix(grammar, prefix)
        return Grammar(backend.build(grammar), backend, weaker, len(prefix.encode()))

    def _tried(
        self, kind: str, source: str, form: JsonForm, verdicts: Verdicts
    ) -> tuple[str, tuple[str, ...]]:
        """A source in the backend's form, and what of it that leaves out."""
        answer = verdicts.find(kind, source, form)
        if answer is None:
            answer = self._trials.run(kind, source, form)
            verdicts.keep(kind, source, answer, form)
        if answer.grammar is None:
            raise GrammarError(answer.error or f"{kind}: it cannot be compiled", kind)
        return answer.grammar, answer.weaker
