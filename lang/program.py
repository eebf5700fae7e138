"""Programs: what `@function` makes of a Python function.

The function's first parameter is the state; all others are the program's own, whatever they are
called. This module knows not how statements run.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, overload

from boughs.lang import loop
from boughs.lang.arguments import Arguments
from boughs.lang.backend import Backend, Host
from boughs.lang.batch import OnResult, Results, ResultStream, run_batch
from boughs.lang.current import inside_program, resolve
from boughs.lang.errors import InvalidRequest
from boughs.lang.execution import Execution
from boughs.lang.expression import Expression, Target
from boughs.lang.graph import Graph
from boughs.lang.prefix import constant_prefix, forgiving, prefill
from boughs.lang.run_options import OPTIONS, RunOptions, check_defaults, check_spec_tokens
from boughs.lang.state import ProgramState
from boughs.lang.trace import Trace, trace


class Program:
    """A program. Run it with `run` or `run_batch`.

    A keyword that is a parameter of the program's own function belongs to the function, even if
    `run` knows one of the same name (`n`, `stop`, `backend`, …); every other goes to `run`. What
    is hidden so is set with `configure`, which knows only the parameters of `run`.

    Args:
        func: The function.
        bound: Arguments that `bind` gave.
        options: Parameters of `run` that `configure` gave.
        num_api_spec_tokens: As of `function`.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        bound: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        check_spec_tokens(num_api_spec_tokens)
        self._spec_tokens = num_api_spec_tokens
        self._arguments = Arguments(func)
        self.func = func
        self._bound = dict(bound or {})
        self._options = dict(options or {})
        self._stream = self._options.pop("stream", False)
        functools.update_wrapper(self, func)

    def __get__(self, instance: object, owner: type | None = None) -> Program:
        """A program that is defined in a class is a method."""
        if instance is None:
            return self
        return self._with(func=self.func.__get__(instance, owner))

    def __repr__(self) -> str:
        return f"<Program {self._name}>"

    # ---- running ----

    def run(self, /, *args: Any, **kwargs: Any) -> ProgramState:
        """Run the program, and return its state when all that it added is done.

        Args:
            args: The program's own arguments, by position.
            kwargs: Its other arguments, and parameters of the run: `backend`; `stream=True`
                returns at once and lets the state be read while the program runs; `cache=True`
                answers from disk what was asked before (`boughs.CallCache`); `max_seconds` ends the
                program with `RequestTimeout` when it takes longer (a plain body at its next
                statement or read); `use_thread=False` lets each statement end before the next
                begins, for debugging; defaults for every `gen` that does not give its own
                (`temperature`, `max_new_tokens`, `stop`, `timeout` and the others of
                `boughs.SamplingParams` but the grammars, and `return_logprob, logprob_start_len,
                top_logprobs_num, token_ids_logprob, return_text_in_logprobs, heal`).

        Raises:
            TypeError: The arguments do not fit the program.
            BoughsError: The first thing that went wrong, with its place in the message.
        """
        execution, stream = self._prepare(args, kwargs)
        if stream:
            return execution.start()
        if loop.on_loop():
            raise InvalidRequest(
                f"{self._name}: run() blocks; in an async program await run_async(…)"
            )
        return execution.execute()

    async def run_async(self, /, *args: Any, **kwargs: Any) -> ProgramState:
        """`run` to be awaited, on any event loop. A plain body runs in a thread of a bounded pool.

        To cancel what awaits it cancels the program.
        """
        execution, stream = self._prepare(args, kwargs)
        state = execution.start(pooled=not stream)
        if not stream:
            try:
                await state.wait()
            except asyncio.CancelledError:
                execution.cancel()
                raise
        return state

    def run_batch(
        self,
        batch_kwargs: Iterable[Mapping[str, Any] | tuple[Any, ...] | list[Any]],
        *,
        backend: Backend | Host | None = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        return_exceptions: bool = False,
        on_result: OnResult | None = None,
        **options: Any,
    ) -> Results | ResultStream:
        """Run the program once for each item.

            import boughs

            @boughs.function
            def ask(s, question):
                s += question + boughs.gen("answer", stop=".")

            items = [{"question": "What is a fox?"}, {"question": "And a dog?"}]
            for state in ask.run_batch(items, temperature=0):
                print(state["answer"])

        Args:
            batch_kwargs: The items: dicts of arguments, or tuples of positional ones.
            backend: Who runs the requests.
            num_threads: How many programs run at the same time; by default 96, or 16 for each
                core if that is more.
            progress_bar: Show how far it is on standard error, with tokens a second, the share of
                prompt tokens that the cache had, and failures; where that is no terminal, one line
                at the end.
            generator_style: Yield the states in the order of the items, as they come.
            return_exceptions: Put an item's error into its place instead of raising it.
            on_result: Called in the calling thread with (index, state or error) as each ends.
            options: Defaults for every `gen`, as for `run`.

        Returns:
            The states, in order: a list, or with `generator_style` an iterator. Its `usage` is
            what all items cost, those that failed among them.

        Raises:
            TypeError: An item does not fit the program; nothing was run.
            BoughsError: The first item's error, with its index, when all others have run; what they
                came to is in its `results`. With `generator_style` it comes in its place, and what
                is behind it is cancelled.
        """
        if self._stream:
            raise InvalidRequest("stream: a batch is not streamed", "stream")
        return run_batch(
            [self._item(i, item) for i, item in enumerate(_items(batch_kwargs))],
            self._executions({"backend": backend, **options}),
            name=self._name,
            num_threads=num_threads,
            progress_bar=progress_bar,
            generator_style=generator_style,
            return_exceptions=return_exceptions,
            on_result=on_result,
        )

    def bind(self, /, **kwargs: Any) -> Program:
        """The program with some of its own arguments given. Those of `run` go before these."""
        unknown = [name for name in kwargs if not self._arguments.takes(name)]
        if unknown:
            raise TypeError(f"{self._name}() has no parameter {unknown[0]!r} to bind")
        return self._with(bound={**self._bound, **kwargs})

    def configure(self, /, **options: Any) -> Program:
        """The program with parameters of `run` given, whatever its own are called."""
        unknown = [name for name in options if name not in OPTIONS]
        if unknown:
            raise InvalidRequest(f"{unknown[0]}: run() has no such parameter", unknown[0])
        check_defaults(self._name, options)
        return self._with(options={**self._given(), **options})

    def trace(self, /, *args: Any, **kwargs: Any) -> Trace:
        """The statements of a run, without a backend.

        Arguments that are not given are placeholder texts, and so is every variable.

        Raises:
            InvalidRequest: The program adds statements or reads variables without an end: a loop
                waits for a value that only a model would give.
            Exception: What the body raises, with a note that it ran on placeholders.
        """
        given = self._arguments.bind_placeholders(self._bound, args, kwargs)
        try:
            return trace(self._name, self.func, given.args, given.kwargs)
        except Exception as error:
            error.add_note(
                f"program {self._name} ran without a model: a variable's text, and an argument "
                "that is not given, is its name in braces"
            )
            raise

    def graph(self, /, *args: Any, **kwargs: Any) -> Graph:
        """The program drawn as a graph, without a backend: of `trace`, for the same arguments.

        Raises:
            InvalidRequest: As of `trace`.
        """
        return Graph.of(self.trace(*args, **kwargs))

    def cache(self, /, *args: Any, **kwargs: Any) -> int:
        """Compute what all runs begin with, so that the first of them finds it cached, too.

        The body runs on placeholders (twice, to tell what depends on them), up to the first thing
        that a model or a missing argument would decide. Runs share their beginnings without this.

        Args:
            args: Arguments that all of the runs to come have.
            kwargs: The same by name, and `backend`.

        Returns:
            How many tokens all runs begin with; 0 where there are none, or none can be cached.
        """
        own = dict(kwargs)
        given = None if self._arguments.owns("backend") else own.pop("backend", None)
        backend = resolve(given)
        nodes = []
        for mark in ("<{}>", "[[{}]]"):
            bound = self._arguments.bind_placeholders(self._bound, args, own, mark.format)
            body = forgiving(self.func)
            nodes.append(trace(self._name, body, bound.args, bound.kwargs).nodes)
        return loop.run(prefill(backend, constant_prefix(*nodes)))

    # ---- composition ----

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the program, or make it a part of another.

        `other(s, x=1)` in a program runs the body of `other` on the state `s` there and then, and
        returns what it returns (an async one is to be awaited). `s += other(x=1)` in a program
        does the same where the sum is added. Anywhere else a call is `run`.
        """
        if args and isinstance(args[0], ProgramState):
            return self._inline(args[0], self._bind(args[1:], kwargs))
        if inside_program():
            return Call(self, self._bind(args, kwargs))
        return self.run(*args, **kwargs)

    def _inline(self, state: ProgramState, arguments: inspect.BoundArguments) -> Any:
        if self._options or self._stream:
            raise InvalidRequest(
                f"{self!r} is configured for a run of its own; as a part of another program it "
                "has the parameters of that one"
            )
        result = self.func(state, *arguments.args, **arguments.kwargs)
        if inspect.iscoroutine(result) and not loop.on_loop():
            return loop.run(result)
        return result

    # ---- arguments ----

    def _with(self, **changed: Any) -> Program:
        """The same program but for one of what makes it."""
        made = {"func": self.func, "bound": self._bound, "options": self._given()}
        return Program(**{**made, **changed}, num_api_spec_tokens=self._spec_tokens)

    def _given(self) -> dict[str, Any]:
        """What `configure` was given."""
        return {**self._options, "stream": self._stream}

    @property
    def _name(self) -> str:
        return self._arguments.name

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        return self._arguments.bind(self._bound, args, kwargs)

    def _prepare(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Execution, bool]:
        own: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in kwargs.items():
            target = options if name in OPTIONS and not self._arguments.owns(name) else own
            target[name] = value
        arguments = self._bind(args, own)
        stream = options.pop("stream", self._stream)
        if not isinstance(stream, bool):
            raise InvalidRequest(f"stream: expected a bool, got {stream!r:.40}", "stream")
        return self._executions(options)(arguments), stream

    def _item(self, i: int, item: object) -> inspect.BoundArguments:
        try:
            if isinstance(item, Mapping):
                return self._bind((), item)
            if isinstance(item, tuple | list):
                return self._bind(tuple(item), {})
        except TypeError as error:
            raise TypeError(f"item {i}: {error}") from None
        raise InvalidRequest(
            f"item {i}: expected a dict or a tuple of arguments, got {item!r:.60}", "batch_kwargs"
        )

    def _executions(
        self, options: Mapping[str, Any]
    ) -> Callable[[inspect.BoundArguments], Execution]:
        """What makes executions with these parameters of a run."""
        given = {name: value for name, value in options.items() if value is not None}
        merged = {**self._options, **given}
        parsed = RunOptions.parse(self._name, merged, self._spec_tokens)
        if parsed.eager and inspect.iscoroutinefunction(self.func):
            raise InvalidRequest(
                f"{self._name}: use_thread=False blocks, which an async program must not; leave it "
                "out and await what is to be waited for",
                "use_thread",
            )
        return functools.partial(parsed.execution, self.func)


class Call(Expression):
    """A program with its arguments, to be made a part of another."""

    __slots__ = ("_arguments", "_program")

    def __init__(self, program: Program, arguments: inspect.BoundArguments) -> None:
        self._program = program
        self._arguments = arguments

    def put(self, target: Target) -> None:
        """Run the body on the state that this is added to."""
        assert isinstance(target, ProgramState), "expressions are put into states"
        if inspect.iscoroutinefunction(self._program.func) and loop.on_loop():
            raise InvalidRequest(
                f"{self._program!r} is async: in an async program write "
                "`await other(s, …)` and not `s += other(…)`"
            )
        self._program._inline(target, self._arguments)

    def __getitem__(self, name: str) -> Any:
        raise InvalidRequest(
            f"{self._program!r} was called inside of a program, where a call is a part of it; for "
            f"a run of its own, with a state to read {name!r} from, call .run(…)"
        )


@overload
def function(func: Callable[..., Any], num_api_spec_tokens: int | None = None) -> Program: ...
@overload
def function(
    func: None = None, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., Any]], Program]: ...
def function(
    func: Callable[..., Any] | None = None,
    num_api_spec_tokens: int | None = None,
) -> Program | Callable[[Callable[..., Any]], Program]:
    """Make a program of a function, whose first parameter is the program's state.

    The function may be a plain one, a method, a closure, or `async def`.

        import boughs

        @boughs.function
        def guide(s, place):
            s += boughs.user(f"What is {place} famous for?")
            s += boughs.assistant(boughs.gen("famous", max_tokens=32))

        state = guide.run(place="Rome")
        print(state["famous"], state.usage)

    Args:
        func: The function.
        num_api_spec_tokens: On API models (`OpenAI`, …), a `gen` that has a stop asks for at least
            so many tokens and goes on past its stop; the next gens of its turn are answered from
            there, without a request, where they fit. Its text comes whole, not streamed. Other
            backends have the prompt cached, and make each gen by itself as ever.
    """

    def made(func: Callable[..., Any]) -> Program:
        return Program(func, num_api_spec_tokens=num_api_spec_tokens)

    return made if func is None else made(func)


def _items(batch: object) -> list[Any]:
    if isinstance(batch, str | bytes | Mapping) or not isinstance(batch, Iterable):
        raise InvalidRequest(
            f"batch_kwargs: expected a list of dicts or tuples of arguments, got {batch!r:.60}",
            "batch_kwargs",
        )
    return list(batch)
